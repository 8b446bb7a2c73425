//! The mappings of this process that have code, with the build ids of their files.
//!
//! Build ids are read from the mapped pages, through `/proc/self/mem`: the file of that name may be
//! another one by now, and a read through the kernel cannot fault.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use dormouse_maps::{FileId, MappingKind, MapsLine, Perms, parse, read_maps};

use dormouse_protocol::profile::MappedRange;

/// The known facts of the process's memory. A mapping that has gone stays known, until another one
/// takes its place.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// With their files: another one may have the same path.
    code: Vec<(MappedRange, Option<FileId>)>,
    /// Ranges that had other code before the last refresh.
    replaced: Vec<Range<u64>>,
    /// First and last address of readable ranges; adjacent ranges are joined.
    readable: Vec<(u64, u64)>,
    /// The stack of the first thread.
    stack: Range<u64>,
}

/// The mappings of this process that have code.
///
/// # Cost
///
/// Reads the kernel's list, and a few bytes of each object's head.
pub fn own_mappings() -> Vec<MappedRange> {
    let mut mappings = Mappings::default();
    mappings.refresh();
    mappings.code()
}

/// The note of a profile that has samples in replaced ranges.
pub(crate) const REPLACED: &str = "code was unloaded, and other code lies at its addresses now: samples of the first \
                                   have the names of the second";

impl Mappings {
    /// Looks at the kernel's list.
    pub(crate) fn refresh(&mut self) {
        self.replaced.clear();
        let Ok(text) = read_maps("/proc/self/maps") else { return };
        // The tables that come of it are shorter.
        if !dormouse_sys::memory::is_there(2 * text.len()) {
            return;
        }
        let memory = File::open("/proc/self/mem").ok();
        let mut now: Vec<(MappedRange, Option<FileId>)> = Vec::new();
        self.readable.clear();
        // The head of the file that the lines at hand belong to: its path and first address.
        let mut head: Option<(Vec<u8>, u64)> = None;
        for line in parse(&text).map_while(Result::ok) {
            let MapsLine { start, last, perms, offset, kind, file, ref name, .. } = line;
            if perms.contains(Perms::READ) {
                match self.readable.last_mut() {
                    Some((_, before)) if *before + 1 == start => *before = last,
                    _ => self.readable.push((start, last)),
                }
            }
            if kind == MappingKind::Stack {
                self.stack = start..last.saturating_add(1);
            }
            if offset == 0 && (kind.has_file() || kind == MappingKind::Vdso) {
                head = Some((name.to_vec(), start));
            }
            if !perms.contains(Perms::EXECUTE) {
                continue;
            }
            let (end, path) = (last.saturating_add(1), String::from_utf8_lossy(name).into_owned());
            let known = self.at(start).filter(|(known, of)| {
                (known.start, known.end, known.offset, *of) == (start, end, offset, file)
                    && known.path == path
            });
            let build_id = match (known, &head) {
                (Some((known, _)), _) => known.build_id.clone(),
                (None, Some((of, at))) if of[..] == name[..] => {
                    memory.as_ref().and_then(|memory| build_id(memory, *at)).unwrap_or_default()
                }
                _ => String::new(),
            };
            now.push((MappedRange { start, end, offset, path, build_id }, file));
        }
        // The place of a file, of which pieces may come and go. Code of no file has none.
        let place = |(range, file): &(MappedRange, Option<FileId>)| {
            file.map(|file| (file, range.start.wrapping_sub(range.offset)))
        };
        let mut gone = Vec::new();
        for old in self.code.drain(..) {
            let behind = now.partition_point(|(new, _)| new.end <= old.0.start);
            let mut come = now[behind..].iter().take_while(|(new, _)| new.start < old.0.end).peekable();
            if come.peek().is_none() {
                gone.push(old);
            } else if come.any(|new| place(new) != place(&old)) {
                self.replaced.push(old.0.start..old.0.end);
            }
        }
        now.extend(gone);
        now.sort_by_key(|(mapping, _)| mapping.start);
        self.code = now;
    }

    /// The mappings that have code.
    pub(crate) fn code(&self) -> Vec<MappedRange> {
        self.code.iter().map(|(mapping, _)| mapping.clone()).collect()
    }

    /// The ranges that had code of another file before the last refresh.
    pub(crate) fn replaced(&self) -> &[Range<u64>] {
        &self.replaced
    }

    /// The mapping with code that holds an address.
    pub(crate) fn of(&self, address: u64) -> Option<&MappedRange> {
        self.at(address).map(|(mapping, _)| mapping)
    }

    fn at(&self, address: u64) -> Option<&(MappedRange, Option<FileId>)> {
        let behind = self.code.partition_point(|(mapping, _)| mapping.start <= address);
        self.code.get(behind.checked_sub(1)?).filter(|(mapping, _)| address < mapping.end)
    }

    /// The stack of the first thread.
    pub(crate) fn stack(&self) -> &Range<u64> {
        &self.stack
    }

    /// The first address behind one up to which everything can be read.
    pub(crate) fn readable_to(&self, address: u64) -> Option<u64> {
        let behind = self.readable.partition_point(|&(start, _)| start <= address);
        let &(_, last) = self.readable.get(behind.checked_sub(1)?)?;
        (address <= last).then(|| last.saturating_add(1))
    }

    /// The first address from which on everything up to this one can be read.
    pub(crate) fn readable_from(&self, address: u64) -> Option<u64> {
        let behind = self.readable.partition_point(|&(start, _)| start <= address);
        let &(start, last) = self.readable.get(behind.checked_sub(1)?)?;
        (address <= last).then_some(start)
    }
}

/// The build id of the object whose head lies at an address.
fn build_id(memory: &File, head: u64) -> Option<String> {
    const PT_LOAD: u32 = 1;
    const PT_NOTE: u32 = 4;
    /// Headers and notes are short; a longer one is not read.
    const LONGEST: usize = 64 * 1024;
    let read = |at: u64, length: usize| {
        let mut bytes = vec![0; length.min(LONGEST)];
        memory.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    };
    let header = read(head, 64)?;
    // Of 64 bits, in this machine's order.
    if !header.starts_with(&[0x7f, b'E', b'L', b'F', 2, if cfg!(target_endian = "big") { 2 } else { 1 }]) {
        return None;
    }
    let (table, size, count) =
        (number(&header, 32, 8)?, number(&header, 54, 2)? as usize, number(&header, 56, 2)? as usize);
    let table = read(head.checked_add(table)?, size * count)?;
    let segments = table.chunks_exact(size.max(56)).map(|segment| {
        Some((
            number(segment, 0, 4)? as u32,
            number(segment, 8, 8)?,
            number(segment, 16, 8)?,
            number(segment, 40, 8)?,
        ))
    });
    let segments: Vec<_> = segments.collect::<Option<_>>()?;
    // The head is the first byte of the file, and lies in the segment with offset 0.
    let &(_, _, first, _) = segments.iter().find(|&&(kind, offset, ..)| kind == PT_LOAD && offset == 0)?;
    let moved = head.wrapping_sub(first);
    segments.iter().filter(|&&(kind, ..)| kind == PT_NOTE).find_map(|&(_, _, address, length)| {
        let notes = read(moved.wrapping_add(address), usize::try_from(length).ok()?)?;
        id_in(&notes)
    })
}

/// A number at an offset, in this machine's order.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let mut word = [0; 8];
    let bytes = bytes.get(at..at + length)?;
    if cfg!(target_endian = "big") {
        word[8 - length..].copy_from_slice(bytes);
    } else {
        word[..length].copy_from_slice(bytes);
    }
    Some(u64::from_ne_bytes(word))
}

/// The build id among notes: a head of three words, then name and content, each padded to four.
fn id_in(mut notes: &[u8]) -> Option<String> {
    const NT_GNU_BUILD_ID: u64 = 3;
    loop {
        let (name, content, kind) = (number(notes, 0, 4)?, number(notes, 4, 4)?, number(notes, 8, 4)?);
        let (name, content) = (usize::try_from(name).ok()?, usize::try_from(content).ok()?);
        let begins = 12 + name.next_multiple_of(4);
        let bytes = notes.get(begins..begins.checked_add(content)?)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..12 + name) == Some(b"GNU\0") {
            let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
            return Some(digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect());
        }
        notes = notes.get(begins + content.next_multiple_of(4)..)?;
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
#[allow(unsafe_code, reason = "maps files as code")]
mod tests {
    use std::io::Write as _;
    use std::os::fd::{AsRawFd as _, FromRawFd as _};

    use super::*;

    /// Maps a library of one page with this build id, at an address unless that is 0.
    fn load(id: [u8; 4], at: usize) -> usize {
        let mut bytes = [0_u8; 0x1000];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &[0x7f, b'E', b'L', b'F', 2, if cfg!(target_endian = "big") { 2 } else { 1 }]);
        put(32, &64_u64.to_ne_bytes());
        put(54, &[56_u16, 2].map(u16::to_ne_bytes).concat());
        put(64, &1_u32.to_ne_bytes());
        put(120, &4_u32.to_ne_bytes());
        put(120 + 16, &0x200_u64.to_ne_bytes());
        put(120 + 40, &20_u64.to_ne_bytes());
        put(0x200, &[4_u32, 4, 3].map(u32::to_ne_bytes).concat());
        put(0x20c, &[*b"GNU\0", id].concat());
        // SAFETY: a new file, and a mapping of it that replaces the one of an earlier call alone.
        unsafe {
            let mut file = File::from_raw_fd(libc::memfd_create(c"plugin".as_ptr(), 0));
            file.write_all(&bytes).unwrap();
            let (rights, fixed) =
                (libc::PROT_READ | libc::PROT_EXEC, if at == 0 { 0 } else { libc::MAP_FIXED });
            let at = std::ptr::without_provenance_mut(at);
            let at = libc::mmap(at, 0x1000, rights, libc::MAP_PRIVATE | fixed, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            at.addr()
        }
    }

    #[test]
    fn another_file_in_its_place_is_found() {
        dormouse_testkit::in_child(|| {
            let at = load([0x17; 4], 0);
            let mut mappings = Mappings::default();
            let mut refresh = || {
                mappings.refresh();
                let mapping = mappings.of(at as u64).unwrap();
                (mapping.path.clone(), mapping.build_id.clone(), mappings.replaced().to_vec())
            };
            let (path, id, replaced) = refresh();
            assert_eq!((&id[..], &replaced[..]), ("17171717", &[][..]));
            assert_eq!(refresh(), (path.clone(), id, replaced));
            load([0x28; 4], at);
            let range = at as u64..at as u64 + 0x1000;
            assert_eq!(refresh(), (path, "28282828".to_owned(), vec![range]));
        });
    }

    #[test]
    fn own_code_is_found() {
        let mut mappings = Mappings::default();
        mappings.refresh();
        let here = own_code_is_found as *const () as u64;
        let mapping = mappings.of(here).unwrap();
        assert_eq!(mapping.path, std::env::current_exe().unwrap().to_str().unwrap());
        assert_eq!(mappings.of(1), None);
        let local = 0_u8;
        let at = (&raw const local) as u64;
        assert!(mappings.readable_from(at).is_some_and(|start| start <= at));
        // The kernel's own object always has one.
        let code = mappings.code();
        let vdso = code.iter().find(|mapping| mapping.path == "[vdso]");
        if let Some(vdso) = vdso {
            assert!(vdso.build_id.len() >= 16, "{vdso:?}");
        }
    }

    #[test]
    fn an_id_is_found_among_notes() {
        let mut notes = Vec::new();
        for (name, kind, content) in [(&b"XYZ\0"[..], 3_u32, &b"abcde"[..]), (b"GNU\0", 3, b"\x01\xab")] {
            for word in [name.len() as u32, content.len() as u32, kind] {
                notes.extend(word.to_ne_bytes());
            }
            notes.extend(name);
            notes.extend(content);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        assert_eq!(id_in(&notes).as_deref(), Some("01ab"));
        assert_eq!(id_in(&notes[..30]), None);
        assert_eq!(id_in(&[0xff; 40]), None);
    }
}

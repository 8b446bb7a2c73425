//! The kernel's report on the memory that contains code: its bounds, its permissions, and whether a
//! write would reach a file.
//!
//! The loader maps code privately, readable and executable. A tool that has remapped it (to huge
//! pages, say), an in-process patcher or a compiler with a region of its own may have changed
//! either, at any time. So each batch asks the kernel anew.
//!
//! - By `PROCMAP_QUERY` for one address (Linux 6.11), on a file that stays open: half a microsecond
//!   for each mapping that contains a site. The descriptor is checked once in each batch, because
//!   the file of another process would answer, too.
//! - Otherwise by reading the whole file: 20 to 100 microseconds, depending on the number of
//!   mappings. It can be read as long as the thread lives that opened it, and is opened anew
//!   otherwise. An empty file is an error: the kernel returns one for a process whose memory is
//!   gone, so it holds no information on ours.
//! - Where the file cannot be kept open (no `/proc`, a filter of system calls), the result is
//!   "unknown".
//!
//! `dormouse-maps` has another parser of mappings, but keys cannot depend on that crate. This one
//! only extracts a range and permissions, and a forked child uses [`ask_alone`].
//!
//! # Async-signal-safety
//!
//! [`ask_alone`] allocates nothing and waits for nothing.
//!
//! # Safety
//!
//! One `ioctl`, whose argument has the layout of `struct procmap_query` and requests no text.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use dormouse_sys::rendezvous;
use rustix::fs::OFlags;
use rustix::io::{Errno, pread};
use rustix::mm::MprotectFlags;

use super::proc_file::ProcFile;
use crate::Error;
use crate::room::collect;

/// It is only read, so detecting forks that run handlers is enough: a child of another kind, which
/// must not switch keys, would read its parent's mappings, which are like its own. A stricter check
/// would need a page that is lost when this copy is unloaded.
pub(super) static FILE: ProcFile =
    ProcFile::closed(c"/proc/thread-self/maps", OFlags::RDONLY, || u64::from(rendezvous::forks()));

/// A part of the address space that is one to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) range: Range<usize>,
    pub(super) protection: MprotectFlags,
    /// Whether a write reaches the file, and with it every process that maps it.
    pub(super) is_shared: bool,
}

/// The mappings, as far as a batch has asked for them.
#[derive(Debug, Default)]
pub(super) struct Maps {
    /// The file, which was checked for this batch.
    file: Option<BorrowedFd<'static>>,
    /// All of them, where the kernel gives no less.
    all: Option<Vec<Mapping>>,
    /// Whether there is nothing to ask.
    is_silent: bool,
}

impl Maps {
    /// The mapping at an address; `None`: there is nothing to ask.
    pub(super) fn at(&mut self, address: usize) -> Result<Option<Mapping>, Error> {
        if self.is_silent {
            return Ok(None);
        }
        if self.all.is_none() {
            let Some(file) = self.file.map_or_else(file, |file| Ok(Some(file)))? else {
                return Ok(self.silent());
            };
            self.file = Some(file);
            match query(file, address) {
                Ok(mapping) => return Ok(Some(mapping)),
                Err(Errno::NOENT) => return Err(Error::unreadable(address)),
                Err(_) => {}
            }
            self.all = Some(match read(file) {
                Ok(all) => all,
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => return Err(denied(error)),
                Err(_) => {
                    // The thread that opened it may have ended, and the list of its mappings with
                    // it.
                    FILE.close();
                    let Some(file) = self::file()? else { return Ok(self.silent()) };
                    read(file).map_err(denied)?
                }
            });
        }
        let all = self.all.as_deref().unwrap_or_default();
        let after = all.partition_point(|mapping| mapping.range.start <= address);
        let found = after.checked_sub(1).map(|at| &all[at]).filter(|m| m.range.contains(&address));
        found.map(|mapping| Some(mapping.clone())).ok_or_else(|| Error::unreadable(address))
    }

    fn silent(&mut self) -> Option<Mapping> {
        self.is_silent = true;
        None
    }
}

/// The file; `None`: it cannot be opened here.
fn file() -> Result<Option<BorrowedFd<'static>>, Error> {
    match FILE.get() {
        Ok(file) => Ok(Some(file)),
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(denied(errno.into())),
        Err(_) => Ok(None),
    }
}

/// In a process of one thread, which keeps no file open: the mapping at an address, if the kernel
/// can be asked about one.
pub(super) fn ask_alone(address: usize) -> Option<Mapping> {
    query(FILE.open().ok()?.as_fd(), address).ok()
}

fn denied(source: io::Error) -> Error {
    Error::Denied {
        what: "asking the kernel how code is mapped",
        source,
        setting: "leave a descriptor and some memory free, or call dormouse_keys::prepare() early",
    }
}

/// `struct procmap_query` (Linux: `include/uapi/linux/fs.h`).
#[derive(Debug, Default)]
#[repr(C)]
struct Query {
    size: u64,
    /// 0: the mapping that holds the address, or none.
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    permissions: u64,
    /// Page size, offset, inode, device; lengths and places of a name and a build id, none of which
    /// is asked for.
    others: [u64; 7],
}

const _: () = assert!(size_of::<Query>() == 104 && std::mem::offset_of!(Query, permissions) == 40);

fn query(file: BorrowedFd<'_>, address: usize) -> Result<Mapping, Errno> {
    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
    const SHARED: u64 = 8;
    let mut asked = Query { size: size_of::<Query>() as u64, address: address as u64, ..Query::default() };
    // SAFETY: the kernel reads and writes one `Query`, whose size is part of the request. Another
    // kind of file does not have the request.
    if unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY as _, &raw mut asked) } != 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // The first three are those of `mprotect`.
    let protection = MprotectFlags::from_bits_truncate(asked.permissions as u32 & 7);
    let range = asked.start as usize..asked.end as usize;
    Ok(Mapping { range, protection, is_shared: asked.permissions & SHARED != 0 })
}

/// All mappings, in order of address.
fn read(file: BorrowedFd<'_>) -> io::Result<Vec<Mapping>> {
    const PART: usize = 1 << 16;
    let (mut text, mut length) = (Vec::new(), 0);
    loop {
        text.try_reserve(length + PART - text.len())?;
        text.resize(length + PART, 0);
        match pread(file, &mut text[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    parse_all(&text[..length])
}

fn parse_all(text: &[u8]) -> io::Result<Vec<Mapping>> {
    let all = collect(text.split(|&byte| byte == b'\n').filter_map(parse))?;
    if all.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the list of mappings is empty"));
    }
    Ok(all)
}

/// Parses `from-to perms …`, where the permissions look like `r-xp`, or `r-xs` for shared mappings.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|&byte| byte == b' ').map(str::from_utf8);
    let (range, permissions) = (fields.next()?.ok()?, fields.next()?.ok()?);
    let (from, to) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let mut protection = MprotectFlags::empty();
    for (letter, flag) in
        [('r', MprotectFlags::READ), ('w', MprotectFlags::WRITE), ('x', MprotectFlags::EXEC)]
    {
        if permissions.contains(letter) {
            protection |= flag;
        }
    }
    Some(Mapping { range: number(from)?..number(to)?, protection, is_shared: permissions.ends_with('s') })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_bounds_permissions_and_sharing() {
        let parsed = |permissions: &str| {
            parse(format!("7f0000001000-7f0000003000 {permissions} 00000000 00:01 7 /tmp/te s").as_bytes())
        };
        let (range, r_x) = (0x7f00_0000_1000..0x7f00_0000_3000, MprotectFlags::READ | MprotectFlags::EXEC);
        for (text, protection, is_shared) in
            [("r-xs", r_x, true), ("r-xp", r_x, false), ("rwxp", r_x | MprotectFlags::WRITE, false)]
        {
            assert_eq!(parsed(text), Some(Mapping { range: range.clone(), protection, is_shared }));
        }
        for other in [&b""[..], b"x-y rws 0", b"7f00"] {
            assert_eq!(parse(other), None);
        }
    }

    #[test]
    fn a_file_without_a_mapping_is_an_error() {
        parse_all(b"").unwrap_err();
        assert_eq!(parse_all(b"1000-2000 r-xp 0 0:0 0\n").unwrap().len(), 1);
    }

    #[test]
    fn one_address_and_the_file_agree() {
        let file = FILE.open().unwrap();
        let code = query as *const () as usize;
        let all = read(file.as_fd()).unwrap();
        let line = all.iter().find(|mapping| mapping.range.contains(&code)).unwrap();
        match query(file.as_fd(), code) {
            Ok(answer) => assert_eq!(answer, *line),
            Err(_) => dormouse_testkit::skip("this kernel has no PROCMAP_QUERY (Linux 6.11)"),
        }
        // The request is no other file's.
        let other = std::fs::File::open("/proc/thread-self/status").unwrap();
        assert_eq!(query(other.as_fd(), code), Err(Errno::NOTTY));
    }
}

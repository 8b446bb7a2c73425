//! The kernel's view of an address space: all of it as text, or one mapping by `PROCMAP_QUERY`
//! (Linux 6.11).
//!
//! # Which process
//!
//! An open maps file belongs to the memory of the process at the time of opening. When that process
//! executes another program or ends, its memory goes, and the file stays empty, whichever process
//! has the id by then. So another process's file is kept open: it can never describe a wrong
//! process, only show that the right one is gone. Our own is opened anew each time, because a child
//! of `fork` would go on to read its parent's; and it is opened by thread, because the first thread
//! may have ended.
//!
//! # Safety
//!
//! One `ioctl`, whose argument has the layout of `struct procmap_query` and points to buffers that
//! outlive the call, with their lengths.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::SpaceError;
use crate::kind::{FileId, MappingKind, Perms};
use crate::parse::{MapsLine, READS, parse};

/// The kernel's answers about one process.
#[derive(Debug)]
pub(super) struct Source {
    /// None for the own process.
    other: Option<Other>,
    /// Somebody wrote the mappings down, of a process that may have ended.
    recorded: Option<Vec<MapsLine<'static>>>,
    /// Whether the kernel answers about one address.
    can_ask: AtomicBool,
}

/// Another process, known by its open maps file and the time of its start.
#[derive(Debug)]
struct Other {
    pid: u32,
    maps: File,
    started: u64,
}

/// `struct procmap_query` of the kernel.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    perms: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;

/// The kernel's answer about one address.
#[derive(Debug)]
pub(super) enum Asked {
    /// A mapping, or `None` if there is none.
    Line(Option<MapsLine<'static>>),
    /// This kernel has no query for one address.
    Unsupported,
}

impl Source {
    pub(super) fn own() -> Self {
        Self { other: None, recorded: None, can_ask: AtomicBool::new(true) }
    }

    /// Behaves as on a kernel without the query, which only lists all mappings at once.
    #[cfg(test)]
    pub(super) fn without_queries(self) -> Self {
        self.can_ask.store(false, Ordering::Relaxed);
        self
    }

    pub(super) fn of(pid: u32) -> Result<Self, SpaceError> {
        let started = started(pid).map_err(|error| refused(pid, error))?;
        let none = |error: io::Error| match error.raw_os_error() {
            Some(libc::ESRCH) if self::started(pid).is_ok() => SpaceError::NoMemory { pid },
            _ => refused(pid, error),
        };
        let maps = File::open(format!("/proc/{pid}/maps")).map_err(none)?;
        match maps.read_at(&mut [0], 0).map_err(none)? {
            0 => Err(none(io::Error::from_raw_os_error(libc::ESRCH))),
            _ => Ok(Self { other: Some(Other { pid, maps, started }), ..Self::own() }),
        }
    }

    pub(super) fn recorded(mut lines: Vec<MapsLine<'static>>) -> Self {
        lines.sort_by_key(|line| line.start);
        // A mapping that overlaps the one before it is invalid.
        let mut behind = 0;
        lines.retain(|line| {
            let is_one = line.start >= behind && line.start <= line.last && line.last < u64::MAX;
            behind = if is_one { line.last + 1 } else { behind };
            is_one
        });
        Self { recorded: Some(lines), ..Self::own() }
    }

    pub(super) fn pid(&self) -> u32 {
        self.other.as_ref().map_or_else(std::process::id, |other| other.pid)
    }

    pub(super) fn is_own(&self) -> bool {
        self.other.is_none() && self.recorded.is_none()
    }

    /// All mappings, each as it was at some moment of the call, as `take` takes them.
    ///
    /// The kernel writes a page at a time, so that two lines need not be of one moment; it never
    /// leaves out a mapping that is there all the time. A text that does not hang together is read
    /// again.
    pub(super) fn all<T>(&self, mut take: impl FnMut(MapsLine<'_>) -> T) -> Result<Vec<T>, SpaceError> {
        if let Some(lines) = &self.recorded {
            return Ok(lines.iter().cloned().map(take).collect());
        }
        let mut reads = 1;
        loop {
            let text = self.read().map_err(|error| self.lost(error))?;
            if text.is_empty() {
                return Err(self.lost(io::Error::from_raw_os_error(libc::ESRCH)));
            }
            match parse(&text).map(|line| line.map(&mut take)).collect() {
                Err(_) if reads < READS => reads += 1,
                result => return result.map_err(|error| SpaceError::Parse { pid: self.pid(), error }),
            }
        }
    }

    /// The mapping that `addr` lies in.
    pub(super) fn at(&self, addr: u64) -> Result<Asked, SpaceError> {
        if let Some(lines) = &self.recorded {
            let line = lines.iter().find(|line| (line.start..=line.last).contains(&addr));
            return Ok(Asked::Line(line.cloned()));
        }
        if !self.can_ask.load(Ordering::Relaxed) {
            return Ok(Asked::Unsupported);
        }
        match self.with_file(|maps| ask(maps, addr)) {
            Ok(line) => Ok(Asked::Line(line)),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => Ok(Asked::Line(None)),
                // Older kernels, and filters of system calls.
                Some(libc::ENOTTY | libc::EINVAL | libc::EPERM | libc::ENOSYS) => {
                    self.can_ask.store(false, Ordering::Relaxed);
                    Ok(Asked::Unsupported)
                }
                // A name of more bytes than paths have: the text has it whole.
                Some(libc::E2BIG | libc::ENAMETOOLONG) => Ok(Asked::Unsupported),
                _ => Err(self.lost(error)),
            },
        }
    }

    /// The build id of the file that is mapped at `addr`, if it still is that file.
    pub(super) fn build_id(&self, addr: u64, file: FileId) -> Option<Vec<u8>> {
        if self.recorded.is_some() {
            return None;
        }
        let mut id = vec![0_u8; 64];
        let mut query =
            Query { build_id_size: id.len() as u32, build_id: id.as_mut_ptr() as u64, ..Query::of(addr) };
        self.with_file(|maps| query.ask(maps)).ok()?;
        id.truncate(query.build_id_size as usize);
        Some(id).filter(|id| query.file() == file && !id.is_empty())
    }

    fn with_file<T>(&self, ask: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        match &self.other {
            None => ask(&File::open("/proc/thread-self/maps")?),
            Some(other) => ask(&other.maps),
        }
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        self.with_file(|maps| {
            let (mut text, mut piece) = (Vec::new(), vec![0; 64 << 10]);
            loop {
                match maps.read_at(&mut piece, text.len() as u64) {
                    Ok(0) => return Ok(text),
                    Ok(read) => text.extend_from_slice(&piece[..read]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        })
    }

    /// The error for a process whose maps file is empty or unreadable.
    fn lost(&self, error: io::Error) -> SpaceError {
        let pid = self.pid();
        match &self.other {
            Some(other) if error.raw_os_error() == Some(libc::ESRCH) => match started(pid) {
                Ok(now) if now == other.started => SpaceError::Replaced { pid },
                _ => SpaceError::Gone { pid },
            },
            _ => SpaceError::Read { pid, error },
        }
    }
}

impl Query {
    fn of(addr: u64) -> Self {
        Self { size: size_of::<Self>() as u64, addr, ..Self::default() }
    }

    fn file(&self) -> FileId {
        FileId { device: (self.major, self.minor), inode: self.inode }
    }

    /// Has the kernel fill it in. The caller owns the buffers that it points to, and keeps them
    /// until then.
    fn ask(&mut self, maps: &File) -> io::Result<()> {
        // SAFETY: the kernel reads and writes one `Query`, whose size is part of the request, and
        // at most the named lengths of the buffers (the functions that call this make both from one
        // array).
        let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut *self) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The mapping that `addr` lies in.
fn ask(maps: &File, addr: u64) -> io::Result<Option<MapsLine<'static>>> {
    let mut name = vec![0_u8; libc::PATH_MAX as usize];
    let mut query = Query { name_size: name.len() as u32, name: name.as_mut_ptr() as u64, ..Query::of(addr) };
    query.ask(maps)?;
    let Query { start, end, perms, offset, name_size, .. } = query;
    let Some(last) = end.checked_sub(1).filter(|&last| start <= addr && addr <= last) else {
        return Ok(None);
    };
    // The end of the string is part of its size, which is 0 without a name.
    name.truncate(name_size.saturating_sub(1) as usize);
    let file = Some(query.file()).filter(|file| file.inode != 0);
    let (kind, name) = MappingKind::of(&name, file.is_some());
    let (perms, name) = (Perms::from_bits(perms), Cow::Owned(name.to_owned()));
    Ok(Some(MapsLine { start, last, perms, offset, file, kind, name }))
}

fn refused(pid: u32, error: io::Error) -> SpaceError {
    match error.kind() {
        io::ErrorKind::NotFound => SpaceError::Gone { pid },
        io::ErrorKind::PermissionDenied => SpaceError::Denied { pid },
        _ if error.raw_os_error() == Some(libc::ESRCH) => SpaceError::Gone { pid },
        _ => SpaceError::Read { pid, error },
    }
}

/// When the process started, in ticks; a number is given again, but not within one tick.
fn started(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    // The name is in parentheses and may contain some, so fields are counted from the last; the
    // start is the 22nd of the line.
    let after = stat.iter().rposition(|&byte| byte == b')').map_or(&[][..], |at| &stat[at + 1..]);
    let field = after.split(|&byte| byte == b' ').nth(20);
    let ticks = field.and_then(|field| std::str::from_utf8(field).ok()?.parse().ok());
    ticks.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its stat file has no start time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_and_text_agree() {
        let own = Source::own();
        let all = own.all(|line| MapsLine { name: line.name.into_owned().into(), ..line }).unwrap();
        let code = query_and_text_agree as *const () as u64;
        let line = all.iter().find(|line| line.start <= code && code <= line.last);
        match own.at(code).unwrap() {
            Asked::Line(asked) => assert_eq!(asked.as_ref(), line),
            Asked::Unsupported => dormouse_testkit::skip("this kernel has no PROCMAP_QUERY (Linux 6.11)"),
        }
        assert!(matches!(own.at(0), Ok(Asked::Line(None) | Asked::Unsupported)));
    }

    #[test]
    fn process_that_ended_is_missed() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let source = Source::of(child.id()).unwrap();
        assert!(!source.all(|line| line.start).unwrap().is_empty());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(matches!(source.at(0), Err(SpaceError::Gone { .. }) | Ok(Asked::Unsupported)));
        assert!(matches!(source.all(|line| line.start), Err(SpaceError::Gone { .. })));
        assert!(matches!(Source::of(child.id()), Err(SpaceError::Gone { .. })));
    }
}

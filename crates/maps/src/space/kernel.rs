//! What the kernel says of an address space: all of it as text, or one mapping by `PROCMAP_QUERY` (Linux 6.11).
//!
//! # Which process
//!
//! An open maps file belongs to the memory of the process at the time of opening. When that process executes another
//! program or ends, its memory goes, and the file has nothing more to say, whoever bears the number of the process by
//! then. So another process's file is kept open: it cannot tell of a wrong process, only that the right one is gone.
//! Our own is opened anew each time, because a child of `fork` would go on to read its parent's; and by the thread,
//! since the first thread may have ended.
//!
//! # Safety
//!
//! One `ioctl`, whose request has the layout of `struct procmap_query` and points to buffers that outlive the call, with
//! their lengths; and `clock_gettime`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use super::parse::{self, Line, ParseError};
use super::region::{FileId, Perms};
use crate::SpaceError;

/// Reads of a file that does not parse, before that is an error.
const READS: usize = 4;

/// What the kernel says of one process.
#[derive(Debug)]
pub(super) struct Source {
    whose: Whose,
    /// Whether it answers about one address.
    can_ask: AtomicBool,
}

/// Whose memory.
#[derive(Debug)]
enum Whose {
    Own,
    Other { pid: u32, maps: File, started: u64 },
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

/// What was learnt of one address.
#[derive(Debug)]
pub(super) enum Asked {
    /// A mapping, or that there is none.
    Line(Option<Line>),
    /// This kernel cannot be asked about one address.
    Unsupported,
}

impl Source {
    pub(super) fn own() -> Self {
        Self::new(Whose::Own)
    }

    fn new(whose: Whose) -> Self {
        Self { whose, can_ask: AtomicBool::new(true) }
    }

    /// As of a kernel that only gives all mappings at once.
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
            _ => Ok(Self::new(Whose::Other { pid, maps, started })),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        match self.whose {
            Whose::Own => std::process::id(),
            Whose::Other { pid, .. } => pid,
        }
    }

    pub(super) fn is_own(&self) -> bool {
        matches!(self.whose, Whose::Own)
    }

    /// All mappings, each as it was at some moment of the call.
    ///
    /// The kernel writes a page at a time, so that two lines need not be of one moment; it never leaves out what is
    /// there all the time. What does not hang together is read again.
    pub(super) fn all(&self) -> Result<Vec<Line>, SpaceError> {
        let mut found = Err(ParseError::Cut { line: 0 });
        for _ in 0..READS {
            let text = self.read().map_err(|error| self.lost(error))?;
            if text.is_empty() {
                return Err(self.lost(io::Error::from_raw_os_error(libc::ESRCH)));
            }
            found = parse::lines(&text);
            if found.is_ok() {
                break;
            }
        }
        found.map_err(|error| SpaceError::Parse { pid: self.pid(), error })
    }

    /// The mapping that `addr` lies in.
    pub(super) fn at(&self, addr: u64) -> Result<Asked, SpaceError> {
        if !self.can_ask.load(Ordering::Relaxed) {
            return Ok(Asked::Unsupported);
        }
        match self.with_file(|maps| query(maps, addr)) {
            Ok((query, mut name)) => {
                let length = (query.name_size as usize).saturating_sub(1).min(name.len());
                name.truncate(length);
                let (kind, identity) = parse::classify(name, query.file());
                let Some(last) = query.end.checked_sub(1).filter(|&last| query.start <= addr && addr <= last)
                else {
                    return Ok(Asked::Line(None));
                };
                let perms = Perms::from_bits(query.perms as u8);
                Ok(Asked::Line(Some(Line {
                    start: query.start,
                    last,
                    perms,
                    offset: query.offset,
                    kind,
                    identity,
                })))
            }
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
        let mut id = vec![0_u8; 64];
        let mut query =
            Query { build_id_size: id.len() as u32, build_id: id.as_mut_ptr() as u64, ..Query::of(addr) };
        self.with_file(|maps| query.ask(maps)).ok()?;
        id.truncate(query.build_id_size as usize);
        Some(id).filter(|id| query.file() == file && !id.is_empty())
    }

    fn with_file<T>(&self, ask: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        match &self.whose {
            Whose::Own => ask(&File::open("/proc/thread-self/maps")?),
            Whose::Other { maps, .. } => ask(maps),
        }
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        self.with_file(|maps| {
            let (mut text, mut end) = (vec![0; 64 << 10], 0);
            loop {
                match maps.read_at(&mut text[end..], end as u64) {
                    Ok(0) => break,
                    Ok(read) => end += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
                if text.len() - end < 16 << 10 {
                    text.resize(2 * text.len(), 0);
                }
            }
            text.truncate(end);
            Ok(text)
        })
    }

    /// Why the maps of a process have nothing to say.
    fn lost(&self, error: io::Error) -> SpaceError {
        let pid = self.pid();
        match self.whose {
            Whose::Other { started: then, .. } if error.raw_os_error() == Some(libc::ESRCH) => {
                match started(pid) {
                    Ok(now) if now == then => SpaceError::Replaced { pid },
                    _ => SpaceError::Gone { pid },
                }
            }
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

    /// Has the kernel fill it in. The buffers that it points to are the caller's, who keeps them until then.
    fn ask(&mut self, maps: &File) -> io::Result<()> {
        // SAFETY: the kernel reads and writes one `Query`, whose size it was told, and at most the named lengths of the buffers
        // (the functions that call this make both from one array).
        let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut *self) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn query(maps: &File, addr: u64) -> io::Result<(Query, Vec<u8>)> {
    let mut name = vec![0_u8; libc::PATH_MAX as usize];
    let mut query = Query { name_size: name.len() as u32, name: name.as_mut_ptr() as u64, ..Query::of(addr) };
    query.ask(maps)?;
    Ok((query, name))
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
    // The name is in parentheses and may contain some, so fields are counted from the last; the start is the 22nd of
    // the line.
    let after = stat.iter().rposition(|&byte| byte == b')').map_or(&[][..], |at| &stat[at + 1..]);
    let field = after.split(|&byte| byte == b' ').nth(20);
    let ticks = field.and_then(|field| std::str::from_utf8(field).ok()?.parse().ok());
    ticks.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its stat file has no start time"))
}

/// The monotonic clock, in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the time into what it is given. This clock always is there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_asked_for_and_the_whole_text_agree() {
        let own = Source::own();
        let all = own.all().unwrap();
        let code = one_address_asked_for_and_the_whole_text_agree as *const () as u64;
        let line = all.iter().find(|line| line.start <= code && code <= line.last).unwrap();
        match own.at(code).unwrap() {
            Asked::Line(asked) => assert_eq!(asked.as_ref(), Some(line)),
            Asked::Unsupported => eprintln!("skipped: this kernel has no PROCMAP_QUERY (Linux 6.11)"),
        }
        assert!(matches!(own.at(0), Ok(Asked::Line(None) | Asked::Unsupported)));
    }

    #[test]
    fn another_process_is_read_through_one_file_and_missed_when_it_is_gone() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let source = Source::of(child.id()).unwrap();
        assert!(!source.all().unwrap().is_empty());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(matches!(source.at(0), Err(SpaceError::Gone { .. }) | Ok(Asked::Unsupported)));
        assert!(matches!(source.all(), Err(SpaceError::Gone { .. })));
        assert!(matches!(Source::of(child.id()), Err(SpaceError::Gone { .. })));
    }
}

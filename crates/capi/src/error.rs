//! The result of a call: a code and, on request, the reason in memory that the caller provides.

use std::any::Any;
use std::collections::TryReserveError;
use std::fmt::{self, Write as _};
use std::io;

use dormouse::breakpoints::{Error as BreakpointsError, PerfError};
use dormouse::keys::{Error as KeysError, SelectorError};
use dormouse::metrics::MetricsError;
use dormouse::{BatchReport, InitError, ProfileError, PublishError, WatchError};

/// `enum dormouse_code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) enum Code {
    Ok = 0,
    Invalid = 1,
    UnexpectedText = 2,
    NotText = 3,
    Denied = 4,
    TrapsBlocked = 5,
    TooManyLeases = 6,
    Reentrant = 7,
    BadGlob = 8,
    NoAgent = 9,
    Other = 10,
    Bug = 11,
    NoMemory = 12,
    NoRegister = 13,
    NoProfile = 14,
}

/// `struct dormouse_error`.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "the header's names")]
#[repr(C)]
pub(crate) struct Error {
    pub(crate) size: u32,
    pub(crate) code: i32,
    pub(crate) os_error: i32,
    pub(crate) reserved: u32,
    pub(crate) address: u64,
    pub(crate) message: [u8; 488],
}

/// `struct dormouse_report`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Report {
    pub(crate) size: u32,
    pub(crate) reserved: u32,
    pub(crate) keys: u64,
    pub(crate) sites: u64,
    pub(crate) skipped: u64,
    pub(crate) pages: u64,
    pub(crate) barriers: u64,
    pub(crate) traps: u64,
    pub(crate) unsealed: u64,
    pub(crate) elapsed_ns: u64,
}

impl From<BatchReport> for Report {
    fn from(report: BatchReport) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            reserved: 0,
            keys: report.keys as u64,
            sites: report.sites as u64,
            skipped: report.skipped as u64,
            pages: report.pages as u64,
            barriers: report.barriers as u64,
            traps: report.traps,
            unsealed: report.unsealed as u64,
            elapsed_ns: report.elapsed.as_nanos() as u64,
        }
    }
}

/// The reason why a call is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    Invalid(&'static str),
    Keys(KeysError),
    Glob(SelectorError),
    Agent(InitError),
    Watch(WatchError),
    Profile(ProfileError),
    Metrics(MetricsError),
    Publish(PublishError),
    /// A file that cannot be written.
    File(io::Error),
    NoMemory,
    /// Why there is no new report.
    Stale(&'static str),
    /// The payload of a panic.
    Bug(Box<dyn Any + Send>),
}

impl From<KeysError> for Refusal {
    fn from(error: KeysError) -> Self {
        Self::Keys(error)
    }
}

impl From<WatchError> for Refusal {
    fn from(error: WatchError) -> Self {
        Self::Watch(error)
    }
}

impl From<ProfileError> for Refusal {
    fn from(error: ProfileError) -> Self {
        Self::Profile(error)
    }
}

impl From<MetricsError> for Refusal {
    fn from(error: MetricsError) -> Self {
        match error {
            MetricsError::Untimed(error) => Self::Keys(error),
            error => Self::Metrics(error),
        }
    }
}

impl From<TryReserveError> for Refusal {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

impl Refusal {
    pub(crate) fn code(&self) -> Code {
        self.parts().0
    }

    /// The code, the address that the refusal is about, and the kernel's error.
    fn parts(&self) -> (Code, usize, Option<&io::Error>) {
        let mut error = match self {
            Self::Glob(_) | Self::Profile(ProfileError::Globs(_)) => return (Code::BadGlob, 0, None),
            Self::Agent(InitError::Thread { source }) => return (Code::NoAgent, 0, Some(source)),
            Self::Agent(_) => return (Code::NoAgent, 0, None),
            Self::Watch(error) => return parts_of_watch(error),
            Self::Profile(ProfileError::Unavailable(_)) => return (Code::NoProfile, 0, None),
            Self::Invalid(_) | Self::Profile(_) => return (Code::Invalid, 0, None),
            Self::File(error) => return (Code::Other, 0, Some(error)),
            Self::Keys(error) | Self::Publish(PublishError::Key(error)) => error,
            Self::Publish(PublishError::Reentrant) => return (Code::Reentrant, 0, None),
            Self::Metrics(_) | Self::Publish(_) | Self::Stale(_) => return (Code::Other, 0, None),
            Self::NoMemory => return (Code::NoMemory, 0, None),
            Self::Bug(_) => return (Code::Bug, 0, None),
        };
        // The first failure, even if restoring failed after it. The message contains both.
        while let KeysError::HalfWritten { source, .. } = error {
            error = source;
        }
        match error {
            KeysError::UnexpectedText { addr, .. } => (Code::UnexpectedText, *addr, None),
            KeysError::NotText { addr, .. }
            | KeysError::SharedText { addr, .. }
            | KeysError::TooFar { addr, .. } => (Code::NotText, *addr, None),
            KeysError::Denied { source, .. } | KeysError::Unwritable { mprotect: source, .. } => {
                (Code::Denied, 0, Some(source))
            }
            KeysError::TrapsBlocked { .. } => (Code::TrapsBlocked, 0, None),
            KeysError::TooManyLeases { .. } => (Code::TooManyLeases, 0, None),
            KeysError::Reentrant => (Code::Reentrant, 0, None),
            KeysError::NoMemory => (Code::NoMemory, 0, None),
            _ => (Code::Other, 0, None),
        }
    }
}

/// The code, the address and the kernel's error of a watch that was refused.
fn parts_of_watch(error: &WatchError) -> (Code, usize, Option<&io::Error>) {
    let WatchError::Arming(error) = error else { return (Code::Other, 0, None) };
    match error {
        BreakpointsError::Unwatchable { addr, .. } => (Code::Invalid, *addr, None),
        BreakpointsError::NoRegister { .. } => (Code::NoRegister, 0, None),
        BreakpointsError::Thread { source, .. } => match source {
            PerfError::NoSlot(_) => (Code::NoRegister, 0, None),
            PerfError::Denied { .. } => (Code::Denied, 0, None),
            PerfError::Kernel { source, .. } => (Code::Other, 0, Some(source)),
            _ => (Code::Other, 0, None),
        },
        BreakpointsError::Filtered => (Code::Denied, 0, None),
        BreakpointsError::Keeper(source) if source.kind() == io::ErrorKind::OutOfMemory => {
            (Code::NoMemory, 0, Some(source))
        }
        BreakpointsError::Keeper(source) => (Code::Other, 0, Some(source)),
        BreakpointsError::Reentrant => (Code::Reentrant, 0, None),
        _ => (Code::Other, 0, None),
    }
}

/// Not into a `String`: there may be no memory for one.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) | Self::Stale(what) => f.write_str(what),
            Self::Keys(error) => error.fmt(f),
            Self::Glob(error) => error.fmt(f),
            Self::Agent(error) => error.fmt(f),
            Self::Watch(error) => error.fmt(f),
            Self::Profile(error) => error.fmt(f),
            Self::Metrics(error) => error.fmt(f),
            Self::Publish(error) => error.fmt(f),
            Self::File(error) => write!(f, "cannot write the file: {error}"),
            Self::NoMemory => f.write_str("not enough memory: nothing was done"),
            Self::Bug(panic) => {
                let text = panic.downcast_ref::<&str>().copied();
                let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                write!(f, "dormouse failed, please report it: {}", text.unwrap_or_default())
            }
        }
    }
}

/// Text that is cut where its room ends, at a character. The last byte stays a NUL.
struct Message {
    bytes: [u8; 488],
    length: usize,
}

impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.length;
        let end = (0..=room.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        self.bytes[self.length..][..end].copy_from_slice(&text.as_bytes()[..end]);
        self.length += end;
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let mut message = Message { bytes: [0; 488], length: 0 };
        // It fails where it is cut.
        let _ = write!(message, "{refusal}");
        let (code, address, source) = refusal.parts();
        Self {
            size: size_of::<Self>() as u32,
            code: code as i32,
            os_error: source.and_then(io::Error::raw_os_error).unwrap_or(0),
            reserved: 0,
            address: address as u64,
            message: message.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let error = Error::from(Refusal::Bug(Box::new("é".repeat(400))));
        let end = error.message.iter().position(|&byte| byte == 0).unwrap();
        assert!(end >= 486 && std::str::from_utf8(&error.message[..end]).is_ok());
    }
}

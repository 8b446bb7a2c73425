//! How a call ends: a code, and on request the reason, in memory that the caller provides.
//!
//! # Safety
//!
//! [`Out`] writes through a pointer of C's, which leads to a structure that begins with its size.
#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dormouse::keys::{Error as KeysError, SelectorError};
use dormouse::{BatchReport, InitError};

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

/// A structure of the caller's that may be filled.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// `None` for a structure that is shorter than the first version of it.
    ///
    /// # Safety
    ///
    /// NULL, or a `T` that begins with its size in 32 bits and stays during the call.
    pub(crate) unsafe fn new(to: *mut T) -> Option<Self> {
        // SAFETY: a size is there, by the caller's promise.
        (to.is_null() || unsafe { to.cast::<u32>().read() } as usize >= size_of::<T>()).then_some(Self(to))
    }

    /// Fills the structure, if there is one.
    pub(crate) fn fill(self, value: impl Into<T>) {
        if !self.0.is_null() {
            // SAFETY: there is room for a `T`, by the promise to `new` and its look at the size.
            unsafe { self.0.write(value.into()) };
        }
    }
}

/// Why a call is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    Invalid(&'static str),
    Keys(KeysError),
    Glob(SelectorError),
    Agent(InitError),
    /// What a panic said.
    Bug(String),
}

impl From<KeysError> for Refusal {
    fn from(error: KeysError) -> Self {
        Self::Keys(error)
    }
}

impl Refusal {
    fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::Invalid,
            Self::Glob(_) => Code::BadGlob,
            Self::Agent(_) => Code::NoAgent,
            Self::Bug(_) => Code::Bug,
            Self::Keys(error) => match origin(error) {
                KeysError::UnexpectedText { .. } => Code::UnexpectedText,
                KeysError::NotText { .. } | KeysError::SharedText { .. } => Code::NotText,
                KeysError::Denied { .. } | KeysError::Unwritable { .. } => Code::Denied,
                KeysError::TrapsBlocked { .. } => Code::TrapsBlocked,
                KeysError::TooManyLeases { .. } => Code::TooManyLeases,
                KeysError::Reentrant => Code::Reentrant,
                _ => Code::Other,
            },
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Invalid(what) => (*what).to_owned(),
            Self::Keys(error) => error.to_string(),
            Self::Glob(error) => error.to_string(),
            Self::Agent(error) => error.to_string(),
            Self::Bug(said) => format!("dormouse failed, please report it: {said}"),
        }
    }

    fn address(&self) -> u64 {
        let Self::Keys(error) = self else { return 0 };
        match origin(error) {
            KeysError::UnexpectedText { addr, .. }
            | KeysError::NotText { addr, .. }
            | KeysError::SharedText { addr, .. } => *addr as u64,
            _ => 0,
        }
    }

    fn os_error(&self) -> i32 {
        let source = match self {
            Self::Keys(error) => match origin(error) {
                KeysError::Denied { source, .. } | KeysError::Unwritable { mprotect: source, .. } => source,
                _ => return 0,
            },
            Self::Agent(InitError::Socket { source, .. } | InitError::Thread { source }) => source,
            _ => return 0,
        };
        source.raw_os_error().unwrap_or(0)
    }
}

/// What failed first, also where putting back failed after it; the message tells both.
fn origin(error: &KeysError) -> &KeysError {
    match error {
        KeysError::HalfWritten { source, .. } => origin(source),
        error => error,
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.message();
        let mut message = [0; 488];
        let room = message.len() - 1;
        let end = (0..=room.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        message[..end].copy_from_slice(&text.as_bytes()[..end]);
        Self {
            size: size_of::<Self>() as u32,
            code: refusal.code() as i32,
            os_error: refusal.os_error(),
            reserved: 0,
            address: refusal.address(),
            message,
        }
    }
}

/// The calling thread's `errno`, put back when this is dropped.
struct Errno(i32);

impl Errno {
    fn keep() -> Self {
        // SAFETY: the address of the thread's own `errno`.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Runs what a function does that cannot be refused; should it panic, it gives `otherwise`.
pub(crate) fn contained<T>(otherwise: T, f: impl FnOnce() -> T) -> T {
    let _errno = Errno::keep();
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(otherwise)
}

/// Runs what a function does, and says how it ended.
///
/// # Safety
///
/// `error` as for [`Out::new`].
pub(crate) unsafe fn answer(error: *mut Error, f: impl FnOnce() -> Result<(), Refusal>) -> Code {
    let _errno = Errno::keep();
    // SAFETY: the caller's promise.
    let Some(out) = (unsafe { Out::new(error) }) else { return Code::Invalid };
    let ended = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(Refusal::Bug(said(&*panic))));
    match ended {
        Ok(()) => Code::Ok,
        Err(refusal) => {
            let code = refusal.code();
            // Formatting is not contained: it is our own errors' `Display`, which does not panic.
            out.fill(refusal);
            code
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank() -> Error {
        Error { size: 512, code: 0, os_error: 0, reserved: 0, address: 0, message: [0; 488] }
    }

    #[test]
    fn a_panic_ends_as_an_error_that_says_what_it_said() {
        let mut error = blank();
        // SAFETY: a structure with its size.
        let code = unsafe { answer(&raw mut error, || panic!("a bug")) };
        assert_eq!((code, error.code), (Code::Bug, Code::Bug as i32));
        assert!(String::from_utf8_lossy(&error.message).contains("a bug"));
        assert_eq!(contained(7, || panic!("another")), 7);
    }

    #[test]
    fn errno_is_as_it_was() {
        let set = |value| {
            // SAFETY: the thread's own.
            unsafe { *libc::__errno_location() = value };
        };
        set(77);
        // SAFETY: no structure.
        let code = unsafe {
            answer(std::ptr::null_mut(), || {
                set(1);
                Err(Refusal::Invalid("of no use"))
            })
        };
        assert_eq!(code, Code::Invalid);
        contained((), || set(2));
        assert_eq!(Errno::keep().0, 77);
    }

    #[test]
    fn a_structure_of_an_unknown_size_refuses_before_anything_is_done() {
        let mut error = Error { size: 511, ..blank() };
        // SAFETY: a structure with its size.
        let code = unsafe { answer(&raw mut error, || panic!("must not run")) };
        assert_eq!((code, error.code), (Code::Invalid, 0));
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let error = Error::from(Refusal::Bug("é".repeat(400)));
        let end = error.message.iter().position(|&byte| byte == 0).unwrap();
        assert!(end >= 486 && std::str::from_utf8(&error.message[..end]).is_ok());
    }
}

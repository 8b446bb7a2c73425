//! Events behind bare descriptors, for code that must not allocate: their own thread opens them
//! with [`super::open_here`], and these functions switch them.
//!
//! # Async-signal-safety
//!
//! Each function is one system call.
//!
//! # Safety
//!
//! The unsafe code is `ioctl`s that take no pointer, or a pointer to a local.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::attr::Attr;

/// `PERF_EVENT_IOC_ENABLE` and `PERF_EVENT_IOC_DISABLE`.
const ENABLE: libc::Ioctl = 0x2400;
const DISABLE: libc::Ioctl = 0x2401;
/// `PERF_EVENT_IOC_ID`.
const ID: libc::Ioctl = 0x8008_2407_u32 as libc::Ioctl;
/// `PERF_EVENT_IOC_MODIFY_ATTRIBUTES`.
const MODIFY: libc::Ioctl = 0x4008_240b;

/// Switches the event on or off.
///
/// # Errors
///
/// The kernel's error.
pub fn set_enabled(event: BorrowedFd<'_>, enabled: bool) -> io::Result<()> {
    let request = if enabled { ENABLE } else { DISABLE };
    // SAFETY: takes a number.
    answer(unsafe { libc::ioctl(event.as_raw_fd(), request, 0) })
}

/// Makes a breakpoint, opened with the same options, watch the address in `attr`, and send the
/// number in `attr` with its signals. It is enabled afterwards, unless `attr` is
/// [disabled](Attr::disabled).
///
/// # Errors
///
/// The kernel's error.
pub fn retarget(event: BorrowedFd<'_>, attr: &Attr) -> io::Result<()> {
    let mut raw = attr.raw;
    // SAFETY: `raw` lives longer than the call, and has the length in its `size`.
    answer(unsafe { libc::ioctl(event.as_raw_fd(), MODIFY, &raw mut raw) })
}

/// The number of the event, which is unique on the machine.
///
/// # Errors
///
/// The kernel's error: the descriptor is no event, or not any more.
pub fn id(event: BorrowedFd<'_>) -> io::Result<u64> {
    let mut id = 0_u64;
    // SAFETY: `id` is a valid place.
    answer(unsafe { libc::ioctl(event.as_raw_fd(), ID, &raw mut id) })?;
    Ok(id)
}

fn answer(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::os::fd::AsFd;

    use super::*;
    use crate::perf::{Access, Breakpoint, Reading, WatchLen, open_here};

    #[test]
    fn one_descriptor_watches_one_variable_after_another() {
        let mut values = [0_u64; 2];
        let at = [&raw mut values[0], &raw mut values[1]];
        let watch = |at: *mut u64| {
            Attr::breakpoint(Breakpoint::watch(at.addr(), WatchLen::Eight, Access::Write).unwrap())
        };
        let event = match open_here(&watch(at[0]).disabled()) {
            Ok(event) => event,
            Err(error) => return dormouse_testkit::skip(format!("no breakpoints here: {error}")),
        };
        let event = event.as_fd();
        let hits = || {
            // SAFETY: both point to locals that live on.
            at.iter().for_each(|&at| unsafe { black_box(at).write_volatile(1) });
            Reading::of(event).unwrap().value
        };
        assert_eq!(hits(), 0);
        set_enabled(event, true).unwrap();
        assert_eq!(hits(), 1);
        retarget(event, &watch(at[1])).unwrap();
        assert_eq!(hits(), 2);
        set_enabled(event, false).unwrap();
        assert_eq!(hits(), 2);
        assert_ne!(id(event).unwrap(), 0);
        assert!(id(std::io::stdin().as_fd()).is_err());
    }
}

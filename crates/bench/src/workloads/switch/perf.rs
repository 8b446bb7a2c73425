//! Counting events of the kernel that children inherit.
//!
//! # Safety
//!
//! The unsafe code is one system call with a pointer to an [`Attr`], which the kernel only reads, and the descriptor
//! that it returns, which nobody else owns.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Bits of the flags word.
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 1 << 3;

/// The first 64 bytes of `struct perf_event_attr`, which every kernel knows.
#[derive(Debug, Default)]
#[repr(C)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<Attr>() == 64);

/// A counting event: name, type and number of `linux/perf_event.h`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counting {
    pub(super) name: &'static str,
    kind: u32,
    config: u64,
}

impl Counting {
    pub(super) const fn hardware(name: &'static str, config: u64) -> Self {
        Self { name, kind: 0, config }
    }

    pub(super) const fn software(name: &'static str, config: u64) -> Self {
        Self { name, kind: 1, config }
    }

    /// Opens it for the calling thread and for the children that it will have, in user mode only where no more
    /// is allowed.
    pub(super) fn open(self) -> Result<OwnedFd, String> {
        let result = match self.open_with(INHERIT) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.open_with(INHERIT | EXCLUDE_KERNEL)
            }
            result => result,
        };
        result.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::EOPNOTSUPP) if self.kind == 0 => "no PMU".to_owned(),
            _ => format!("perf_event_open of {}: {error}", self.name),
        })
    }

    fn open_with(self, flags: u64) -> io::Result<OwnedFd> {
        let size = size_of::<Attr>() as u32;
        let attr = Attr { kind: self.kind, size, config: self.config, flags, ..Attr::default() };
        let (this_thread, any_cpu, no_group): (libc::c_long, libc::c_long, libc::c_long) = (0, -1, -1);
        // SAFETY: `attr` is as many bytes as its `size` says, and outlives the call.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attr, this_thread, any_cpu, no_group, CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    }
}

//! Copies of memory that may be unmapped at any moment: the kernel reads it, and returns an error
//! where a load would fault.
//!
//! The call is `process_vm_readv` on this process itself, which no rule about tracing forbids. A
//! filter of system calls may end the process for it, so under a filter nothing is copied.
//!
//! # Async-signal-safety
//!
//! Three system calls, which wait for nothing but the kernel's lock of the process's mappings. May
//! change `errno`.
//!
//! # References
//!
//! `process_vm_readv(2)`; `mm/process_vm_access.c`: `mm_access` grants access to one's own memory.
//!
//! # Safety
//!
//! The kernel reads from an arbitrary address, and writes into a local buffer.
#![allow(unsafe_code)]

use crate::perf::is_filtered;

/// Copies memory from `addr` on, up to the first byte that cannot be read. Returns the number of
/// bytes.
pub fn copy_some(addr: usize, into: &mut [u8]) -> usize {
    if is_filtered() || cfg!(miri) {
        return 0;
    }
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len: into.len() };
    // SAFETY: the kernel writes into `into`, as far as it is long; from `remote` it reads without
    // faults.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(copied).unwrap_or(0)
}

/// A value of at most eight bytes, in the low bytes of a word; `None` if it cannot be read.
pub fn value(addr: usize, len: usize) -> Option<u64> {
    let mut bytes = [0; size_of::<u64>()];
    let wanted = bytes.get_mut(..len)?;
    (copy_some(addr, wanted) == len).then(|| u64::from_le_bytes(bytes))
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_copy_ends_where_memory_does() {
        let page = rustix::param::page_size();
        // SAFETY: a new mapping, whose second page is unmapped again.
        let start = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(std::ptr::null_mut(), 2 * page, rights, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            libc::munmap(start.byte_add(page), page);
            start.cast::<u8>().add(page - 4).write(7);
            start as usize
        };
        let mut bytes = [9; 64];
        let copied = copy_some(start + page - 4, &mut bytes);
        // The kernel copies page by page.
        assert!(copied == 4 && bytes[..4] == [7, 0, 0, 0] || copied == 0, "{copied}");
        assert_eq!((value(start + page, 4), value(8, 8), value(start, 9)), (None, None, None));
        assert_eq!(value(start + page - 4, 1), Some(7));
    }

    #[test]
    fn nothing_is_copied_under_a_filter() {
        dormouse_testkit::in_child(|| {
            let there = 5_u32;
            let read = || value((&raw const there).addr(), 4);
            assert_eq!(read(), Some(5));
            dormouse_testkit::Filter::kill(&[libc::SYS_process_vm_readv]).install();
            assert_eq!(read(), None);
        });
    }
}

//! Reading files in place, in a process that survives when one is cut off.
//!
//! A file that is mapped and then cut off has no bytes for some pages: whoever reads there gets
//! SIGBUS, which ends the process. So the reader of symbols gets copies (`copy.rs`), which cost
//! more than all that it does with them. A process that installs this handler reads files of root
//! and of its own user in place: at the first such access the handler puts a page of zeros there,
//! and the reader finds fewer symbols, as in any broken file.
//!
//! A library must not install a handler of SIGBUS in its host, so this is for programs of one's
//! own: the command calls it, a service does not.
//!
//! # Async-signal-safety
//!
//! The handler makes one `mmap`, or sets the default action back.
//!
//! # Safety
//!
//! The unsafe code installs the handler, which replaces a page that has no content by one that has,
//! and reads the address in the description that the kernel passes to it.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Set once the handler is there; relaxed, because it guards no other memory.
static IS_SURVIVED: AtomicBool = AtomicBool::new(false);

/// The size of a page, which is 16 or 64 KiB on some machines: no smaller part can be replaced. Set
/// before the handler is there, so relaxed.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// Has this process survive files that are cut off while it reads them, so that its symbolizers
/// read them without copying them. Replaces the process's handler of SIGBUS.
///
/// # Errors
///
/// Those of `sigaction(2)`.
pub fn survive_cut_files() -> io::Result<()> {
    PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
    // SAFETY: zeros are a valid `sigaction`: no flags, and the signals in the mask are none.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = on_bus as extern "C" fn(_, _, _) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the type that SA_SIGINFO demands, and never goes away.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    IS_SURVIVED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether this process survives them.
pub(super) fn is_survived() -> bool {
    IS_SURVIVED.load(Ordering::Relaxed)
}

extern "C" fn on_bus(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a description of the signal; that of SIGBUS has an address.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR {
        let size = PAGE.load(Ordering::Relaxed);
        let (page, flags) = (addr & !(size - 1), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: the page has no content, so nothing is lost; whoever reads there reads zeros.
        let placed = unsafe { libc::mmap(page as *mut _, size, libc::PROT_READ, flags, -1, 0) };
        if placed != libc::MAP_FAILED {
            return;
        }
    }
    // The same access then ends the process, as without a handler.
    // SAFETY: the default action is no function.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

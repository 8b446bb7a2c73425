//! An alternate signal stack with a chosen room below the frame of the kernel.
#![allow(unsafe_code, reason = "sigaltstack, and the handler that measures")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{mem, ptr};

/// A byte that no handler writes everywhere.
const UNTOUCHED: u8 = 0xa5;
const MOST: usize = 64 * 1024;

/// The alternate stack of the calling thread for its life. Its end is that of a page, so the frame
/// of the kernel is as long for each signal.
#[derive(Debug)]
pub struct AlternateStack {
    memory: &'static mut [u8],
    frame: usize,
}

/// The end of the alternate stack, and the bytes that the kernel's frame has taken there.
static END: AtomicUsize = AtomicUsize::new(0);
static FRAME: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn measure(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // The frame begins with a return address, behind which the context lies (x86-64), or with the
    // information.
    let begin = info.addr().min(context.addr() - 8);
    FRAME.store(END.load(Ordering::Relaxed) - begin, Ordering::Relaxed);
}

impl AlternateStack {
    /// Has this room below the frame of the kernel. One thread of the process at a time; it takes
    /// the handler of SIGUSR1. A room of 0 has no place for the frame either. The room is larger
    /// where the kernel refuses such a stack.
    #[must_use]
    pub fn new(room: usize) -> Self {
        // SAFETY: fresh memory, which stays.
        let memory = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let memory = libc::mmap(ptr::null_mut(), MOST, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(memory.cast::<u8>(), MOST)
        };
        let end = memory.as_ptr_range().end;
        let use_last = |bytes: usize| {
            let start = end.wrapping_sub(bytes).cast_mut().cast();
            let stack = libc::stack_t { ss_sp: start, ss_flags: 0, ss_size: bytes };
            // SAFETY: the memory stays.
            assert_eq!(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) }, 0);
        };
        use_last(MOST);
        END.store(end.addr(), Ordering::Relaxed);
        // SAFETY: a handler that stores a number.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            let handler: unsafe extern "C" fn(_, _, _) = measure;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()), 0);
            assert_eq!(libc::raise(libc::SIGUSR1), 0);
        }
        let frame = FRAME.load(Ordering::Relaxed);
        assert!((512..16 * 1024).contains(&frame), "{frame}");
        use_last((frame + room).max(libc::MINSIGSTKSZ));
        memory.fill(UNTOUCHED);
        Self { memory, frame }
    }

    /// The bytes below the kernel's frame that were written.
    #[must_use]
    pub fn used(&self) -> usize {
        let untouched = self.memory.iter().take_while(|byte| **byte == UNTOUCHED).count();
        (self.memory.len() - untouched).saturating_sub(self.frame)
    }
}

//! Handlers of ours that pass a signal on to the host's handler, which then runs as if the kernel
//! had called it: on the stack, with the mask and the registers that it expects, and with no frame
//! of ours below it.
//!
//! Our handlers run on the alternate stack of threads that have one. The host's handler may not
//! have asked for that, and std's alternate stacks have 8 KiB, into which two signal frames hardly
//! fit ([`signal_frame_bytes`]): a handler that nests there ends the process.
//!
//! # How
//!
//! [`entry!`](crate::entry) makes the function that the kernel calls. It leaves no frame: it calls
//! the deciding function, and then returns to the kernel, or jumps to the handler that [`pass_on`]
//! has returned. [`pass_on`] has these cases:
//!
//! 1. *In place*: ours was not called by the kernel but by a handler that was installed later, or
//!    the frame would have to move while the thread has a shadow stack, where frames cannot be
//!    moved. The handler is called as a function, with its mask, and the mask is restored
//!    afterwards.
//! 2. *Jump*: the kernel's frame lies where the handler wants it. The handler gets its mask, and
//!    returns to where ours would have returned.
//! 3. *Move*: the frame lies on the alternate stack, the interrupted code does not, and the handler
//!    has no `SA_ONSTACK`. The frame is copied to where the kernel would have put it, below the red
//!    zone of the interrupted code. Ours returns to the kernel by its own frame, which now leads
//!    into the handler on the copy. The handler returns by the copy.
//!
//! Two things differ from a call by the kernel:
//!
//! - In all cases, a thread may be in a system call that waits with a mask of its own (`ppoll`,
//!   `sigsuspend`). The kernel adds the handler's mask to that one. Here it is added to the mask
//!   that the thread has outside of the call, because the frame contains no other.
//! - In case 3, the interrupted stack may have no room left. The thread then gets its SIGSEGV while
//!   it is on its alternate stack.
//!
//! # Async-signal-safety
//!
//! No lock, no allocation, no thread-local but `errno`, which stays as it was. System calls
//! (`rt_sigprocmask`): two in case 1, one in case 2, none in case 3; where a filter refuses them
//! the mask stays.
//!
//! # References
//!
//! `arch/x86/kernel/signal_64.c`: `x64_setup_rt_frame`, `rt_sigreturn`; `arch/x86/kernel/signal.c`:
//! `get_sigframe`; `arch/x86/include/uapi/asm/sigcontext.h`: `struct _fpx_sw_bytes`;
//! `arch/arm64/kernel/signal.c`: `setup_rt_frame`, `parse_user_sigframe`.
//!
//! # Safety
//!
//! The unsafe code reads what the kernel passes to a handler, and calls handlers. Frames are
//! changed by `arch`.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use crate::arch::{self, KernelFrame};
use crate::errno::keeping_errno;
use crate::signals;

/// A handler with `SA_SIGINFO`: the kernel calls all handlers so. A host's handler may unwind: it
/// may end its thread, or throw.
pub type Handler = unsafe extern "C-unwind" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void);

/// The memory that the kernel writes on the stack for a handler.
#[derive(Debug)]
#[repr(C)]
pub struct SignalFrame {
    _of_kernel: [u8; 0],
}

/// Passes the signal to the handler of `action`. The function of [`entry!`](crate::entry) must
/// continue at the address that this returns. (In case 1 the handler has returned already.)
///
/// # Safety
///
/// The arguments must be those of the function that `entry!` calls.
pub unsafe fn pass_on(
    action: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    frame: *mut SignalFrame,
) -> usize {
    // SAFETY: sets begin with the 64 bits that the kernel has.
    let first = |set: *const libc::sigset_t| unsafe { *set.cast::<u64>() };
    // SAFETY: the caller's promise.
    let interrupted = first(unsafe { &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask });
    let itself = if action.sa_flags & libc::SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
    let mask = interrupted | first(&raw const action.sa_mask) | itself;

    let is_kernels = KernelFrame::IS_KNOWN
        && context.addr() == frame.addr() + KernelFrame::CONTEXT
        && info.addr() == frame.addr() + KernelFrame::INFO;
    // SAFETY: it is the kernel's.
    let place = if is_kernels { unsafe { Place::of(frame, context.cast()) } } else { Place::Unknown };
    let must_move = place == Place::Moved && action.sa_flags & libc::SA_ONSTACK == 0;
    // SAFETY: it is the kernel's where it must move.
    if !is_kernels || must_move && unsafe { KernelFrame::must_stay(frame.cast()) } {
        // Case 1. A sample's frame in the midst of both could overflow an alternate stack.
        let mut before = 0;
        let is_set = set_mask(mask | signals::of_samplers(), &raw mut before);
        // SAFETY: an action's handler; the kernel passes all three arguments to each.
        unsafe { std::mem::transmute::<usize, Handler>(action.sa_sigaction)(signal, info, context) };
        // Another handler may have passed the signal on to ours, and goes on with its own mask.
        if is_set {
            set_mask(before, ptr::null_mut());
        }
        return 0;
    }
    if must_move {
        // Case 3.
        // SAFETY: the kernel's frame, on an alternate stack that the interrupted code is not on.
        unsafe { KernelFrame::go_on_below(frame.cast(), action.sa_sigaction, signal, mask) };
        return 0;
    }
    // Case 2. On an alternate stack a sample's frame could overflow it.
    let samplers = if place == Place::Interrupted { 0 } else { signals::of_samplers() };
    set_mask(mask | samplers, ptr::null_mut());
    action.sa_sigaction
}

/// The stack that a frame of the kernel's lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The stack of the interrupted code, which is no alternate stack.
    Interrupted,
    /// The alternate stack, on which the interrupted code was, too.
    Alternate,
    /// The alternate stack, to which the kernel has moved for the handler.
    Moved,
    /// An unknown stack.
    Unknown,
}

impl Place {
    /// # Safety
    ///
    /// The frame and its context are the kernel's.
    unsafe fn of(frame: *const SignalFrame, context: *const libc::ucontext_t) -> Self {
        // SAFETY: the kernel has filled it in.
        let (stack, interrupted) =
            unsafe { ((*context).uc_stack, arch::interrupted(&(*context).uc_mcontext).stack) };
        let low = stack.ss_sp.addr();
        let is_on = |at: usize| at > low && at - low <= stack.ss_size;
        match (is_on(frame.addr()), is_on(interrupted)) {
            (false, _) => Self::Interrupted,
            (true, true) => Self::Alternate,
            (true, false) => Self::Moved,
        }
    }
}

/// Sets the thread's mask; whether that was possible.
fn set_mask(mask: u64, before: *mut u64) -> bool {
    let size = size_of::<u64>();
    // SAFETY: the kernel reads and writes sets of 64 bits, which these are; or null.
    keeping_errno(|| unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, before, size) == 0
    })
}

/// The largest size of a signal frame on this machine, with all vector registers in use; `None`
/// before Linux 5.14.
pub fn signal_frame_bytes() -> Option<usize> {
    const AT_MINSIGSTKSZ: libc::c_ulong = 51;
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::getauxval(AT_MINSIGSTKSZ) };
    (bytes != 0).then_some(bytes as usize)
}

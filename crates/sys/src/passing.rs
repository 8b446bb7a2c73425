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
//! `get_sigframe`; `arch/x86/include/uapi/asm/sigcontext.h`: `struct _fpx_sw_bytes`.
//!
//! # Safety
//!
//! The unsafe code reads and changes what the kernel passes to a handler, and calls handlers.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

use crate::errno::keeping_errno;
use crate::signals;

/// A handler with `SA_SIGINFO`: the kernel calls all handlers so. A host's handler may unwind: it
/// may end its thread, or throw.
pub type Handler = unsafe extern "C-unwind" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void);

/// The memory that the kernel writes on the stack for a handler, without the vector registers.
#[repr(C)]
#[derive(Debug)]
pub struct SignalFrame {
    /// Where the handler returns to.
    restorer: usize,
    /// The beginning of `ucontext_t`.
    flags: u64,
    link: usize,
    stack: libc::stack_t,
    registers: libc::mcontext_t,
    mask: u64,
    info: libc::siginfo_t,
}

const _: () = assert!(offset_of!(SignalFrame, flags) == 8 && offset_of!(SignalFrame, mask) == 304);
const _: () = assert!(offset_of!(SignalFrame, info) == 312 && size_of::<SignalFrame>() == 440);

/// Defines a handler for the kernel to call, which calls `$choose` with the kernel's arguments and
/// its frame, and goes on at the address that this returns; 0: returns.
///
/// An unwinding passes through it: a handler that [`pass_on`] calls in place may unwind.
#[macro_export]
macro_rules! entry {
    ($(#[$doc:meta])* $visible:vis fn $name:ident => $choose:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        $visible unsafe extern "C-unwind" fn $name(
            signal: libc::c_int,
            info: *mut libc::siginfo_t,
            context: *mut std::ffi::c_void,
        ) {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "lea rcx, [rsp + 24]",
                "call {choose}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test rax, rax",
                "jz 2f",
                "mov r11, rax",
                "xor eax, eax",
                "jmp r11",
                "2:",
                "ret",
                ".cfi_endproc",
                choose = sym $choose,
            )
        }
    };
}

/// Defines a handler for the kernel to call that goes on as `$roomy`, or as `$cramped` if it runs
/// on an alternate stack with less than `$room` bytes left. It uses no stack and changes no
/// argument, so either may be a function of [`entry!`](crate::entry).
#[macro_export]
macro_rules! entry_with_room {
    ($(#[$doc:meta])* $visible:vis fn $name:ident: $room:expr => $roomy:path, else $cramped:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        $visible unsafe extern "C-unwind" fn $name(
            signal: libc::c_int,
            info: *mut libc::siginfo_t,
            context: *mut std::ffi::c_void,
        ) {
            std::arch::naked_asm!(
                // Above the beginning of the alternate stack; beyond its size without one.
                "mov rax, rsp",
                "sub rax, [rdx + {stack} + {low}]",
                "cmp rax, [rdx + {stack} + {size}]",
                "ja {roomy}",
                "cmp rax, {room}",
                "jae {roomy}",
                "jmp {cramped}",
                stack = const std::mem::offset_of!(libc::ucontext_t, uc_stack),
                low = const std::mem::offset_of!(libc::stack_t, ss_sp),
                size = const std::mem::offset_of!(libc::stack_t, ss_size),
                room = const $room,
                roomy = sym $roomy,
                cramped = sym $cramped,
            )
        }
    };
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

    let is_kernels = context.addr() == frame.addr() + offset_of!(SignalFrame, flags)
        && info.addr() == frame.addr() + offset_of!(SignalFrame, info);
    // SAFETY: it is the kernel's.
    let place = if is_kernels { unsafe { Place::of(frame) } } else { Place::Unknown };
    let must_move = place == Place::Moved && action.sa_flags & libc::SA_ONSTACK == 0;
    if !is_kernels || must_move && has_shadow_stack() {
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
        unsafe { go_on_below(frame, action.sa_sigaction, signal, mask) };
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
    /// The frame is the kernel's.
    unsafe fn of(frame: *const SignalFrame) -> Self {
        // SAFETY: the kernel has filled it in.
        let (stack, interrupted) = unsafe {
            ((*frame).stack, (*frame).registers.gregs[libc::REG_RSP as usize].cast_unsigned() as usize)
        };
        let low = stack.ss_sp.addr();
        let is_on = |at: usize| at > low && at - low <= stack.ss_size;
        match (is_on(frame.addr()), is_on(interrupted)) {
            (false, _) => Self::Interrupted,
            (true, true) => Self::Alternate,
            (true, false) => Self::Moved,
        }
    }
}

/// Copies a frame to the stack of the code that it interrupts, and has it lead to a handler there.
///
/// # Safety
///
/// The frame is the kernel's, on another stack than that code's.
unsafe fn go_on_below(frame: *mut SignalFrame, handler: usize, signal: libc::c_int, mask: u64) {
    const RED_ZONE: usize = 128;
    // DF, RF and TF: the kernel clears these for a handler.
    const CLEARED: i64 = 1 << 10 | 1 << 16 | 1 << 8;
    // SAFETY: all places are those of the kernel's frame, or free memory of the interrupted stack:
    // there the kernel writes for a handler without SA_ONSTACK.
    unsafe {
        let vectors = (*frame).registers.fpregs.cast::<u8>();
        let stack = (*frame).registers.gregs[libc::REG_RSP as usize].cast_unsigned() as usize;
        let bytes = if vectors.is_null() { 0 } else { vector_bytes(vectors) };
        let vectors_to = (stack - RED_ZONE - bytes) & !63;
        let to = ((vectors_to - size_of::<SignalFrame>()) & !15) - 8;
        let to = ptr::with_exposed_provenance_mut::<SignalFrame>(to);
        ptr::copy_nonoverlapping(frame, to, 1);
        if !vectors.is_null() {
            let vectors_to = ptr::with_exposed_provenance_mut::<u8>(vectors_to);
            ptr::copy_nonoverlapping(vectors, vectors_to, bytes);
            (*to).registers.fpregs = vectors_to.cast();
        }

        let registers = &mut (*frame).registers;
        // The kernel takes this for the state that a handler begins with.
        registers.fpregs = ptr::null_mut();
        let gregs = &mut registers.gregs;
        let mut set = |register: libc::c_int, value: usize| gregs[register as usize] = value as i64;
        set(libc::REG_RIP, handler);
        set(libc::REG_RSP, to.addr());
        set(libc::REG_RDI, signal as usize);
        set(libc::REG_RSI, (&raw mut (*to).info).addr());
        set(libc::REG_RDX, (&raw mut (*to).flags).addr());
        set(libc::REG_RAX, 0);
        gregs[libc::REG_EFL as usize] &= !CLEARED;
        (*frame).mask = mask;
    }
}

/// The size of the state of the vector registers, as the kernel has laid it down.
///
/// # Safety
///
/// It begins there.
unsafe fn vector_bytes(vectors: *const u8) -> usize {
    const FXSAVE: usize = 512;
    /// Two words among the bytes that the processor leaves to software.
    const SOFTWARE: usize = 464;
    const MAGIC: u32 = 0x4650_5853;
    // SAFETY: inside of the 512 bytes.
    let [magic, size] = unsafe { vectors.add(SOFTWARE).cast::<[u32; 2]>().read_unaligned() };
    if magic == MAGIC { size as usize } else { FXSAVE }
}

/// Whether the processor keeps return addresses of this thread.
fn has_shadow_stack() -> bool {
    let pointer: u64;
    // SAFETY: reads a register; without shadow stacks it does nothing.
    unsafe {
        std::arch::asm!("xor {0:e}, {0:e}", "rdsspq {0}", out(reg) pointer, options(nomem, nostack));
    }
    pointer != 0
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

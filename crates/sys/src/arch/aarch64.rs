//! arm64.
//!
//! # Safety
//!
//! The unsafe code is single instructions, each with its reason; handlers, which the kernel calls;
//! and the frame that the kernel makes for these.
#![allow(unsafe_code)]

use std::arch::asm;
use std::mem::offset_of;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::debug_trap::{BREAKPOINT, PerfInfo};
use crate::stack::CallFrame;

pub(crate) use access::make_access;
pub(crate) use guarded::is_guarded;

/// This processor's code is here.
pub(crate) const IS_KNOWN: bool = true;

/// The signature that glibc registers for restartable sequences (`RSEQ_SIG`): `brk #0x45e0`.
pub const RSEQ_SIGNATURE: u32 = 0xd428_bc00;

/// Whether a register of the performance unit can be read. The kernel refuses it unless it is told
/// otherwise (`kernel.perf_user_access`), so counters are read by system calls.
pub(crate) const READS_COUNTERS: bool = false;

/// `PERF_REG_*` as bits, in the order in which a sample has them.
pub(crate) const UNWIND_REGISTERS: u64 = 1 << 29 | 1 << 30 | 1 << 31 | 1 << 32;

/// The place of each of these in `UserStack::registers`.
pub(crate) const REGISTER_PLACES: &[usize] = &[2, 3, 1, 0];

/// The number of registers that watch memory; where it varies, the most that there are. The kernel
/// refuses what is too much.
pub const WATCH_REGISTERS: u32 = 16;

/// Whether processors of this kind have different numbers of them, which must be counted.
pub const WATCH_REGISTERS_VARY: bool = true;

/// Whether watches of memory and of instructions take the same registers.
pub const WATCHES_SHARE_REGISTERS: bool = false;

/// The end of the address space of programs.
pub const USER_END: usize = 1 << 48;

/// No calls that only this processor has.
pub(crate) const OLD_CALLS: &[(libc::c_long, &str)] = &[];

/// How long a processor may run instructions that it fetched before a store to code: until it next
/// returns from the kernel. Each tick of the slowest kernel (100 Hz) is one such moment.
pub const SETTLE_NS: u64 = 12_000_000;

/// Whether a thread has passed the access when a watch stops it. Here it stops before it. The
/// kernel takes a single step over the access, but not where the event sends a signal: that step
/// goes into the handler, which would return to the access for ever. So the handler makes the
/// access.
pub const WATCHES_STOP_BEHIND: bool = false;

/// Whether a thread gets past the access at which a watch of its own process stops it.
pub const PASSES_WATCHES: bool = true;

/// A word of a stack, which may lie in or between variables of whatever code. An instruction of
/// ours: the compiler, and checkers of addresses, know of variables alone.
///
/// # Safety
///
/// The word can be read, and is aligned.
#[inline(always)]
pub unsafe fn stack_word(at: usize) -> usize {
    let word: usize;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("ldr {}, [{}]", out(reg) word, in(reg) at, options(readonly, nostack, preserves_flags));
    }
    word
}

/// The address of the thread's control block.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: copies a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// The part of the calling thread's control block from the place that the kernel has an address of
/// to its end, where the pointer points. The stack below may have copies of its words.
pub(crate) fn control_block() -> Option<Range<usize>> {
    const LONGEST: usize = 8192;
    const THIS_THREAD: libc::pid_t = 0;
    let (mut head, mut length) = (0_usize, 0_usize);
    // SAFETY: valid places.
    let refused =
        unsafe { libc::syscall(libc::SYS_get_robust_list, THIS_THREAD, &raw mut head, &raw mut length) } != 0;
    let end = thread_pointer() as usize;
    (!refused && (end.saturating_sub(LONGEST)..end).contains(&head)).then_some(head..end)
}

/// The registers of the calling function.
#[inline(always)]
pub(crate) fn registers() -> CallFrame {
    let (instruction, stack, frame, link);
    // SAFETY: copies four registers. The link register comes first, because a result may be in it.
    unsafe {
        asm!("mov {}, x30", "adr {}, .", "mov {}, sp", "mov {}, x29",
            out(reg) link, out(reg) instruction, out(reg) stack, out(reg) frame,
            options(nomem, nostack, preserves_flags));
    }
    CallFrame { instruction, stack, frame, link }
}

/// The registers of interrupted code.
#[inline(always)]
pub(crate) fn interrupted(registers: &libc::mcontext_t) -> CallFrame {
    CallFrame {
        instruction: registers.pc as usize,
        stack: registers.sp as usize,
        frame: registers.regs[29] as usize,
        link: registers.regs[30] as usize,
    }
}

/// Has interrupted code go on at an address.
pub(crate) fn go_on_at(registers: &mut libc::mcontext_t, address: usize) {
    registers.pc = address as u64;
    registers.pstate &= !BRANCH_KIND;
}

/// In the state of the processor: the kind of branch that led to the next instruction.
const BRANCH_KIND: u64 = 3 << 10;

/// No breakpoint instruction is ours: sites change without one.
pub(crate) fn breakpoint(_: libc::c_int, _: usize) -> Option<usize> {
    None
}

/// Each trap has a cause.
pub(crate) fn may_be_unexplained(_: libc::c_int) -> bool {
    false
}

/// `rt_sigprocmask` with an operation that does not exist, and `mask`: a negative error number.
pub(crate) fn refused_mask(mask: usize) -> isize {
    const NO_OPERATION: usize = usize::MAX;
    const MASK_BYTES: usize = 8;
    let answer: isize;
    // SAFETY: the call reads eight bytes, if it can, and changes nothing.
    unsafe {
        asm!(
            "svc 0",
            in("x8") libc::SYS_rt_sigprocmask,
            inlateout("x0") NO_OPERATION => answer,
            in("x1") mask,
            in("x2") 0_usize,
            in("x3") MASK_BYTES,
            options(nostack),
        );
    }
    answer
}

/// Fetches a cache line into all caches, without waiting for it.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    // SAFETY: a hint, which changes nothing and faults nowhere.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) };
}

/// Fetches a cache line that will be written.
#[inline(always)]
pub(crate) fn prefetch_for_write(line: *const u8) {
    // SAFETY: a hint, which changes nothing and faults nowhere.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) };
}

/// Adds to a word of the calling thread's own: a signal handler of the thread comes before it or
/// after it.
#[inline(always)]
pub fn add_here(word: &AtomicU64, n: u64) {
    word.fetch_add(n, Ordering::Relaxed);
}

/// No register can be read.
///
/// # Safety
///
/// None is needed.
#[inline(always)]
pub(crate) unsafe fn counter(_: u32) -> u64 {
    0
}

/// The instructions of [`entry!`](crate::entry).
#[doc(hidden)]
#[macro_export]
macro_rules! entry_code {
    () => {
        $crate::assembly!(
            ".cfi_startproc",
            // `bti c`: a handler is called by a register.
            "hint #34",
            "stp x29, x30, [sp, #-48]!",
            ".cfi_adjust_cfa_offset 48",
            ".cfi_rel_offset x29, 0",
            ".cfi_rel_offset x30, 8",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "mov x29, sp",
            "add x3, sp, #48",
            "bl {choose}",
            // The only registers that may lead into a function: `br` of others is no call.
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldr x2, [sp, #32]",
            "ldp x29, x30, [sp], #48",
            ".cfi_adjust_cfa_offset -48",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "cbz x16, 2f",
            "br x16",
            "2:",
            "ret",
            ".cfi_endproc",
        )
    };
}

/// Where [`entry!`](crate::entry) has the address to which a handler returns, below the kernel's
/// frame.
const RETURNS_TO: usize = 40;

/// The instructions of [`entry_with_room!`](crate::entry_with_room).
#[doc(hidden)]
#[macro_export]
macro_rules! room_code {
    () => {
        $crate::assembly!(
            "hint #34",
            // Above the beginning of the alternate stack; beyond its size without one.
            "ldr x9, [x2, #{low}]",
            "ldr x10, [x2, #{size}]",
            "mov x11, sp",
            "sub x9, x11, x9",
            "cmp x9, x10",
            "b.hi 2f",
            "mov x10, #{room}",
            "cmp x9, x10",
            "b.hs 2f",
            "b {cramped}",
            "2:",
            "b {roomy}",
        )
    };
}

/// The instructions of [`counting_entry!`](super::counting_entry). A thread that a watch has
/// stopped is still before its access: from then on it blocks SIGTRAP, so that the kernel's single
/// step gets it past that.
macro_rules! counting_code {
    () => {
        $crate::assembly!(
            "ldr w9, [x1, #{code}]",
            "cmp w9, #{event}",
            "b.ne 3f",
            "ldr x9, [x1, #{data}]",
            "lsr x9, x9, #52",
            "cmp x9, #{ours}",
            "b.ne 3f",
            "adrp x9, {count}",
            "add x9, x9, :lo12:{count}",
            "2:",
            "ldxr x10, [x9]",
            "add x10, x10, #1",
            "stxr w11, x10, [x9]",
            "cbnz w11, 2b",
            "ldr w9, [x1, #32]",
            "cmp w9, #5",
            "b.ne 4f",
            "ldr x9, [x2, #40]",
            "orr x9, x9, #16",
            "str x9, [x2, #40]",
            "4:",
            "ret",
            "3:",
            "b {go_on}",
        )
    };
}
pub(crate) use counting_code;
const _: () = assert!(
    offset_of!(PerfInfo, kind) == 32
        && BREAKPOINT == 5
        && offset_of!(libc::ucontext_t, uc_sigmask) == 40
        && 1 << (libc::SIGTRAP - 1) == 16
);

/// The beginning of the memory that the kernel writes on the stack for a handler. Behind it may lie
/// more state of vector registers, and then a frame record.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct KernelFrame {
    info: libc::siginfo_t,
    context: libc::ucontext_t,
}

/// The place of the records of state in the frame.
const RECORDS: usize = offset_of!(KernelFrame, context) + offset_of!(libc::ucontext_t, uc_mcontext) + 288;
const _: () = assert!(RECORDS == 128 + 176 + 288 && size_of::<KernelFrame>() == RECORDS + 4096);

/// Kinds of records: more records elsewhere, scalable vectors, and their matrices.
const MORE: u32 = 0x4558_5401;
const VECTORS: u32 = 0x5356_4501;
const MATRICES: u32 = 0x5436_6345;

impl KernelFrame {
    /// Whether the layout is known.
    pub(crate) const IS_KNOWN: bool = true;
    /// The places of the context and the information in it.
    pub(crate) const CONTEXT: usize = offset_of!(KernelFrame, context);
    pub(crate) const INFO: usize = offset_of!(KernelFrame, info);

    /// Calls `each` for the records of state, with the kind and the place of each.
    ///
    /// # Safety
    ///
    /// The frame is the kernel's.
    unsafe fn records(frame: *mut Self, mut each: impl FnMut(u32, *mut u8)) {
        // SAFETY: the kernel ends each list by a record without a size. There is one list elsewhere
        // at most, of which the first has a record.
        unsafe {
            let (mut at, mut more) = (frame.cast::<u8>().add(RECORDS), ptr::null_mut::<u8>());
            loop {
                let [kind, size] = at.cast::<[u32; 2]>().read();
                if size == 0 {
                    if more.is_null() {
                        return;
                    }
                    (at, more) = (more, ptr::null_mut());
                    continue;
                }
                each(kind, at);
                if kind == MORE {
                    more = at.add(8).cast::<*mut u8>().read();
                }
                at = at.add(size as usize);
            }
        }
    }

    /// Whether the frame must stay where it is: the processor keeps return addresses of this thread
    /// (guarded control stacks), or the interrupted code runs in a mode in which a handler may not.
    ///
    /// # Safety
    ///
    /// The frame is the kernel's.
    pub(crate) unsafe fn must_stay(frame: *mut Self) -> bool {
        let is_without: u64;
        // SAFETY: asks for a feature; processors that do not know the instruction do nothing.
        unsafe {
            asm!("mov x16, #1", "hint #40", "mov {}, x16", out(reg) is_without, out("x16") _,
                options(nomem, nostack, preserves_flags));
        }
        let mut is_streaming = false;
        // SAFETY: the caller's promise. A record of vectors has its flags behind its length (bit 0:
        // streaming); one of matrices that are off has a head alone.
        unsafe {
            Self::records(frame, |kind, at| {
                is_streaming |= match kind {
                    VECTORS => at.add(10).cast::<u16>().read() & 1 != 0,
                    MATRICES => at.add(4).cast::<u32>().read() > 16,
                    _ => false,
                };
            });
        }
        is_without == 0 || is_streaming
    }

    /// Copies a frame to the stack of the code that it interrupts, and has it lead to a handler
    /// there.
    ///
    /// # Safety
    ///
    /// The frame is the kernel's, on another stack than that code's, and [`entry!`](crate::entry)
    /// runs below it.
    pub(crate) unsafe fn go_on_below(frame: *mut Self, handler: usize, signal: libc::c_int, mask: u64) {
        /// The two words of a frame record.
        const RECORD: usize = 16;
        // SAFETY: all places are those of the kernel's frame, or free memory of the interrupted
        // stack: there the kernel writes for a handler without SA_ONSTACK.
        unsafe {
            let from = interrupted(&(*frame).context.uc_mcontext);
            let mut end = frame.addr() + size_of::<Self>();
            Self::records(frame, |kind, at| {
                if kind == MORE {
                    end = at.add(8).cast::<usize>().read() + at.add(16).cast::<u32>().read() as usize;
                }
            });
            let bytes = (end - frame.addr()).next_multiple_of(16);
            let to = ((from.stack & !15) - RECORD - bytes) as *mut u8;
            ptr::copy_nonoverlapping(frame.cast::<u8>(), to, bytes);
            let to = to.cast::<Self>();
            Self::move_more(to, to.addr().wrapping_sub(frame.addr()));
            let record = to.byte_add(bytes).cast::<[usize; 2]>();
            record.write([from.frame, from.link]);

            let returns_to = frame.byte_sub(RETURNS_TO).cast::<u64>().read();
            let registers = &mut (*frame).context.uc_mcontext;
            registers.pc = handler as u64;
            registers.sp = to.addr() as u64;
            registers.regs[0] = signal as u64;
            registers.regs[1] = (&raw mut (*to).info).addr() as u64;
            registers.regs[2] = (&raw mut (*to).context).addr() as u64;
            registers.regs[29] = record.addr() as u64;
            registers.regs[30] = returns_to;
            registers.pstate &= !BRANCH_KIND;
            (&raw mut (*frame).context.uc_sigmask).cast::<u64>().write(mask);
        }
    }

    /// Has a copied frame refer to its own records.
    ///
    /// # Safety
    ///
    /// It is a copy of the kernel's, this far from it.
    unsafe fn move_more(copy: *mut Self, distance: usize) {
        // SAFETY: the first list of records is inside of the copy.
        unsafe {
            let mut at = copy.cast::<u8>().add(RECORDS);
            loop {
                let [kind, size] = at.cast::<[u32; 2]>().read();
                match (kind, size) {
                    (_, 0) => return,
                    (MORE, _) => {
                        let place = at.add(8).cast::<usize>();
                        place.write(place.read().wrapping_add(distance));
                        return;
                    }
                    _ => at = at.add(size as usize),
                }
            }
        }
    }
}

/// The address of the calling thread's instance of a thread-local symbol, by a TLS descriptor.
macro_rules! address_of_thread_local {
    ($symbol:expr) => {{
        let address;
        // SAFETY: the sequence of the processor's ABI supplement. The loader may allocate the
        // thread's storage in the call, so it is a call of C's.
        unsafe {
            std::arch::asm!(
                concat!("adrp x0, :tlsdesc:", $symbol),
                concat!("ldr x1, [x0, :tlsdesc_lo12:", $symbol, "]"),
                concat!("add x0, x0, :tlsdesc_lo12:", $symbol),
                concat!(".tlsdesccall ", $symbol),
                "blr x1",
                "mrs x1, tpidr_el0",
                "add x0, x0, x1",
                out("x0") address,
                clobber_abi("C"),
            );
        }
        address
    }};
}
pub(crate) use address_of_thread_local;

#[path = "aarch64_access.rs"]
mod access;
#[path = "aarch64_guarded.rs"]
mod guarded;
#[cfg(test)]
#[path = "aarch64_tests.rs"]
mod tests;

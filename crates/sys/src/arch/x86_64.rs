//! x86-64.
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
use std::sync::atomic::AtomicU64;

use crate::stack::CallFrame;
use crate::trap_types::Made;

/// This processor's code is here.
pub(crate) const IS_KNOWN: bool = true;

/// The signature that glibc registers for restartable sequences (`RSEQ_SIG`).
pub const RSEQ_SIGNATURE: u32 = 0x5305_3053;

/// Whether a register of the performance unit can be read.
pub(crate) const READS_COUNTERS: bool = true;

/// `PERF_REG_*` as bits, in the order in which a sample has them.
pub(crate) const UNWIND_REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;

/// The place of each of these in `UserStack::registers`.
pub(crate) const REGISTER_PLACES: &[usize] = &[2, 1, 0];

/// The number of registers that watch memory; where it varies, the most that there are. The kernel
/// refuses what is too much.
pub const WATCH_REGISTERS: u32 = 4;

/// Whether processors of this kind have different numbers of them, which must be counted.
pub const WATCH_REGISTERS_VARY: bool = false;

/// Whether watches of memory and of instructions take the same registers.
pub const WATCHES_SHARE_REGISTERS: bool = true;

/// The end of the address space of programs.
pub const USER_END: usize = 1 << 47;

/// The calls that only this processor has, and in which threads are found asleep.
pub(crate) const OLD_CALLS: &[(libc::c_long, &str)] = calls![
    SYS_poll SYS_select SYS_epoll_wait SYS_open SYS_stat SYS_lstat SYS_rename SYS_unlink SYS_mkdir SYS_rmdir
    SYS_truncate SYS_pause SYS_fork SYS_vfork SYS_newfstatat
];

/// How long a processor may run instructions that it fetched before a store to code, with a wide
/// margin. It fetches again by itself.
pub const SETTLE_NS: u64 = 1_000_000;

/// Whether a thread has passed the access when a watch stops it.
pub const WATCHES_STOP_BEHIND: bool = true;

/// Whether a thread gets past the access at which a watch of its own process stops it.
pub const PASSES_WATCHES: bool = true;

/// Makes the access before which code was interrupted. `None`: watches stop
/// behind it.
///
/// # Safety
///
/// None is needed.
pub(crate) unsafe fn make_access(_: *mut std::ffi::c_void) -> Option<Made> {
    None
}

/// Whether the loader adds a permission to the code of an object with these properties (the note
/// `NT_GNU_PROPERTY_TYPE_0`). It adds none here, and `mprotect` keeps a page's
/// protection key.
pub(crate) fn is_guarded(_: &[u8]) -> bool {
    false
}

/// The address of the thread's control block.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: the thread control block's first word is its own address.
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
    }
    pointer
}

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
        asm!("mov {}, [{}]", out(reg) word, in(reg) at, options(readonly, nostack, preserves_flags));
    }
    word
}

/// The calling thread's control block: from its pointer on, and no longer than this.
pub(crate) fn control_block() -> Option<Range<usize>> {
    const LONGEST: usize = 8192;
    let pointer = thread_pointer() as usize;
    Some(pointer..pointer.checked_add(LONGEST)?)
}

/// The registers of the calling function.
#[inline(always)]
pub(crate) fn registers() -> CallFrame {
    let (instruction, stack, frame);
    // SAFETY: copies three registers.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp",
            out(reg) instruction, out(reg) stack, out(reg) frame,
            options(nomem, nostack, preserves_flags));
    }
    CallFrame { instruction, stack, frame, link: 0 }
}

/// The registers of interrupted code.
#[inline(always)]
pub(crate) fn interrupted(registers: &libc::mcontext_t) -> CallFrame {
    let register = |name: libc::c_int| registers.gregs[name as usize] as usize;
    CallFrame {
        instruction: register(libc::REG_RIP),
        stack: register(libc::REG_RSP),
        frame: register(libc::REG_RBP),
        link: 0,
    }
}

/// Has interrupted code go on at an address.
pub(crate) fn go_on_at(registers: &mut libc::mcontext_t, address: usize) {
    registers.gregs[libc::REG_RIP as usize] = address as i64;
}

/// The address of the breakpoint instruction that has trapped with this code, behind which the
/// interrupted code stands.
pub(crate) fn breakpoint(code: libc::c_int, instruction: usize) -> Option<usize> {
    /// The kernel's code for `int3`; debug registers, single steps and `kill` have others.
    const SI_KERNEL: libc::c_int = 0x80;
    (code == SI_KERNEL).then(|| instruction.wrapping_sub(1))
}

/// Whether a trap with this code may have no cause, if no `int1` stands at the address or before
/// it. The codes are those of an exception without a cause, and of a register that is free. (Those
/// of a tracer's registers go to the tracer.)
pub(crate) fn may_be_unexplained(code: libc::c_int) -> bool {
    const TRAP_BRKPT: libc::c_int = 1;
    const TRAP_HWBKPT: libc::c_int = 4;
    matches!(code, TRAP_BRKPT | TRAP_HWBKPT)
}

/// `rt_sigprocmask` with an operation that does not exist, and `mask`: a negative error number.
pub(crate) fn refused_mask(mask: usize) -> isize {
    const NO_OPERATION: usize = usize::MAX;
    const MASK_BYTES: usize = 8;
    let answer: isize;
    // SAFETY: the call reads eight bytes, if it can, and changes nothing. The instruction changes
    // the registers that are named here.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_rt_sigprocmask as isize => answer,
            in("rdi") NO_OPERATION,
            in("rsi") mask,
            in("rdx") 0_usize,
            in("r10") MASK_BYTES,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Fetches a cache line into all caches, without waiting for it.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint; nothing is accessed, and SSE is part of x86-64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

/// Fetches a cache line that will be written.
#[inline(always)]
pub(crate) fn prefetch_for_write(line: *const u8) {
    // SAFETY: a hint, which changes nothing and faults nowhere.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) };
}

/// Adds to a word of the calling thread's own, in one instruction: a signal handler of the thread
/// comes before it or after it. Without `lock`, because no other thread writes the word.
#[inline(always)]
pub fn add_here(word: &AtomicU64, n: u64) {
    // SAFETY: a valid word, which other threads only read.
    unsafe { asm!("add qword ptr [{}], {}", in(reg) word.as_ptr(), in(reg) n, options(nostack)) };
}

/// Register `number` of the performance unit, in the numbering of `rdpmc`.
///
/// # Safety
///
/// The kernel permits it to this process.
#[inline(always)]
pub(crate) unsafe fn counter(number: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: permitted, as the caller promises. Not `nomem`: it stays between the readings of the
    // page.
    unsafe {
        asm!("rdpmc", in("ecx") number, out("eax") low, out("edx") high, options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// The instructions of [`entry!`](crate::entry).
#[doc(hidden)]
#[macro_export]
macro_rules! entry_code {
    () => {
        $crate::assembly!(
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
        )
    };
}

/// The instructions of [`entry_with_room!`](crate::entry_with_room).
#[doc(hidden)]
#[macro_export]
macro_rules! room_code {
    () => {
        $crate::assembly!(
            // Above the beginning of the alternate stack; beyond its size without one.
            "mov rax, rsp",
            "sub rax, [rdx + {low}]",
            "cmp rax, [rdx + {size}]",
            "ja {roomy}",
            "cmp rax, {room}",
            "jae {roomy}",
            "jmp {cramped}",
        )
    };
}

/// The instructions of [`counting_entry!`](super::counting_entry).
macro_rules! counting_code {
    () => {
        $crate::assembly!(
            "cmp dword ptr [rsi + {code}], {event}",
            "jne {go_on}",
            "mov rax, qword ptr [rsi + {data}]",
            "shr rax, 52",
            "cmp eax, {ours}",
            "jne {go_on}",
            "lock inc qword ptr [rip + {count}]",
            "ret",
        )
    };
}
pub(crate) use counting_code;

/// The memory that the kernel writes on the stack for a handler, without the vector registers.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct KernelFrame {
    /// Where the handler returns to.
    restorer: usize,
    /// The beginning of `ucontext_t`.
    flags: u64,
    link: usize,
    stack: libc::stack_t,
    registers: Registers,
    mask: u64,
    info: libc::siginfo_t,
}

/// `mcontext_t`: musl's has no name for the vector registers.
#[repr(C)]
#[derive(Debug)]
struct Registers {
    gregs: [i64; 23],
    vectors: *mut u8,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Registers>() == size_of::<libc::mcontext_t>());
const _: () = assert!(offset_of!(KernelFrame, flags) == 8 && offset_of!(KernelFrame, mask) == 304);
const _: () = assert!(offset_of!(KernelFrame, info) == 312 && size_of::<KernelFrame>() == 440);

impl KernelFrame {
    /// Whether the layout is known.
    pub(crate) const IS_KNOWN: bool = true;
    /// The places of the context and the information in it.
    pub(crate) const CONTEXT: usize = offset_of!(KernelFrame, flags);
    pub(crate) const INFO: usize = offset_of!(KernelFrame, info);

    /// Whether the frame must stay where it is: the processor keeps return addresses of this thread
    /// (a shadow stack).
    ///
    /// # Safety
    ///
    /// None is needed.
    pub(crate) unsafe fn must_stay(_: *mut Self) -> bool {
        let pointer: u64;
        // SAFETY: reads a register; without shadow stacks it does nothing.
        unsafe {
            asm!("xor {0:e}, {0:e}", "rdsspq {0}", out(reg) pointer, options(nomem, nostack));
        }
        pointer != 0
    }

    /// Copies a frame to the stack of the code that it interrupts, and has it lead to a handler
    /// there.
    ///
    /// # Safety
    ///
    /// The frame is the kernel's, on another stack than that code's.
    pub(crate) unsafe fn go_on_below(frame: *mut Self, handler: usize, signal: libc::c_int, mask: u64) {
        const RED_ZONE: usize = 128;
        // DF, RF and TF: the kernel clears these for a handler.
        const CLEARED: i64 = 1 << 10 | 1 << 16 | 1 << 8;
        // SAFETY: all places are those of the kernel's frame, or free memory of the interrupted
        // stack: there the kernel writes for a handler without SA_ONSTACK.
        unsafe {
            let vectors = (*frame).registers.vectors;
            let stack = (*frame).registers.gregs[libc::REG_RSP as usize].cast_unsigned() as usize;
            let bytes = if vectors.is_null() { 0 } else { vector_bytes(vectors) };
            let vectors_to = (stack - RED_ZONE - bytes) & !63;
            let to = ((vectors_to - size_of::<KernelFrame>()) & !15) - 8;
            let to = ptr::with_exposed_provenance_mut::<KernelFrame>(to);
            ptr::copy_nonoverlapping(frame, to, 1);
            if !vectors.is_null() {
                let vectors_to = ptr::with_exposed_provenance_mut::<u8>(vectors_to);
                ptr::copy_nonoverlapping(vectors, vectors_to, bytes);
                (*to).registers.vectors = vectors_to;
            }

            let registers = &mut (*frame).registers;
            // The kernel takes this for the state that a handler begins with.
            registers.vectors = ptr::null_mut();
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

/// The address of the calling thread's instance of a thread-local symbol, by a TLS descriptor.
macro_rules! address_of_thread_local {
    ($symbol:expr) => {{
        let address;
        // SAFETY: the sequence of the processor's ABI supplement. The loader may allocate the
        // thread's storage in the call, so it is a call of C's (not `nostack`, nor the registers
        // that only the constant forms leave alone: glibc before 2.40 lost some).
        unsafe {
            std::arch::asm!(
                concat!("lea rax, [rip + ", $symbol, "@tlsdesc]"),
                concat!("call [rax + ", $symbol, "@tlscall]"),
                "add rax, qword ptr fs:[0]",
                out("rax") address,
                clobber_abi("C"),
            );
        }
        address
    }};
}
pub(crate) use address_of_thread_local;

#[cfg(test)]
mod tests {
    use crate::trap::{Verdict, install};

    #[test]
    fn the_handler_blocks_for_a_moment() {
        static SEEN: std::sync::Mutex<Option<(bool, bool)>> = std::sync::Mutex::new(None);

        fn resolve(address: usize) -> Verdict {
            // A real handler must not allocate; this one interrupts nothing. The thread that has
            // started this one may still block all signals, so only this thread's file is read.
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let blocks = crate::masks::blocks(&status, libc::SIGTRAP).unwrap();
            let for_long = crate::masks::is_blocking(crate::process::identity::tid(), libc::SIGTRAP);
            *SEEN.lock().unwrap() = Some((blocks, for_long));
            Verdict::Resume(address + 1)
        }
        dormouse_testkit::in_child(|| {
            crate::loader::pin_self().unwrap();
            install(resolve).unwrap();
            // SAFETY: the handler goes on behind it.
            unsafe { std::arch::asm!("int3") };
            assert_eq!(*SEEN.lock().unwrap(), Some((true, false)));
        });
    }
}

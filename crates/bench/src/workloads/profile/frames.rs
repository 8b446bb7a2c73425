//! A stack of known depth, and work at its end: signals to the thread, or walks of the stack.
//!
//! The frames are written in assembly, in two forms ([`Built`]), and describe their position by
//! `.cfi`. So both ways to follow a stack meet the same frames whatever flags this program was
//! built with. The outermost of them ends the chain of frame pointers. The loop that sends the
//! signals is in assembly, too, because a Rust function might use the frame pointer for something
//! else. (A walk by tables also finds the callers of the chain: the thread has a few.)
//!
//! A peer's own program contains this file, too (`bin/by_tables.rs`), so it uses nothing of the
//! bench's.
//!
//! # Safety
//!
//! The unsafe code is the chain, what it calls at its end, and handlers that do nothing.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::ffi::c_void;
use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Calls in the chain.
pub(crate) const CALLS: usize = 32;

/// How the functions of the chain are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Built {
    /// Each keeps the caller's frame pointer.
    Kept,
    /// None does: only tables lead to their callers.
    Omitted,
}

impl Built {
    pub(crate) const ALL: [Self; 2] = [Self::Kept, Self::Omitted];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Omitted => "omitted",
        }
    }
}

/// The registers at the end of the chain, in its innermost function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) instruction: usize,
    pub(crate) stack: usize,
    pub(crate) frame: usize,
}

/// `SI_TIMER`.
const SI_TIMER: i32 = -2;

/// `siginfo_t` of a timer's signal.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
struct TimerInfo {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    timer: i32,
    overrun: i32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<TimerInfo>() == 128 && std::mem::offset_of!(TimerInfo, value) == 24);

/// A signal as a timer of the calling thread would send it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimerSignal {
    pub(crate) signal: i32,
    pub(crate) value: u64,
}

impl TimerSignal {
    /// The signal of the only timer that the process has for the calling thread.
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        let path = "/proc/self/timers";
        let timers = std::fs::read_to_string(path)?;
        let own = format!("/tid.{}", rustix::thread::gettid().as_raw_nonzero());
        timers
            .split("ID: ")
            .filter(|timer| timer.lines().any(|line| line.ends_with(&own)))
            .find_map(signal_of)
            .ok_or_else(|| io::Error::other(format!("{path} shows no timer of this thread")))
    }
}

/// The signal and the value in a timer of `/proc/PID/timers`.
fn signal_of(timer: &str) -> Option<TimerSignal> {
    let said = timer.lines().find_map(|line| line.strip_prefix("signal: "))?;
    let (signal, value) = said.split_once('/')?;
    Some(TimerSignal { signal: signal.parse().ok()?, value: u64::from_str_radix(value, 16).ok()? })
}

/// The CPU time in which the calling thread takes `times` signals, each at the end of the chain.
pub(crate) fn take(signal: TimerSignal, built: Built, times: u64) -> io::Result<Duration> {
    let info = TimerInfo {
        signal: signal.signal,
        errno: 0,
        code: SI_TIMER,
        padding: 0,
        timer: 0,
        overrun: 0,
        value: signal.value,
        rest: [0; 12],
    };
    let before = thread_cpu();
    let refused = signals(built, &info, times);
    let took = thread_cpu().saturating_sub(before);
    match refused {
        0 => Ok(took),
        _ => Err(io::Error::other("the kernel refuses signals with the code of a timer")),
    }
}

#[allow(clippy::disallowed_methods, reason = "no filter, and no other library")]
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// The function that the chain calls at its end, with its argument and the registers of [`End`].
#[cfg(target_arch = "x86_64")]
type Leaf = unsafe extern "C" fn(*mut c_void, usize, usize, usize) -> u64;

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn dormouse_bench_chain_kept(calls: usize, leaf: Leaf, argument: *mut c_void) -> u64;
    fn dormouse_bench_chain_omitted(calls: usize, leaf: Leaf, argument: *mut c_void) -> u64;
    fn dormouse_bench_signals(request: *mut c_void, stack: usize, frame: usize, at: usize) -> u64;
}

/// Calls `leaf` at the end of the chain, and returns its result.
///
/// # Safety
///
/// `leaf` may be called with `argument`, and does not unwind.
#[cfg(target_arch = "x86_64")]
unsafe fn chain(built: Built, leaf: Leaf, argument: *mut c_void) -> u64 {
    // SAFETY: the chain keeps the registers that the calling convention wants kept, and uses
    // `CALLS` frames of at most 32 bytes of the stack; the rest is the caller's promise.
    unsafe {
        match built {
            Built::Kept => dormouse_bench_chain_kept(CALLS, leaf, argument),
            Built::Omitted => dormouse_bench_chain_omitted(CALLS, leaf, argument),
        }
    }
}

/// Sends the signals at the end of the chain, and returns how many were refused.
#[cfg(target_arch = "x86_64")]
fn signals(built: Built, info: &TimerInfo, times: u64) -> u64 {
    let (pid, tid) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
    let info_at = std::ptr::from_ref(info).expose_provenance() as u64;
    let mut request = [pid.into(), tid.into(), info.signal as u64, info_at, times];
    // SAFETY: `request` and `info` outlive the call.
    unsafe { chain(built, dormouse_bench_signals, (&raw mut request).cast()) }
}

/// Does `work` at the end of the chain, with the registers there. An error where no chain is
/// written for this processor. A panic of `work` ends the program.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::unnecessary_wraps, reason = "elsewhere it is an error")]
pub(crate) fn at_the_end(built: Built, work: &mut dyn FnMut(End)) -> io::Result<()> {
    unsafe extern "C" fn leaf(work: *mut c_void, stack: usize, frame: usize, instruction: usize) -> u64 {
        // SAFETY: the argument below.
        let work = unsafe { &mut *work.cast::<&mut dyn FnMut(End)>() };
        work(End { instruction, stack, frame });
        0
    }
    let mut work: &mut dyn FnMut(End) = work;
    // SAFETY: a panic does not leave an `extern "C"` function.
    unsafe { chain(built, leaf, (&raw mut work).cast()) };
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn signals(_: Built, _: &TimerInfo, _: u64) -> u64 {
    u64::MAX
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn at_the_end(_: Built, _: &mut dyn FnMut(End)) -> io::Result<()> {
    Err(io::Error::other("the chain is written for x86-64"))
}

// A chain: rdi: calls; rsi: what to call at the end; rdx: its first argument.
#[cfg(target_arch = "x86_64")]
macro_rules! chain {
    ($name:literal, [$($enter:literal),+], [$($leave:literal),+]) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            ".cfi_startproc",
            "push rbp",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset rbp, -16",
            "push rbx",
            ".cfi_def_cfa_offset 24",
            ".cfi_offset rbx, -24",
            "push r12",
            ".cfi_def_cfa_offset 32",
            ".cfi_offset r12, -32",
            "mov r8, rdi",
            "mov rbx, rsi",
            "mov r12, rdx",
            "xor ebp, ebp",
            concat!("call ", $name, "_call"),
            "pop r12",
            ".cfi_def_cfa_offset 24",
            "pop rbx",
            ".cfi_def_cfa_offset 16",
            "pop rbp",
            ".cfi_def_cfa_offset 8",
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            concat!(".type ", $name, "_call,@function"),
            concat!($name, "_call:"),
            ".cfi_startproc",
            $($enter,)+
            "dec r8",
            "jz 3f",
            concat!("call ", $name, "_call"),
            "jmp 5f",
            "3:",
            "mov rdi, r12",
            "mov rsi, rsp",
            "mov rdx, rbp",
            "lea rcx, [rip]",
            "call rbx",
            "5:",
            $($leave,)+
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, "_call, . - ", $name, "_call"),
            ".popsection",
        );
    };
}

#[cfg(target_arch = "x86_64")]
chain!(
    "dormouse_bench_chain_kept",
    [
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp"
    ],
    ["pop rbp", ".cfi_def_cfa rsp, 8"]
);

#[cfg(target_arch = "x86_64")]
chain!(
    "dormouse_bench_chain_omitted",
    ["sub rsp, 24", ".cfi_def_cfa_offset 32"],
    ["add rsp, 24", ".cfi_def_cfa_offset 8"]
);

// rdi: process, thread, signal, `siginfo_t`, how many. 297 is `rt_tgsigqueueinfo`.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.dormouse_bench_signals,\"ax\",@progbits",
    ".globl dormouse_bench_signals",
    ".hidden dormouse_bench_signals",
    ".type dormouse_bench_signals,@function",
    "dormouse_bench_signals:",
    ".cfi_startproc",
    "mov r8, rdi",
    "xor r9d, r9d",
    "2:",
    "sub qword ptr [r8 + 32], 1",
    "jc 4f",
    "mov rdi, [r8]",
    "mov rsi, [r8 + 8]",
    "mov rdx, [r8 + 16]",
    "mov r10, [r8 + 24]",
    "mov eax, 297",
    "syscall",
    "test rax, rax",
    "jz 2b",
    "inc r9",
    "jmp 2b",
    "4:",
    "mov rax, r9",
    "ret",
    ".cfi_endproc",
    ".size dormouse_bench_signals, . - dormouse_bench_signals",
    ".popsection",
);

/// While it lives, a signal has a handler that does nothing.
#[derive(Debug)]
pub(crate) struct EmptyHandler {
    signal: i32,
    before: libc::sigaction,
}

impl EmptyHandler {
    pub(crate) fn install(signal: i32) -> io::Result<Self> {
        extern "C" fn empty(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
        // SAFETY: all zeros is a valid action; the handler does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut before: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = empty as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
            if libc::sigaction(signal, &raw const action, &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self { signal, before })
        }
    }
}

impl Drop for EmptyHandler {
    fn drop(&mut self) {
        // SAFETY: what was there before; no signal is underway, for only this thread sends them.
        unsafe { libc::sigaction(self.signal, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_says_its_signal_and_value() {
        let timer = "0\nsignal: 60/0000000100000002\nnotify: signal/tid.77\nClockID: -609\n";
        let signal = signal_of(timer).unwrap();
        assert_eq!((signal.signal, signal.value), (60, 0x1_0000_0002));
        assert!(signal_of("").is_none());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_signal_is_taken_at_the_end() {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        static CHAINED: AtomicU64 = AtomicU64::new(0);
        extern "C" fn count(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
            // SAFETY: the kernel's arguments; the chain's frames are there while it runs.
            unsafe {
                let context = context.cast::<libc::ucontext_t>();
                let mut frame = (*context).uc_mcontext.gregs[libc::REG_RBP as usize] as usize;
                while frame != 0 {
                    frame = *std::ptr::with_exposed_provenance::<usize>(frame);
                    CHAINED.fetch_add(1, Relaxed);
                }
                if (*info).si_code == SI_TIMER && (*info).si_value().sival_ptr.addr() == 0x1234 {
                    TAKEN.fetch_add(1, Relaxed);
                }
            }
        }
        dormouse_testkit::in_child(|| {
            let signal = libc::SIGRTMIN() + 9;
            let mut empty = EmptyHandler::install(signal).unwrap();
            assert_eq!(empty.before.sa_sigaction, libc::SIG_DFL);
            // SAFETY: a handler that counts.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = count as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigaction(signal, &raw const action, &raw mut empty.before);
            }
            take(TimerSignal { signal, value: 0x1234 }, Built::Kept, 50).unwrap();
            assert_eq!((TAKEN.load(Relaxed), CHAINED.load(Relaxed)), (50, 50 * CALLS as u64));
            take(TimerSignal { signal, value: 0x1234 }, Built::Omitted, 50).unwrap();
            assert_eq!((TAKEN.load(Relaxed), CHAINED.load(Relaxed)), (100, 50 * CALLS as u64));
        });
    }
}

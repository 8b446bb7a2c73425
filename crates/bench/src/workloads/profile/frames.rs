//! A stack of known depth, and signals to the thread at its end.
//!
//! The frames are written in assembly: each keeps the caller's frame pointer, and describes its
//! position by `.cfi`. So both ways to follow a stack meet the same frames whatever flags this
//! program was built with. The outermost of them ends the chain of frame pointers. The loop that
//! sends the signals is in the innermost one, because a Rust function might use the frame pointer
//! for something else. (A walk by tables also finds the callers of the chain: the thread has a
//! few.)
//!
//! A peer's own program contains this file, too (`bin/by_tables.rs`), so it uses nothing of the
//! bench's.
//!
//! # Safety
//!
//! The unsafe code is the chain, and handlers that do nothing.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Calls in the chain.
pub(super) const CALLS: usize = 32;

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
pub(super) struct TimerSignal {
    pub(super) signal: i32,
    pub(super) value: u64,
}

impl TimerSignal {
    /// The signal of the only timer that the process has for the calling thread.
    pub(super) fn of_this_thread() -> io::Result<Self> {
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
pub(super) fn take(signal: TimerSignal, times: u64) -> io::Result<Duration> {
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
    let refused = chain(&info, times);
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

/// Sends the signals, and returns how many were refused.
#[cfg(target_arch = "x86_64")]
fn chain(info: &TimerInfo, times: u64) -> u64 {
    unsafe extern "C" {
        fn dormouse_bench_chain(calls: usize, times: u64, request: *const [u64; 4]) -> u64;
    }
    let (pid, tid) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
    let info_at = std::ptr::from_ref(info).expose_provenance() as u64;
    let request = [pid.into(), tid.into(), info.signal as u64, info_at];
    // SAFETY: the chain keeps the registers that the calling convention wants kept, and uses
    // `CALLS` frames of 16 bytes of the stack; `request` and `info` outlive it.
    unsafe { dormouse_bench_chain(CALLS, times, &raw const request) }
}

#[cfg(not(target_arch = "x86_64"))]
fn chain(_: &TimerInfo, _: u64) -> u64 {
    u64::MAX
}

// rdi: calls; rsi: signals; rdx: process, thread, signal, `siginfo_t`. 297 is `rt_tgsigqueueinfo`.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.dormouse_bench_chain,\"ax\",@progbits",
    ".globl dormouse_bench_chain",
    ".hidden dormouse_bench_chain",
    ".type dormouse_bench_chain,@function",
    "dormouse_bench_chain:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "push rbx",
    ".cfi_def_cfa_offset 24",
    ".cfi_offset rbx, -24",
    "mov r8, rdi",
    "mov rbx, rsi",
    "mov r9, rdx",
    "mov rdi, [r9]",
    "mov rsi, [r9 + 8]",
    "mov rdx, [r9 + 16]",
    "mov r10, [r9 + 24]",
    "xor r9d, r9d",
    "xor ebp, ebp",
    "call dormouse_bench_chain_call",
    "mov rax, r9",
    "pop rbx",
    ".cfi_def_cfa_offset 16",
    "pop rbp",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size dormouse_bench_chain, . - dormouse_bench_chain",
    ".type dormouse_bench_chain_call,@function",
    "dormouse_bench_chain_call:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "dec r8",
    "jz 3f",
    "call dormouse_bench_chain_call",
    "jmp 5f",
    "3:",
    "test rbx, rbx",
    "jz 5f",
    "mov eax, 297",
    "syscall",
    "test rax, rax",
    "jz 4f",
    "inc r9",
    "4:",
    "dec rbx",
    "jmp 3b",
    "5:",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size dormouse_bench_chain_call, . - dormouse_bench_chain_call",
    ".popsection",
);

/// While it lives, a signal has a handler that does nothing.
#[derive(Debug)]
pub(super) struct EmptyHandler {
    signal: i32,
    before: libc::sigaction,
}

impl EmptyHandler {
    pub(super) fn install(signal: i32) -> io::Result<Self> {
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
            take(TimerSignal { signal, value: 0x1234 }, 50).unwrap();
            assert_eq!((TAKEN.load(Relaxed), CHAINED.load(Relaxed)), (50, 50 * CALLS as u64));
        });
    }
}

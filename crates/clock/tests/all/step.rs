//! A signal handler between any two instructions of a read, and of a resync.
//!
//! The processor's trap flag stops a read after each instruction. At one of them the handler reads
//! the clock itself, or has the thread taken off its processor first; the next run stops one
//! instruction later, until the read is over before that.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code)]

use crate::each_tier;
use crate::kernel;

use std::arch::asm;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use dormouse_clock::{CpuTime, Tier, thread_cpu_ns, thread_cpu_time, tier};
use dormouse_testkit::{Child, is_long};
use each_tier::{EACH_TIER, has_wanted_tier};
use kernel::kernel_ns;

const TRAP_FLAG: i64 = 0x100;
/// The sleep of a handler: much less than an epoch, so that only the proof can tell.
const AWAY: Duration = Duration::from_micros(300);

/// The instructions between two stops of a sample.
const STRIDE: u64 = 1999;

/// Instructions so far; at which one the handler reads; whether it sleeps before that; what it
/// read.
static AT: AtomicU64 = AtomicU64::new(0);
static STOP_AT: AtomicU64 = AtomicU64::new(0);
static SLEEPS: AtomicBool = AtomicBool::new(false);
static READ: AtomicU64 = AtomicU64::new(0);

extern "C" fn trapped(_signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    if AT.fetch_add(1, Ordering::Relaxed) + 1 < STOP_AT.load(Ordering::Relaxed) {
        return;
    }
    if SLEEPS.load(Ordering::Relaxed) {
        let away = libc::timespec { tv_sec: 0, tv_nsec: i64::from(AWAY.subsec_nanos()) };
        // SAFETY: a valid place; the call is async-signal-safe.
        unsafe { libc::nanosleep(&raw const away, std::ptr::null_mut()) };
    }
    READ.store(thread_cpu_ns(), Ordering::Relaxed);
    // The rest goes on undisturbed.
    // SAFETY: the kernel passes a context of this type.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
}

/// A read that is stopped after `stop_at` instructions; whether it was as long as that.
fn stopped(stop_at: u64) -> (CpuTime, bool) {
    AT.store(0, Ordering::Relaxed);
    STOP_AT.store(stop_at, Ordering::Relaxed);
    // SAFETY: the handler is installed; the flag is cleared by it or below.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    let time = thread_cpu_time();
    // SAFETY: as it was.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    (time, AT.load(Ordering::Relaxed) >= stop_at)
}

/// Stops a read at one instruction after another. `resyncs`: it finds that the thread was away.
fn at_every_instruction(resyncs: bool, sleeps: bool) -> u64 {
    SLEEPS.store(sleeps, Ordering::Relaxed);
    let every = is_long();
    let (mut stop_at, mut wrong) = (1, 0);
    loop {
        let before = thread_cpu_ns();
        if resyncs {
            thread::sleep(AWAY);
        }
        READ.store(0, Ordering::Relaxed);
        let (time, was_stopped) = stopped(stop_at);
        let (next, kernel) = (thread_cpu_ns(), kernel_ns());
        assert!(time.ns >= before, "{time:?} after {before}, stopped at {stop_at}");
        assert!(next >= time.ns.max(READ.load(Ordering::Relaxed)), "{next} after {time:?}");
        if !was_stopped {
            return stop_at;
        }
        if time.ns.max(next) > kernel + AWAY.as_nanos() as u64 / 2 {
            // A hypervisor may have taken the processor away, but not each time.
            wrong += 1;
            assert!(wrong < 5, "{time:?}, {next} for {kernel}: a sleep at instruction {stop_at} was counted");
            continue;
        }
        wrong = 0;
        // Every one in a short read. Where there are thousands, and in a short run, a few, which
        // are others in each process: each stop goes through all before.
        stop_at += match stop_at {
            _ if every => 1,
            ..150 => 1,
            150 => u64::from(std::process::id()) % STRIDE + 1,
            _ => STRIDE,
        };
    }
}

#[test]
fn a_handler_between_any_instructions_does_no_harm() {
    Child::new().with_each(EACH_TIER).run(|| {
        if !has_wanted_tier() {
            return;
        }
        // SAFETY: an all-zero action is valid; the handler calls only what is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = trapped as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()), 0);
        }
        for resyncs in [false, true] {
            for sleeps in [false, true] {
                let instructions = at_every_instruction(resyncs, sleeps);
                assert!(instructions > 20, "{instructions}");
            }
        }
        assert_ne!(tier(), Tier::Syscall);
    });
}

//! Handlers that ours passes a signal on to, and the length of a tick, on arm64.
//!
//! # Safety
//!
//! The unsafe code installs handlers that stay, and sends a signal to its own thread.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::{mem, thread};

use super::*;
use crate::trap::{Verdict, install};

/// The handler's calls, its stack, the signals that it blocks, and whether its arguments lie on its
/// stack.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static STACK: AtomicUsize = AtomicUsize::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);
static IS_RIGHT: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn look(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let here = registers().stack;
    let mut mask = 0_u64;
    // SAFETY: reads this thread's mask, and the kernel's arguments. Registers of vectors belong
    // to the handler.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, 0, ptr::null::<u64>(), &raw mut mask, 8);
        asm!("movi v9.2d, #0", "movi v17.2d, #0", out("v9") _, out("v17") _);
        let is_near = |at: usize| at > here && at - here < 64 * 1024;
        let is_right = signal == libc::SIGTRAP
            && (*info).si_signo == signal
            && is_near(info.addr())
            && is_near(context.addr());
        IS_RIGHT.store(is_right, Ordering::Relaxed);
    }
    STACK.store(here, Ordering::Relaxed);
    BLOCKED.store(mask, Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// Sends this thread the signal with values in registers, and returns whether they are there
/// behind it.
fn signal_keeps_all() -> bool {
    let (rest, vectors): (u64, u64);
    // SAFETY: the handler goes on behind the call, which changes x0 alone.
    unsafe {
        let (pid, tid) = (libc::getpid(), libc::gettid());
        asm!(
            "mov x9, #0x1234",
            "dup v9.2d, x9",
            "dup v17.2d, x9",
            "mov x17, x9",
            "mov x26, x9",
            "cmp x9, x9",
            "svc 0",
            "cset x10, ne",
            "eor x17, x17, x9",
            "eor x26, x26, x9",
            "orr x10, x10, x17",
            "orr x10, x10, x26",
            "umov x11, v9.d[1]",
            "eor x11, x11, x9",
            "umov x12, v17.d[0]",
            "eor x12, x12, x9",
            "orr x11, x11, x12",
            "orr x10, x10, x0",
            in("x8") libc::SYS_tgkill,
            inout("x0") u64::from(pid.cast_unsigned()) => _,
            in("x1") tid,
            in("x2") libc::SIGTRAP,
            out("x9") _, out("x10") rest, out("x11") vectors, out("x12") _, out("x17") _,
            out("x26") _, out("v9") _, out("v17") _,
        );
    }
    rest | vectors == 0
}

#[test]
fn handlers_run_where_they_asked_to() {
    dormouse_testkit::in_child(|| {
        crate::loader::pin_self().unwrap();
        for (number, flags) in [0, libc::SA_ONSTACK, libc::SA_NODEFER].into_iter().enumerate() {
            dormouse_testkit::fork(|| {
                // SAFETY: plain numbers, a whole set, and memory that stays.
                unsafe {
                    let mut action: libc::sigaction = mem::zeroed();
                    action.sa_sigaction = look as *const () as usize;
                    action.sa_flags = flags | libc::SA_SIGINFO;
                    libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
                    assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, ptr::null_mut()), 0);
                }
                install(|_| Verdict::Foreign).unwrap();
                thread::spawn(move || {
                    let memory = Box::leak(vec![0_u128; 4096].into_boxed_slice()).as_mut_ptr();
                    let stack = libc::stack_t { ss_sp: memory.cast(), ss_flags: 0, ss_size: 64 * 1024 };
                    // SAFETY: memory that stays.
                    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) }, 0);
                    for call in 1..=3 {
                        assert!(signal_keeps_all(), "{number}");
                        assert_eq!(CALLS.load(Ordering::Relaxed), call);
                        assert!(IS_RIGHT.load(Ordering::Relaxed), "{number}");
                        let at = STACK.load(Ordering::Relaxed).wrapping_sub(memory.addr());
                        assert_eq!(at < 64 * 1024, flags & libc::SA_ONSTACK != 0, "{number}: {at:#x}");
                        let bit = |signal: libc::c_int| 1_u64 << (signal - 1);
                        let itself = if flags & libc::SA_NODEFER == 0 { bit(libc::SIGTRAP) } else { 0 };
                        let blocked = BLOCKED.load(Ordering::Relaxed);
                        assert_eq!(blocked, bit(libc::SIGUSR1) | itself, "{number}");
                    }
                })
                .join()
                .unwrap();
            })
            .success()
            .then_some(())
            .expect("the child's assertions");
        }
    });
}

#[test]
fn a_wait_outlasts_a_tick_of_any_kernel() {
    let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    for tick_ns in [tick.tv_nsec.cast_unsigned(), 10_000_000] {
        assert!(SETTLE_NS > tick_ns, "a tick of {tick_ns} ns");
    }
}

//! Limits: what cannot be sampled is told.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dormouse_profile::{Profile, Profiling, capability};
use dormouse_sys::State;
use dormouse_testkit::{Answer, Filter, eventually, in_child};

use crate::hogs::{beside, hog, leaf, options, weight_in};
use crate::samples::nothing_is_left;

const WORK: Duration = Duration::from_millis(300);

/// A profile of a hog that nobody could sample.
fn unseen(profile: &Profile) {
    let coverage = &profile.coverage;
    assert_eq!(profile.samples, []);
    assert_eq!((coverage.armed, coverage.refused), (0, coverage.threads), "{coverage:?}");
    assert!(coverage.refused >= 1, "{coverage:?}");
    // Once, however many threads and looks.
    assert_eq!(coverage.notes.len(), 1, "{coverage:?}");
    // The time is known all the same.
    assert!(coverage.total >= WORK.as_nanos() as u64, "{coverage:?}");
}

#[test]
fn refused_timers_are_told() {
    in_child(|| {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid place.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const none) }, 0);
        assert_ne!(capability().state, State::Ok);
        let profiling = Profiling::start(&options(99)).unwrap();
        thread::spawn(|| hog(WORK)).join().unwrap();
        unseen(&profiling.read());
    });
}

#[test]
fn filters_that_refuse_timers_are_told() {
    in_child(|| {
        Filter::answer(Answer::Errno(libc::EPERM), &[libc::SYS_timer_create]).install_on_all_threads();
        let profiling = Profiling::start(&options(99)).unwrap();
        thread::spawn(|| hog(WORK)).join().unwrap();
        unseen(&profiling.read());
    });
}

/// Answers for the kernel, as a host does that lets nobody ask it: with another clock.
extern "C" fn answer_clock(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's context, of a call of `clock_gettime`, whose second argument is a place.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let place = registers[libc::REG_RSI as usize] as *mut libc::timespec;
        registers[libc::REG_RAX as usize] = libc::clock_gettime(libc::CLOCK_MONOTONIC, place).into();
    }
}

#[test]
fn filters_whose_handler_answers_are_heard() {
    in_child(|| {
        // SAFETY: a handler for the signal.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = answer_clock as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
            // A sample over it would ask while SIGSYS is blocked, for which the kernel kills.
            libc::sigfillset(&raw mut action.sa_mask);
            assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
        }
        Filter::answer(Answer::Trap, &[libc::SYS_clock_gettime]).install_on_all_threads();
        let profiling = Profiling::start(&options(250)).unwrap();
        beside(1, || eventually(|| profiling.read().coverage.samples > 0));
    });
}

#[test]
fn a_quarter_of_the_limit_is_used() {
    in_child(|| {
        let few = libc::rlimit { rlim_cur: 40, rlim_max: 40 };
        // SAFETY: a valid place.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const few) }, 0);
        let (end, waits) = mpsc::channel::<()>();
        let waits = std::sync::Mutex::new(waits);
        thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| _ = waits.lock().unwrap().recv());
            }
            let coverage = Profiling::start(&options(99)).unwrap().read().coverage;
            drop(end);
            if coverage.armed == 0 {
                return dormouse_testkit::skip("the user's other processes have 40 signals queued");
            }
            assert!(coverage.armed <= 10, "{coverage:?}");
            assert_eq!(coverage.armed + coverage.refused, coverage.threads, "{coverage:?}");
        });
        nothing_is_left();
    });
}

#[test]
fn threads_that_block_the_signal_are_counted() {
    in_child(|| {
        let profiling = Profiling::start(&options(99)).unwrap();
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let deaf = thread::spawn(move || {
            // SAFETY: blocks all signals for this thread.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
            }
            hog(WORK);
            tell.send(()).unwrap();
            let _ = ended.recv();
        });
        told.recv().unwrap();
        let profile = profiling.read();
        assert_eq!(profile.coverage.blocking, 1, "{:?}", profile.coverage);
        assert_eq!(weight_in(&profile, &[leaf()]), 0);
        drop(end);
        deaf.join().unwrap();
    });
}

#[test]
fn a_thousand_threads_are_armed() {
    in_child(|| {
        const THREADS: usize = 1000;
        let (end, waits) = mpsc::channel::<()>();
        let waits = std::sync::Mutex::new(waits);
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let (tell, waits) = (tell.clone(), &waits);
                let spawned = thread::Builder::new().stack_size(64 * 1024);
                let run = move || {
                    tell.send(()).unwrap();
                    _ = waits.lock().unwrap().recv();
                };
                spawned.spawn_scoped(scope, run).unwrap();
            }
            (0..THREADS).for_each(|_| told.recv().unwrap());
            let start = std::time::Instant::now();
            let profiling = Profiling::start(&options(99)).unwrap();
            eprintln!("{THREADS} threads armed in {:?}", start.elapsed());
            let coverage = profiling.read().coverage;
            drop(end);
            assert!(coverage.threads > THREADS as u64, "{coverage:?}");
            assert_eq!((coverage.armed, coverage.refused), (coverage.threads, 0), "{coverage:?}");
        });
        nothing_is_left();
    });
}

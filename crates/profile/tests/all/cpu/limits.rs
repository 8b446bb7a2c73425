//! Limits: what cannot be sampled is told.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dormouse_profile::{Profile, Profiling, capability};
use dormouse_sys::State;
use dormouse_testkit::{Answer, Filter, eventually, in_child};

use crate::arch::answer_call;

use super::hogs::{beside, hog, hog_unasked, leaf, options, weight_in};
use super::samples::nothing_is_left;

const WORK: Duration = Duration::from_millis(300);

/// A profile of a hog that nobody could sample.
fn unseen(profile: &Profile) {
    let coverage = &profile.coverage;
    assert!(profile.samples.iter().all(|row| (row.stack, row.values[0]) == (0, 0)), "{:?}", profile.samples);
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
fn timers_that_no_kernel_has_are_told() {
    in_child(|| {
        Filter::answer(Answer::Errno(libc::EINVAL), &[libc::SYS_timer_create]).install_on_all_threads();
        let profiling = Profiling::start(&options(99)).unwrap();
        thread::spawn(|| hog(WORK)).join().unwrap();
        let profile = profiling.read();
        unseen(&profile);
        assert!(!profile.coverage.notes.iter().any(|note| note.contains("ulimit")), "{:?}", profile.coverage);
    });
}

#[test]
fn threads_that_arm_themselves_keep_errno() {
    in_child(|| {
        let _profiling = Profiling::start(&options(99)).unwrap();
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid place.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const none) }, 0);
        let errno = || {
            // SAFETY: the thread's own.
            unsafe {
                *libc::__errno_location() = 77;
                dormouse_sys::thread::current();
                *libc::__errno_location()
            }
        };
        assert_eq!(thread::spawn(errno).join().unwrap(), 77);
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

#[test]
fn a_refused_clock_of_threads_is_told() {
    in_child(|| {
        Filter::refuse(&[libc::SYS_clock_gettime]).install_on_all_threads();
        let profiling = Profiling::start(&options(250)).unwrap();
        for profiling in [&profiling, &Profiling::start(&options(50)).unwrap()] {
            // Each sample stands for its period, and for those that the tick has merged with it.
            // Samples of the reads below are no measure: on a busy machine they may be most.
            eventually(|| {
                hog_unasked();
                let profile = profiling.read();
                weight_in(&profile, &[leaf()]) >= 4 * profile.period
            });
            let coverage = profiling.read().coverage;
            assert!(coverage.notes.iter().any(|note| note.contains("clock")), "{coverage:?}");
        }
    });
}

/// Answers for the kernel, as a host does that lets nobody ask it: with another clock.
#[allow(clippy::disallowed_methods, reason = "by the vDSO, which no filter hears of")]
extern "C" fn answer_clock(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's context, of a call of `clock_gettime`, whose second argument is a place.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        answer_call(registers, |place| {
            libc::clock_gettime(libc::CLOCK_MONOTONIC, place as *mut libc::timespec).into()
        });
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

/// Blocks or unblocks all signals for this thread.
fn mask(how: i32) {
    let all = all_signals();
    // SAFETY: a valid place.
    unsafe { libc::pthread_sigmask(how, &raw const all, std::ptr::null_mut()) };
}

fn all_signals() -> libc::sigset_t {
    // SAFETY: a valid place, which is then filled.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        all
    }
}

#[test]
fn threads_that_block_the_signal_are_counted() {
    in_child(|| {
        let profiling = Profiling::start(&options(99)).unwrap();
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let deaf = thread::spawn(move || {
            mask(libc::SIG_BLOCK);
            hog(WORK);
            tell.send(()).unwrap();
            let _ = ended.recv();
        });
        told.recv().unwrap();
        // A scan finds it.
        eventually(|| profiling.read().coverage.blocking == 1);
        assert_eq!(weight_in(&profiling.read(), &[leaf()]), 0);
        drop(end);
        deaf.join().unwrap();
    });
}

#[test]
fn threads_that_block_everything_have_own_rows() {
    in_child(|| {
        let profiling = Profiling::start(&options(99)).unwrap();
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let deaf = thread::Builder::new().name("deaf".into()).spawn(move || {
            // Also the signals that the C library keeps for itself.
            let (all, none) = (u64::MAX, std::ptr::null_mut::<u64>());
            // SAFETY: a valid set of 64 bits.
            unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, none, 8) };
            hog(WORK);
            tell.send(()).unwrap();
            // One that sleeps so might be starting another: it works until a scan finds it.
            while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                hog(WORK / 10);
            }
        });
        told.recv().unwrap();
        eventually(|| profiling.read().coverage.blocking == 1);
        let profile = profiling.read();
        let at = profile.threads.iter().position(|thread| thread.name == "deaf").unwrap() as u32;
        let rows = profile.samples.iter().filter(|row| row.thread == at);
        let of_it: Vec<_> = rows.map(|row| (row.stack, row.values[0], row.values[1])).collect();
        let [(0, 0, used)] = of_it[..] else { panic!("{of_it:?}") };
        assert!(used >= WORK.as_nanos() as u64 / 2, "{used}");
        drop(end);
        deaf.unwrap().join().unwrap();
    });
}

#[test]
fn armed_threads_may_block_the_signal_later() {
    in_child(|| {
        let profiling = Profiling::start(&options(99)).unwrap();
        hog(WORK);
        let before = profiling.read().coverage;
        assert_eq!((before.blocking, before.armed), (0, before.threads), "{before:?}");
        mask(libc::SIG_BLOCK);
        hog(WORK);
        let meanwhile = profiling.read().coverage;
        assert_eq!((meanwhile.blocking, meanwhile.threads), (1, before.threads), "{meanwhile:?}");
        if let Ok(timers) = std::fs::read_to_string("/proc/self/timers") {
            assert!(!timers.contains(&format!("tid.{}", dormouse_sys::process::identity::tid())), "{timers}");
        }
        mask(libc::SIG_UNBLOCK);
        eventually(|| {
            hog(WORK / 10);
            profiling.read().coverage.samples > meanwhile.samples
        });
        let after = profiling.read().coverage;
        assert_eq!((after.blocking, after.threads), (0, before.threads), "{after:?}");
    });
}

/// Uses CPU time and waits for all signals: how many came.
fn wait_for_signals() -> u32 {
    let (all, none) = (all_signals(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let mut came = 0;
    for _ in 0..30 {
        hog(WORK / 30);
        // SAFETY: valid places.
        while unsafe { libc::sigtimedwait(&raw const all, std::ptr::null_mut(), &raw const none) } > 0 {
            came += 1;
        }
    }
    came
}

#[test]
fn who_waits_for_signals_gets_none_of_ours() {
    in_child(|| {
        // Threads inherit it.
        mask(libc::SIG_BLOCK);
        let (begin, begun) = mpsc::channel::<()>();
        let before = thread::spawn(move || {
            begun.recv().unwrap();
            wait_for_signals()
        });
        let profiling = Profiling::start(&options(250)).unwrap();
        begin.send(()).unwrap();
        let behind = thread::spawn(|| {
            // It would arm itself.
            dormouse_sys::thread::current().unwrap();
            wait_for_signals()
        });
        assert_eq!(before.join().unwrap() + behind.join().unwrap() + wait_for_signals(), 0);
        let coverage = profiling.read().coverage;
        // The first thread, which waits for this one, does not block them.
        assert!((coverage.samples, coverage.armed) <= (0, 1), "{coverage:?}");
        assert!(coverage.blocking >= 2 && coverage.blocking <= coverage.threads, "{coverage:?}");
        mask(libc::SIG_UNBLOCK);
        eventually(|| {
            hog(WORK / 10);
            profiling.read().coverage.samples > 0
        });
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

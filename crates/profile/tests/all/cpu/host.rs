//! The host's own doings meanwhile: signals, forks, descriptors.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use dormouse_profile::Profiling;
use dormouse_sys::passing::signal_frame_bytes;
use dormouse_sys::process::identity;
use dormouse_sys::trap::{self, Verdict};
use dormouse_testkit::{eventually, fork, in_child};

use crate::arch;

use super::hogs::{beside, caller, hog, leaf, options, weight_in, weight_of};
use super::samples::nothing_is_left;

const WORK: Duration = Duration::from_millis(300);

/// The signals that a profile may take: SIGURG, and those that are real-time.
fn takeable() -> impl Iterator<Item = i32> {
    std::iter::once(libc::SIGURG).chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// The signals with a handler that a profile may take.
fn caught() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    takeable().filter(|signal| mask & (1 << (signal - 1)) != 0).collect()
}

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: i32) {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn count_more(_: i32) {
    CALLS.fetch_add(2, Ordering::Relaxed);
}

/// Sets a handler of the program's. No handler has most signals: that would be a runtime's, of
/// which profiles take one.
fn catch(signal: i32) {
    let handler = if signal % 2 == 0 { count } else { count_more };
    set(signal, handler as *const () as usize);
}

fn set(signal: i32, handler: usize) {
    // SAFETY: a handler that counts, or none.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// A profile begins, finds a hog, and ends.
fn finds_a_hog() {
    let profiling = Profiling::start(&options(250)).unwrap();
    let busy = || {
        // So that it is sampled at once.
        dormouse_sys::thread::current();
        hog(WORK);
    };
    thread::spawn(busy).join().unwrap();
    let profile = profiling.read();
    let found = weight_in(&profile, &[leaf(), caller()]);
    assert!(found * 2 > WORK.as_nanos() as u64, "{found}: {profile:#?}");
}

#[test]
fn used_signals_are_left_alone() {
    in_child(|| {
        // All but one, which is not the one that it would take.
        let free = libc::SIGRTMIN() + 5;
        takeable().filter(|&signal| signal != free).for_each(catch);
        finds_a_hog();
        assert_eq!(caught(), takeable().collect::<Vec<_>>());
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
        // Now none is free.
        catch(free);
        let refused = Profiling::start(&options(99)).unwrap_err();
        assert!(refused.to_string().contains("signal"), "{refused}");
        nothing_is_left();
    });
}

#[test]
fn foreign_signals_are_ignored() {
    in_child(|| {
        finds_a_hog();
        let [ours] = caught()[..] else { panic!("{:?}", caught()) };
        // SAFETY: sends signals to this thread; the last as a timer's that has no slot, or never
        // had.
        unsafe {
            assert_eq!(libc::raise(ours), 0);
            let value = libc::sigval { sival_ptr: std::ptr::null_mut() };
            assert_eq!(libc::sigqueue(libc::getpid(), ours, value), 0);
            for value in [0_u64, 1, 0x6d00_0000 << 32, (0x6d00_0000 << 32) | 0xffff_ffff, u64::MAX] {
                let mut info = [0_u8; 128];
                info[0..4].copy_from_slice(&ours.to_ne_bytes());
                info[8..12].copy_from_slice(&libc::SI_TIMER.to_ne_bytes());
                info[24..32].copy_from_slice(&value.to_ne_bytes());
                let (pid, tid) = (libc::getpid(), libc::gettid());
                let sent = libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, ours, info.as_ptr());
                assert_eq!(sent, 0);
            }
        }
        finds_a_hog();
    });
}

#[test]
fn a_signal_that_is_taken_ends_the_profile() {
    in_child(|| {
        let profiling = Profiling::start(&options(250)).unwrap();
        let [ours] = caught()[..] else { panic!("{:?}", caught()) };
        set(ours, count as *const () as usize);
        beside(1, || {
            eventually(|| !profiling.read().coverage.notes.is_empty());
            // Its timers are gone.
            if let Ok(timers) = std::fs::read_to_string("/proc/self/timers") {
                assert_eq!(timers, "");
            }
        });
        // The next one takes another signal, and this one stays over.
        finds_a_hog();
        assert_eq!(caught().len(), 2);
        assert_eq!(profiling.read().coverage.notes.len(), 1);
    });
}

/// A program does that before it becomes another one.
#[test]
fn a_reset_of_all_signals_ends_no_process() {
    in_child(|| {
        let profiling = Profiling::start(&options(1000)).unwrap();
        beside(2, || {
            eventually(|| profiling.read().coverage.samples > 0);
            for signal in (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP, 32, 33].contains(signal)) {
                set(signal, libc::SIG_DFL);
            }
            eventually(|| !profiling.read().coverage.notes.is_empty());
        });
        let notes = profiling.read().coverage.notes;
        assert!(notes[0].contains("an action of its own for the signal"), "{notes:?}");
        finds_a_hog();
    });
}

#[test]
fn a_child_of_a_fork_profiles_itself() {
    in_child(|| {
        let profiling = Profiling::start(&options(250)).unwrap();
        beside(1, || {
            for _ in 0..5 {
                let child = fork(|| {
                    nothing_is_left();
                    hog(WORK / 10);
                    let parents = profiling.read();
                    assert_eq!(parents.samples, []);
                    assert_eq!(parents.coverage.notes.len(), 1);
                    finds_a_hog();
                    nothing_is_left();
                });
                assert!(child.success(), "{child}");
            }
        });
        let profile = profiling.read();
        assert!(weight_in(&profile, &[leaf(), caller()]) > 0);
        assert!(profile.coverage.notes.is_empty(), "{:?}", profile.coverage);
        drop(profiling);
        nothing_is_left();
    });
}

/// How often the host's handlers of SIGTRAP nest.
const DEEP: u32 = 8;

/// The work in each of them: a few periods.
const IN_HANDLER: Duration = Duration::from_millis(20);

extern "C" fn nest(_: i32) {
    hog(IN_HANDLER);
    if CALLS.fetch_add(1, Ordering::Relaxed) + 1 < DEEP {
        arch::trap();
    }
}

#[test]
fn samples_come_amid_nested_handlers() {
    in_child(|| {
        let frame = signal_frame_bytes().unwrap_or(4096);
        // SAFETY: as in `set`. It asks for no alternate stack.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nest as *const () as usize;
            action.sa_flags = libc::SA_NODEFER;
            assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()), 0);
        }
        dormouse_sys::loader::pin_self().unwrap();
        trap::install(|_| Verdict::Foreign).unwrap();
        // Room for one frame of the kernel's and our handler, which takes 3.5 KiB in a build for
        // tests, but not for two such frames; and that of std.
        for bytes in [frame + 4 * 1024, libc::SIGSTKSZ.max(frame + 4 * 1024)] {
            CALLS.store(0, Ordering::Relaxed);
            let profiling = Profiling::start(&options(250)).unwrap();
            let busy = thread::spawn(move || {
                let memory = Box::leak(vec![0_u128; bytes / 16].into_boxed_slice());
                let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: bytes };
                // SAFETY: the memory stays.
                assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
                // So that it is sampled at once.
                dormouse_sys::thread::current();
                nest(0);
                identity::tid()
            });
            let tid = busy.join().unwrap();
            let profile = profiling.read();
            assert_eq!(CALLS.load(Ordering::Relaxed), DEEP, "{bytes}");
            let (found, work) = (weight_of(&profile, tid), IN_HANDLER * DEEP);
            let coverage = &profile.coverage;
            assert!(found * 2 > work.as_nanos() as u64, "{bytes}: {found} of {work:?}: {coverage:?}");
        }
    });
}

#[test]
fn other_programs_start_and_end() {
    in_child(|| {
        let profiling = Profiling::start(&options(1000)).unwrap();
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                // So that it is sampled at once.
                dormouse_sys::thread::current();
                hog(WORK);
            });
            while !busy.is_finished() {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        assert!(weight_in(&profiling.read(), &[leaf()]) > 0);
    });
}

#[test]
fn a_host_may_close_all_descriptors() {
    in_child(|| {
        let profiling = Profiling::start(&options(250)).unwrap();
        for _ in 0..5 {
            // SAFETY: the test has no file open.
            unsafe { libc::close_range(3, u32::MAX, 0) };
            finds_a_hog();
            let profile = profiling.read();
            assert!(profile.mapping(leaf().start).is_some_and(|mapping| mapping.path == profile.program));
            assert!(profile.threads.iter().all(|thread| !thread.name.is_empty()), "{:?}", profile.threads);
        }
        assert!(weight_in(&profiling.read(), &[leaf(), caller()]) > 0);
    });
}

#[test]
fn late_signals_find_nothing() {
    in_child(|| {
        beside(2, || {
            for round in 0..50 {
                drop(Profiling::start(&options(1000)).unwrap());
                if round % 10 == 0 {
                    nothing_is_left();
                }
            }
        });
        finds_a_hog();
    });
}

//! Ends: of the process, of its program, of the watch; and processes that it forks.

use std::ffi::CString;
use std::sync::atomic::Ordering::SeqCst;

use dormouse_breakpoints::{Outside, TargetEnd, WatchState, free_registers};
use dormouse_testkit::{eventually, join};
use rustix::process::Signal;

use super::process::{Process, Shared};
use super::{open, pass_until, report, spec, with_registers, write};

#[test]
fn a_process_may_die_in_the_middle() {
    with_registers(|| {
        let shared = Shared::new();
        let process = Process::start(|| {
            shared.await_go();
            loop {
                write(1);
                shared.writes.fetch_add(1, SeqCst);
            }
        });
        let mut outside = open(&process, &[spec()]);
        shared.go.store(1, SeqCst);
        pass_until(&mut outside, |_| shared.writes.load(SeqCst) > 1000);
        process.signal(Signal::KILL);
        pass_until(&mut outside, Outside::is_over);
        let last = report(&mut outside);
        assert_eq!((last.end, last.watch.state), (Some(TargetEnd::Exit), WatchState::Over));
        assert_eq!(last.watch.hits, last.watch.delivered + last.watch.lost);
        // It died behind a write or behind its count.
        let uncounted = last.watch.hits - shared.writes.load(SeqCst);
        assert!(uncounted <= 1, "{uncounted}");
        assert_eq!((last.watch.coverage.threads_armed, last.watch.coverage.threads_alive), (0, 0));
        // Nothing changes any more.
        outside.pass();
        assert_eq!(report(&mut outside).watch.hits, last.watch.hits);
    });
}

/// Another thread than the first executes the program, whose first thread it becomes.
#[test]
fn a_watch_ends_when_the_process_executes() {
    with_registers(|| {
        let shared = Shared::new();
        let process = Process::start(|| {
            std::thread::spawn(|| {
                shared.await_go();
                write(10);
                let [program, time] = ["sleep", "1000"].map(|word| CString::new(word).unwrap());
                let words = [program.as_ptr(), time.as_ptr(), std::ptr::null()];
                // SAFETY: strings with their zero, and a null at the end.
                unsafe { libc::execvp(words[0], words.as_ptr()) };
            })
            .join()
            .unwrap();
        });
        let mut outside = open(&process, &[spec()]);
        shared.go.store(1, SeqCst);
        pass_until(&mut outside, Outside::is_over);
        let last = report(&mut outside);
        assert_eq!((last.end, last.watch.hits, last.watch.delivered), (Some(TargetEnd::Exec), 10, 10));
        let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid())).unwrap();
        assert_eq!(name, "sleep\n", "the new program lives");
    });
}

#[test]
fn forks_of_the_process_are_not_watched() {
    with_registers(|| {
        let shared = Shared::new();
        let process = Process::start(|| {
            shared.await_go();
            // SAFETY: a fork, which leaves by `_exit`.
            let child = unsafe { libc::fork() };
            write(10);
            if child == 0 {
                // SAFETY: as above.
                unsafe { libc::_exit(0) };
            }
            assert!(join(child).success());
            shared.done.store(1, SeqCst);
            eventually(|| shared.go.load(SeqCst) > 1);
        });
        let mut outside = open(&process, &[spec()]);
        shared.go.store(1, SeqCst);
        eventually(|| shared.done.load(SeqCst) > 0);
        assert_eq!(report(&mut outside).watch.hits, 10);
    });
}

#[test]
fn a_dropped_watch_leaves_the_process_alone() {
    with_registers(|| {
        let shared = Shared::new();
        let process = Process::start(|| {
            shared.ready.store(1, SeqCst);
            shared.await_go();
            std::thread::spawn(|| write(10)).join().unwrap();
        });
        shared.await_ready();
        let free = || free_registers(process.pid()).unwrap();
        let before = free();
        let outside = open(&process, &[spec()]);
        assert_eq!(free(), before - 1);
        drop(outside);
        assert_eq!(free(), before);
        shared.go.store(1, SeqCst);
        assert!(process.wait().success());
    });
}

/// A program that makes hits as fast as it can.
#[test]
fn a_storm_rests_and_a_maximum_ends() {
    with_registers(|| {
        let shared = Shared::new();
        let process = Process::start(|| {
            loop {
                write(1);
                shared.writes.fetch_add(1, SeqCst);
            }
        });
        let mut outside = open(&process, &[spec().rate(1000)]);
        // A machine that is busy lets the program go on before a pass sees it: that is a part of
        // less and less.
        for round in 1.. {
            let mut rested = 0;
            pass_until(&mut outside, |_| {
                rested += 1;
                rested > 300
            });
            let stormy = report(&mut outside).watch;
            let coverage = stormy.coverage;
            // Twice the rate, and what came before the first pass saw it.
            let most = coverage.wall_ns / 1_000_000 * 2 + 5000;
            let is_seldom = coverage.rests > 0 && coverage.armed_ns < coverage.wall_ns / 2;
            let runs_on = shared.writes.load(SeqCst) > 10 * stormy.hits;
            if is_seldom && stormy.hits < most && runs_on {
                break;
            }
            assert!(round < 20, "{} of {most}: {:?}", stormy.hits, stormy.coverage);
        }
        drop(outside);

        let mut outside = open(&process, &[spec().max_hits(100)]);
        pass_until(&mut outside, Outside::is_over);
        let last = report(&mut outside);
        assert_eq!((last.end, last.watch.state), (None, WatchState::Over));
        assert!(last.watch.hits >= 100 && last.watch.hits == last.watch.delivered + last.watch.lost);
        let free = free_registers(process.pid()).unwrap();
        drop(outside);
        assert_eq!(free_registers(process.pid()).unwrap(), free);
    });
}

//! Breakpoints that count without signals, so that the kernel alone decides what hits.

use std::hint::black_box;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::channel;

use dormouse_sys::perf::{Access, Breakpoint, OpenEvent, Reading, Subject, WatchLen};
use dormouse_testkit::{fork, in_child, skip};

use super::*;

static WATCHED: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

fn attr(variable: usize) -> Attr {
    let addr = WATCHED[variable].as_ptr().addr();
    Attr::breakpoint(Breakpoint::watch(addr, WatchLen::Eight, Access::Write).unwrap())
}

/// In a child where the kernel gives breakpoints.
fn with_registers(test: fn()) {
    in_child(|| match OpenEvent::open(&attr(0), Subject::ThisThread) {
        Ok(event) => {
            drop(event);
            test();
        }
        Err(error) => skip(format!("no breakpoints here: {error}")),
    });
}

/// Watch `number` of `group` watches these variables.
fn watch(number: u32, group: u32, variables: &[usize]) {
    assert!(begin(number, group, variables.iter().map(|&variable| attr(variable)).collect()));
}

/// Writes each variable once.
fn write_all() {
    for variable in &WATCHED {
        black_box(variable).store(1, Ordering::Relaxed);
    }
}

fn hits_of(numbers: &[u32]) -> Vec<u64> {
    numbers.iter().map(|&number| hits(number)).collect()
}

fn calls(work: impl FnOnce()) -> u64 {
    let before = switches();
    work();
    switches() - before
}

#[test]
fn a_reader_beside_turns_mixes_no_watches() {
    const TURNS: u64 = 2000;
    with_registers(|| {
        watch(1, 1, &[0]);
        watch(2, 2, &[1]);
        let (turns, has_seen) = (AtomicU64::new(0), AtomicBool::new(false));
        let turn = || {
            while turns.load(Ordering::Relaxed) < TURNS || !has_seen.load(Ordering::Relaxed) {
                sched_in(1);
                sched_out(1);
                sched_in(2);
                turns.fetch_add(1, Ordering::SeqCst);
                write_all();
                sched_out(2);
            }
        };
        std::thread::scope(|scope| {
            let turners = [scope.spawn(turn), scope.spawn(turn)];
            let mut last = 0;
            while turners.iter().any(|turner| !turner.is_finished()) {
                let seen = hits_of(&[1, 2]);
                assert_eq!(seen[0], 0, "of the other watch");
                let most = turns.load(Ordering::SeqCst);
                assert!((last..=most).contains(&seen[1]), "{seen:?} after {last}, of {most}");
                last = seen[1];
                has_seen.fetch_or(last > 0, Ordering::Relaxed);
            }
        });
        assert_eq!(hits_of(&[1, 2]), [0, turns.load(Ordering::Relaxed)]);
    });
}

#[test]
fn a_watch_counts_while_it_is_in() {
    with_registers(|| {
        watch(1, 1, &[0]);
        write_all();
        sched_in(1);
        write_all();
        sched_out(1);
        write_all();
        assert_eq!((hits(1), hits(1 + MOST_SCOPED as u32)), (1, 0), "another watch has the entry");
        sched_in(1);
        write_all();
        assert_eq!((hits(1), covered(1)), (2, Covered { threads: 1, ..Covered::default() }));
        drop(end(1));
        write_all();
        assert_eq!((hits(1), OPEN.load(Ordering::Relaxed)), (2, 0));
    });
}

#[test]
fn what_is_in_still_costs_no_call() {
    with_registers(|| {
        watch(1, 1, &[0, 1]);
        sched_in(1);
        assert_eq!(calls(|| (0..9).for_each(|_| sched_in(1))), 0);
        assert_eq!(calls(|| sched_out(1)), 2);
        assert_eq!(calls(|| sched_out(1)), 0);
        assert_eq!(calls(|| sched_in(1)), 2);
    });
}

#[test]
fn groups_share_registers() {
    with_registers(|| {
        for number in 0..6 {
            watch(number, 1 + number / 3, &[number as usize]);
        }
        for _ in 0..5 {
            for group in [[0, 1, 2], [3, 4, 5]] {
                group.into_iter().for_each(sched_in);
                write_all();
                group.into_iter().for_each(sched_out);
            }
        }
        assert_eq!(hits_of(&[0, 1, 2, 3, 4, 5]), [5; 6]);
        assert!((0..6).all(|number| covered(number).unarmed == 0));
        assert_eq!(own_row().unwrap().open(), 3);
        drop([0, 1].map(end));
        [3, 4, 5].into_iter().for_each(sched_in);
        write_all();
        assert_eq!(hits_of(&[0, 1, 2, 3, 4, 5]), [5, 5, 5, 6, 6, 6]);
        drop([3, 4].map(end));
        assert_eq!((own_row().unwrap().open(), hits(5)), (1, 6));
    });
}

#[test]
fn a_thread_without_register_is_counted() {
    with_registers(|| {
        let others: Vec<_> = (0..4).map(|n| OpenEvent::open(&attr(n), Subject::ThisThread)).collect();
        if others.iter().any(Result::is_err) {
            return skip("somebody else has a register");
        }
        watch(1, 1, &[5]);
        sched_in(1);
        write_all();
        let covered_by = covered(1);
        assert_eq!((hits(1), covered_by.threads, covered_by.unarmed), (0, 0, 1));
        assert!(covered_by.reason.unwrap().contains("register"));
        drop(others);
        (0..=PASS_OVER).for_each(|_| sched_in(1));
        write_all();
        assert_eq!(hits(1), 1);
    });
}

#[test]
fn the_end_of_a_watch_disarms_other_threads() {
    with_registers(|| {
        watch(1, 1, &[0]);
        let (tell, told) = channel();
        let (go, gone) = channel::<()>();
        let thread = std::thread::spawn(move || {
            sched_in(1);
            write_all();
            tell.send(()).unwrap();
            gone.recv().unwrap();
            write_all();
            sched_in(1);
            write_all();
        });
        told.recv().unwrap();
        assert_eq!(covered(1).threads, 1);
        drop(end(1));
        assert_eq!(OPEN.load(Ordering::Relaxed), 0);
        go.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!(hits(1), 1);
    });
}

#[test]
fn an_ended_thread_leaves_its_count() {
    with_registers(|| {
        watch(1, 1, &[0]);
        for _ in 0..3 {
            let thread = || {
                sched_in(1);
                write_all();
            };
            std::thread::spawn(thread).join().unwrap();
        }
        assert_eq!((hits(1), covered(1).threads, OPEN.load(Ordering::Relaxed)), (3, 0, 0));
    });
}

#[test]
fn a_resting_watch_goes_out_and_comes_back() {
    with_registers(|| {
        watch(1, 1, &[0]);
        sched_in(1);
        set_resting(1, true);
        write_all();
        // As the handler does.
        on_hit(1, true);
        write_all();
        sched_in(1);
        write_all();
        assert_eq!(hits(1), 1);
        set_resting(1, false);
        sched_in(1);
        set_resting(1, true);
        sched_in(1);
        write_all();
        assert_eq!(hits(1), 1);
    });
}

#[test]
fn another_table_leaves_lines_to_their_thread() {
    with_registers(|| {
        watch(1, 1, &[0]);
        watch(2, 1, &[1]);
        [1, 2].into_iter().for_each(sched_in);
        std::thread::spawn(|| {
            // SAFETY: this thread has a table of its own from here on.
            unsafe { libc::unshare(libc::CLONE_FILES) };
            // SAFETY: as above: no other thread has these descriptors in it.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            assert_eq!(hits(1), 0);
            drop(end(1));
        })
        .join()
        .unwrap();
        let row = own_row().unwrap();
        assert_eq!((row.open(), OPEN.load(Ordering::Relaxed)), (2, 2));
        sched_in(2);
        write_all();
        assert_eq!((row.open(), OPEN.load(Ordering::Relaxed), hits(2)), (1, 1, 1));
    });
}

/// The number of a closed descriptor may be the host's next file, before the reader reads it.
#[test]
fn a_reader_keeps_lines_from_being_closed() {
    with_registers(|| {
        watch(1, 1, &[0]);
        sched_in(1);
        let row = own_row().unwrap();
        let reading = row.enter().unwrap();
        // As by a thread with another table.
        entry(1).needs.store(0, Ordering::Relaxed);
        sched_in(2);
        write_all();
        assert_eq!((row.open(), row.lines[0].is_on()), (1, false));
        assert_eq!(row.lines[0].count_for(1), Some(0));
        drop(reading);
        sched_in(2);
        assert_eq!((row.open(), OPEN.load(Ordering::Relaxed)), (0, 0));
        assert!(row.enter().is_some() && row.enter_own().is_some(), "it is open again");
    });
}

#[test]
fn a_child_leaves_its_parents_watch_alone() {
    with_registers(|| {
        watch(1, 1, &[0]);
        sched_in(1);
        let fd = own_row().unwrap().lines[0].fd() - 1;
        // SAFETY: a number.
        let is_open = move || unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
        assert!(is_open());
        let child = fork(move || {
            assert!(!is_open());
            sched_in(1);
            sched_out(1);
            assert_eq!((hits(1), OPEN.load(Ordering::Relaxed)), (0, 0));
        });
        assert!(child.success());
        write_all();
        assert_eq!(hits(1), 1);
        // SAFETY: a raw child ends by `_exit`.
        let raw = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if raw == 0 {
            sched_out(1);
            sched_in(1);
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        assert!(dormouse_testkit::join(raw as libc::pid_t).success());
        write_all();
        assert_eq!(hits(1), 2, "the child has not switched it off");
    });
}

#[test]
fn descriptors_that_the_host_closed_are_given_up() {
    with_registers(|| {
        watch(1, 1, &[0]);
        sched_in(1);
        sched_out(1);
        let fd = own_row().unwrap().lines[0].fd() - 1;
        let host = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: as a host does that closes what it finds, and goes on to use the number.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&host), fd) };
        sched_in(1);
        write_all();
        assert_eq!(hits(1), 1, "by a new one");
        drop(end(1));
        // SAFETY: a number.
        assert!(unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0, "the host's stays open");
    });
}

/// The host closes a line's descriptor, and opens an event of its own under that number.
fn becomes_the_hosts(line: usize, variable: usize) -> i32 {
    let fd = own_row().unwrap().lines[line].fd() - 1;
    let hosts = OpenEvent::open(&attr(variable), Subject::ThisThread).unwrap();
    // SAFETY: numbers.
    assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&hosts.as_fd()), fd) }, fd);
    fd
}

/// The count of an event.
fn count(fd: i32) -> u64 {
    // SAFETY: open.
    Reading::of(unsafe { BorrowedFd::borrow_raw(fd) }).unwrap().value
}

#[test]
fn a_turn_leaves_the_hosts_events_alone() {
    with_registers(|| {
        watch(1, 1, &[0]);
        watch(2, 2, &[1]);
        sched_in(1);
        sched_out(1);
        let hosts = becomes_the_hosts(0, 5);
        sched_in(2);
        black_box(&WATCHED[5]).store(1, Ordering::Relaxed);
        assert_eq!(count(hosts), 1, "it watches the host's variable still");
    });
}

#[test]
fn a_child_closes_nothing_of_the_host() {
    with_registers(|| {
        watch(1, 1, &[0]);
        sched_in(1);
        let hosts = becomes_the_hosts(0, 5);
        // SAFETY: a number.
        let child = fork(move || assert!(unsafe { libc::fcntl(hosts, libc::F_GETFD) } >= 0));
        assert!(child.success());
    });
}

#[test]
fn the_host_keeps_three_quarters_of_its_descriptors() {
    with_registers(|| {
        let few = libc::rlimit { rlim_cur: 40, rlim_max: 40 };
        // SAFETY: a valid place.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
        watch(1, 1, &[0]);
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let stopped = std::sync::Arc::new(std::sync::Mutex::new(stopped));
        let (tell, told) = channel();
        let threads: Vec<_> = (0..14)
            .map(|_| {
                let (tell, stopped) = (tell.clone(), std::sync::Arc::clone(&stopped));
                std::thread::spawn(move || {
                    sched_in(1);
                    tell.send(()).unwrap();
                    _ = stopped.lock().unwrap().recv();
                })
            })
            .collect();
        for _ in &threads {
            told.recv().unwrap();
        }
        let covered = covered(1);
        assert_eq!((covered.threads, covered.unarmed), (10, 4));
        assert!(covered.reason.unwrap().contains("quarter"));
        drop(stop);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn threads_under_a_filter_do_not_ask() {
    with_registers(|| {
        watch(1, 1, &[0]);
        std::thread::spawn(|| {
            dormouse_testkit::Filter::kill(&[libc::SYS_perf_event_open]).install();
            sched_in(1);
        })
        .join()
        .unwrap();
        assert!(covered(1).reason.unwrap().contains("seccomp"));
    });
}

#[test]
fn watches_end_under_running_threads() {
    with_registers(|| {
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        for number in 1..4 {
                            sched_in(number);
                            sched_out(number);
                        }
                    }
                });
            }
            for round in 0..300 {
                let number = 1 + round % 3;
                watch(number, number, &[number as usize]);
                std::thread::yield_now();
                hits(number);
                drop(end(number));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(OPEN.load(Ordering::Relaxed), 0);
    });
}

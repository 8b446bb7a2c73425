//! Events behind descriptors, with the real kernel. What forks, lowers limits or forbids system calls does so in a
//! process of its own.

mod child;
mod refused;

use std::fs;
use std::sync::mpsc::channel;

use dormouse_events::{Event, Times, pmu::perf};
use dormouse_sys::thread;

use child::in_child;
use refused::forbid;

fn moves() -> Option<Event> {
    Event::by_name("cpu-migrations-exact").inspect_err(|error| println!("1 skipped: {error}")).ok()
}

fn begin(event: Event) {
    event.pmu().begin(&[event.number()]).unwrap();
}

fn end(event: Event) {
    event.pmu().end(&[event.number()]);
}

fn read(event: Event) -> (u64, Times) {
    let (mut value, mut times) = ([0], [Times::default()]);
    event.pmu().read(&[event.number()], &mut value);
    assert!(event.pmu().times(&[event.number()], &mut times));
    (value[0], times[0])
}

/// Open events of this process.
fn descriptors() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    links
        .filter(|link| fs::read_link(link.path()).is_ok_and(|to| to.ends_with("anon_inode:[perf_event]")))
        .count()
}

fn spin(ns: u64) {
    let end = dormouse_clock::thread_cpu_ns() + ns;
    while dormouse_clock::thread_cpu_ns() < end {}
}

/// Puts the calling thread on one processor.
fn go_to(processor: usize) -> bool {
    // SAFETY: a set of bits that lives longer than the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

#[test]
fn every_move_is_counted_also_between_two_reads_and_seen_by_others() {
    in_child("every_move_is_counted_also_between_two_reads_and_seen_by_others", &[], || {
        let Some(moves) = moves() else { return };
        begin(moves);
        let (send, receive) = channel();
        let (stop, stopped) = channel::<()>();
        let mover = std::thread::spawn(move || {
            let before = read(moves).0;
            let went = (0..20).filter(|n| go_to(n % 2)).count();
            send.send((thread::current().unwrap(), went, before)).unwrap();
            stopped.recv().unwrap_err();
            read(moves).0 - before
        });
        let (block, went, before) = receive.recv().unwrap();
        if went < 20 {
            println!("1 skipped: there is one processor");
        } else {
            let mut seen = [0];
            assert!(moves.pmu().read_of(block, &[moves.number()], &mut seen));
            // The first may have found the thread where it was to go.
            assert!((19..=20).contains(&(seen[0] - before)), "{seen:?} {before}");
        }
        drop(stop);
        let counted = mover.join().unwrap();
        assert!(went < 20 || (19..=20).contains(&counted), "{counted}");
        end(moves);
    });
}

#[test]
fn descriptors_are_there_while_threads_count_and_no_longer() {
    in_child("descriptors_are_there_while_threads_count_and_no_longer", &[], || {
        let Some(moves) = moves() else { return };
        read(moves);
        assert_eq!(descriptors(), 0, "nobody has begun");
        begin(moves);
        assert_eq!(descriptors(), 0, "nobody has read");
        read(moves);
        std::thread::spawn(move || {
            read(moves);
            assert_eq!(descriptors(), 2);
        })
        .join()
        .unwrap();
        assert_eq!(descriptors(), 1, "a thread has ended");
        begin(moves);
        end(moves);
        assert_eq!(descriptors(), 1, "one still counts");
        end(moves);
        assert_eq!(descriptors(), 0);
    });
}

#[test]
fn threads_beyond_a_quarter_of_the_descriptors_go_without_and_say_so() {
    in_child("threads_beyond_a_quarter_of_the_descriptors_go_without_and_say_so", &[], || {
        let Some(moves) = moves() else { return };
        let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: a valid place, and a limit for this process alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
        begin(moves);
        let without = |_| {
            let before = read(moves).1;
            spin(1_000_000);
            let after = read(moves).1;
            assert!(after.enabled_ns - before.enabled_ns >= 1_000_000);
            after.running_ns == before.running_ns
        };
        let barrier = &std::sync::Barrier::new(20);
        let without = std::thread::scope(|scope| {
            let run = |n| {
                let without = without(n);
                barrier.wait();
                without
            };
            let threads: Vec<_> = (0..20).map(|n| scope.spawn(move || run(n))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|without| *without).count()
        });
        assert_eq!(without, 4);
        let refusals = perf::refusals();
        assert!(matches!(refusals[..], [(reason, 4)] if reason.contains("quarter")), "{refusals:?}");

        // And when the host itself has taken all there are.
        let all: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
        std::thread::spawn(move || read(moves)).join().unwrap();
        drop(all);
        let refusals = perf::refusals();
        assert!(
            refusals.iter().any(|(reason, n)| reason.contains("no descriptor was left") && *n == 1),
            "{refusals:?}"
        );
        end(moves);
    });
}

#[test]
fn a_fork_child_counts_for_itself() {
    in_child("a_fork_child_counts_for_itself", &[], || {
        let Some(moves) = moves() else { return };
        begin(moves);
        let before = read(moves).0;
        // SAFETY: the only other thread is the test harness's, which waits and holds no lock that the child takes.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let inherited = descriptors();
            let value = read(moves).0;
            let right = inherited == 0 && descriptors() == 1 && value == before;
            end(moves);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!(right && descriptors() == 0))) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(descriptors(), 1, "the parent's is still its own");
        end(moves);
    });
}

#[test]
fn under_a_filter_nothing_is_tried_that_might_end_the_process() {
    in_child("under_a_filter_nothing_is_tried_that_might_end_the_process", &[], || {
        forbid(libc::SYS_perf_event_open);
        let refused = Event::by_name("cpu-migrations-exact").unwrap_err().to_string();
        assert!(refused.contains("DORMOUSE_PERF=1"), "{refused}");
    });
}

#[test]
fn a_filter_that_only_refuses_is_named() {
    in_child("a_filter_that_only_refuses_is_named", &[("DORMOUSE_PERF", "1")], || {
        if moves().is_none() {
            return;
        }
        forbid(libc::SYS_perf_event_open);
        let refused = Event::by_name("cpu-migrations-exact").unwrap_err().to_string();
        assert!(refused.contains("seccomp filter is in the way"), "{refused}");
    });
}

//! Events behind descriptors, with the real kernel. Tests that fork, lower limits or forbid system
//! calls do so in a child.

use std::fs;
use std::sync::mpsc::channel;

use dormouse_events::{Event, pmu::perf};
use dormouse_sys::thread;

use dormouse_testkit::{Child, Filter, fork, in_child, skip};

fn moves() -> Option<Event> {
    Event::by_name("cpu-migrations-exact").inspect_err(|error| skip(error)).ok()
}

fn begin(event: Event) {
    event.pmu().begin(&[event.number()]).unwrap();
}

fn end(event: Event) {
    event.pmu().end(&[event.number()]);
}

fn read(event: Event) -> u64 {
    let mut value = [0];
    event.pmu().read(&[event.number()], &mut value);
    value[0]
}

/// Open events of this process.
fn descriptors() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    links
        .filter(|link| fs::read_link(link.path()).is_ok_and(|to| to.ends_with("anon_inode:[perf_event]")))
        .count()
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
fn each_move_is_counted_and_seen_by_others() {
    in_child(|| {
        let Some(moves) = moves() else { return };
        begin(moves);
        let (send, receive) = channel();
        let (stop, stopped) = channel::<()>();
        let mover = std::thread::spawn(move || {
            let before = read(moves);
            let went = (0..20).filter(|n| go_to(n % 2)).count();
            send.send((thread::current().unwrap(), went, before)).unwrap();
            stopped.recv().unwrap_err();
            read(moves) - before
        });
        let (block, went, before) = receive.recv().unwrap();
        if went < 20 {
            skip("there is one processor");
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
fn descriptors_are_open_only_while_threads_count() {
    in_child(|| {
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
fn threads_over_the_descriptor_budget_say_so() {
    in_child(|| {
        let Some(moves) = moves() else { return };
        let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: a valid place, and a limit for this process alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
        begin(moves);
        let barrier = &std::sync::Barrier::new(20);
        let run = || {
            read(moves);
            let end = dormouse_clock::thread_cpu_ns() + 1_000_000;
            while dormouse_clock::thread_cpu_ns() < end {}
            read(moves);
            barrier.wait();
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..20).map(|_| scope.spawn(run)).collect();
            // The scope alone would not wait for the ends of threads, at which descriptors are
            // closed.
            for thread in threads {
                thread.join().unwrap();
            }
        });
        let share = moves.pmu().share(moves.number()).unwrap();
        assert!(share.running_ns >= 16_000_000, "{share:?}");
        assert!(share.enabled_ns - share.running_ns >= 4_000_000, "{share:?}");
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
    in_child(|| {
        let Some(moves) = moves() else { return };
        begin(moves);
        let before = read(moves);
        let status = fork(|| {
            assert_eq!(descriptors(), 0);
            begin(moves);
            assert_eq!(read(moves), before);
            assert_eq!(descriptors(), 1);
            end(moves);
            assert_eq!(descriptors(), 0);
        });
        assert!(status.success(), "{status}");
        assert_eq!(descriptors(), 1, "the parent's is still its own");
        end(moves);
    });
}

#[test]
fn a_killing_filter_is_never_provoked() {
    in_child(|| {
        Filter::refuse(&[libc::SYS_perf_event_open]).install();
        let refused = Event::by_name("cpu-migrations-exact").unwrap_err().to_string();
        assert!(refused.contains("DORMOUSE_PERF=1"), "{refused}");
    });
}

#[test]
fn a_later_filter_is_never_provoked() {
    in_child(|| {
        let Some(moves) = moves() else { return };
        begin(moves);
        read(moves);
        assert_eq!(descriptors(), 1);
        // On a thread that has its own, as a sandboxed worker, and on one that inherits it.
        let worker = move || {
            Filter::kill(&[libc::SYS_perf_event_open]).install();
            read(moves);
            std::thread::spawn(move || read(moves)).join().unwrap();
        };
        std::thread::spawn(worker).join().unwrap();
        let refusals = perf::refusals();
        assert!(matches!(refusals[..], [(reason, 2)] if reason.contains("seccomp")), "{refusals:?}");
        end(moves);
    });
}

#[test]
fn a_filter_that_only_refuses_is_named() {
    Child::new().with_each(&[&[("DORMOUSE_PERF", "1")]]).run(|| {
        if moves().is_none() {
            return;
        }
        Filter::refuse(&[libc::SYS_perf_event_open]).install();
        let refused = Event::by_name("cpu-migrations-exact").unwrap_err().to_string();
        assert!(refused.contains("seccomp filter is in the way"), "{refused}");
    });
}

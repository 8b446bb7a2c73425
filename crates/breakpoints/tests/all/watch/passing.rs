//! Every access is made once, whatever its instruction, its thread, and what interrupts it. On some
//! processors a handler makes it in the thread's place.

use std::hint::black_box;
use std::os::unix::thread::JoinHandleExt as _;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use dormouse_breakpoints::{Access, WatchSpec, WatchState, free_registers, registers};
use dormouse_testkit::{eventually, stress_rounds};

use super::support::{VALUE, in_child, of_value, write};
use crate::arch::{LEAVES_EXCLUSIVE_PAIRS, add_exclusively};

#[test]
fn each_kind_of_store_has_its_values() {
    static mut LINE: [u64; 16] = [0; 16];
    in_child(|| {
        let line = (&raw mut LINE).cast::<u64>();
        // SAFETY: in the line, which this thread alone uses.
        let (word, atomic) = unsafe { (line.add(5), AtomicU64::from_ptr(line.add(5))) };
        let watch = WatchSpec::new(word.addr(), 8, Access::Write).rate(u32::MAX).arm().unwrap();
        watch.take_hits();
        let from = black_box(vec![0x5a_u64; 16]);
        let bytes = black_box(64);
        let (mut expected, mut all) = (0, 0);
        for round in 0..3 {
            // SAFETY: as above.
            let ways: [(&dyn Fn(), u64); 8] = unsafe {
                [
                    (&|| atomic.store(3, Relaxed), 3),
                    (&|| _ = atomic.fetch_add(4, Relaxed), 7),
                    (&|| _ = atomic.swap(9, Relaxed), 9),
                    (&|| _ = atomic.compare_exchange(9, 11, Relaxed, Relaxed), 11),
                    (&|| _ = atomic.fetch_or(1 << 40, Relaxed), (1 << 40) + 11),
                    (&|| line.add(4).copy_from_nonoverlapping(from.as_ptr(), bytes / 8), 0x5a),
                    (&|| ptr::write_bytes(line.add(4), 0x11, bytes / 8), 0x1111_1111_1111_1111),
                    (&|| word.cast::<u16>().add(1).write_volatile(0x2222), 0x1111_1111_2222_1111),
                ]
            };
            for (way, (run, new)) in ways.into_iter().enumerate() {
                run();
                let hits = watch.take_hits();
                let seen: Vec<_> = hits.iter().map(|hit| (hit.old, hit.new)).collect();
                // The C library's functions may write a word twice.
                let is_again = |of: &(Option<u64>, Option<u64>)| *of == (Some(new), Some(new));
                assert_eq!(seen[0], (Some(expected), Some(new)), "way {way} in round {round}");
                assert!(seen[1..].iter().all(is_again), "way {way} in round {round}: {seen:?}");
                assert_eq!(atomic.load(Relaxed), new, "way {way} in round {round}");
                (expected, all) = (new, all + seen.len() as u64);
            }
        }
        let report = watch.report();
        assert_eq!((report.hits, report.delivered, report.coverage.unpassed), (all, all, 0), "{report:?}");
    });
}

#[test]
fn a_store_to_errno_stays() {
    in_child(|| {
        // SAFETY: the C library's place of this thread.
        let error = unsafe { libc::__errno_location() };
        // The handler's own stores to it are hits, too, until the watch rests.
        let watch = WatchSpec::new(error.addr(), 4, Access::Write).rate(1).arm().unwrap();
        // SAFETY: as above.
        let stored = unsafe {
            error.write_volatile(7);
            error.read_volatile()
        };
        assert_eq!(stored, 7);
        assert!(watch.report().delivered > 0);
    });
}

#[test]
fn additions_of_many_threads_are_all_made() {
    in_child(|| {
        const THREADS: u64 = 4;
        let each: u64 = stress_rounds(500, 100_000);
        let watch = of_value().arm().unwrap();
        let add = || (0..each).for_each(|_| _ = VALUE.fetch_add(1, Relaxed));
        thread::scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(add)));
        let report = watch.report();
        assert_eq!(VALUE.load(Relaxed), THREADS * each);
        assert_eq!((report.hits, report.delivered), (THREADS * each, THREADS * each), "{report:?}");
    });
}

/// The additions of the handler.
static ADDED: AtomicU64 = AtomicU64::new(0);

extern "C" fn add_too(_: libc::c_int) {
    VALUE.fetch_add(1, Relaxed);
    ADDED.fetch_add(1, Relaxed);
}

#[test]
fn signals_amid_additions_add_their_own() {
    in_child(|| {
        let signals: u64 = stress_rounds(300, 50_000);
        // SAFETY: the handler adds to atomics.
        unsafe { libc::signal(libc::SIGUSR1, add_too as *const () as usize) };
        let watch = of_value().arm().unwrap();
        let adder = thread::spawn(move || {
            let mut own = 0;
            while ADDED.load(Relaxed) < signals {
                VALUE.fetch_add(1, Relaxed);
                own += 1;
            }
            own
        });
        while ADDED.load(Relaxed) < signals {
            // SAFETY: a thread that is joined below.
            unsafe { libc::pthread_kill(adder.as_pthread_t(), libc::SIGUSR1) };
            thread::yield_now();
        }
        let own: u64 = adder.join().unwrap();
        let all = own + ADDED.load(Relaxed);
        let report = watch.report();
        assert_eq!((VALUE.load(Relaxed), report.hits, report.delivered), (all, all, all), "{report:?}");
    });
}

#[test]
fn exclusive_pairs_pass_in_a_rest() {
    in_child(|| {
        let watch = of_value().arm().unwrap();
        for _ in 0..3 {
            add_exclusively(&VALUE);
        }
        assert_eq!(VALUE.load(Relaxed), 3);
        eventually(|| watch.report().state == WatchState::Armed);
        let report = watch.report();
        let unpassed = report.coverage.unpassed;
        assert_eq!((report.hits, report.lost), (report.delivered, 0), "{report:?}");
        if LEAVES_EXCLUSIVE_PAIRS {
            assert!(unpassed > 0 && u64::from(report.coverage.rests) == unpassed, "{report:?}");
            assert_eq!((report.hits, report.sites[0].new), (unpassed, None), "{report:?}");
        } else {
            assert_eq!((report.hits, unpassed), (3, 0), "{report:?}");
        }
        write(1);
        assert_eq!(watch.report().hits, report.hits + 1);
    });
}

#[test]
fn registers_are_those_that_are_free() {
    in_child(|| {
        // Those of the watch by which the child has tried.
        eventually(|| {
            let free = free_registers(rustix::thread::gettid().as_raw_pid().cast_unsigned()).unwrap();
            free == registers() as usize
        });
    });
}

//! The report of a hit.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use dormouse_breakpoints::{Access, Error, HitStackEnd, WatchHit, WatchSpec, WatchState, on_hit};
use dormouse_testkit::eventually;
use dormouse_unwind::MAY_LACK_ROOM;

use super::support::{VALUE, in_child, of, of_value, write};
use crate::arch;

#[test]
fn writes_are_reported_with_place_and_values() {
    in_child(|| {
        VALUE.store(3, Ordering::Relaxed);
        let watch = of_value().arm().unwrap();
        write(4);
        write(9);
        let report = watch.report();
        assert_eq!((report.hits, report.delivered, report.passed, report.lost), (2, 2, 2, 0), "{report:?}");
        assert_eq!((report.name.as_str(), report.state), ("value", WatchState::Armed));
        let [site] = &report.sites[..] else { panic!("{report:?}") };
        let written = write as *const () as usize;
        assert!((written..written + 64).contains(&site.ip), "{site:x?} in {written:x}");
        assert_eq!((site.hits, site.old, site.new), (2, Some(4), Some(9)));
        assert_eq!(site.tid, rustix::thread::gettid().as_raw_pid().cast_unsigned());
        assert_eq!(report.coverage.threads_armed, report.coverage.threads_alive);
        assert!(report.coverage.armed_ns > 0 && report.coverage.wall_ns >= report.coverage.armed_ns);
        let last = watch.close();
        assert_eq!((last.hits, last.state), (2, WatchState::Over));
        write(1);
        assert!(dormouse_breakpoints::held().is_empty());
    });
}

#[test]
fn no_hit_is_lost_while_hits_go_on() {
    in_child(|| {
        let watch = of_value().arm().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    write(1);
                }
            });
            eventually(|| watch.report().delivered > 0);
            let lost = (0..100).map(|_| watch.report()).find(|report| report.lost > 0);
            stop.store(true, Ordering::Relaxed);
            assert!(lost.is_none(), "{lost:?}");
        });
        let last = watch.close();
        assert_eq!((last.delivered, last.lost), (last.hits, 0), "{last:?}");
    });
}

#[test]
fn threads_of_any_age_are_armed() {
    in_child(|| {
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let old = thread::spawn(move || {
            begun.recv().unwrap();
            write(1);
            thread::spawn(|| write(2)).join().unwrap();
        });
        let watch = of_value().arm().unwrap();
        begin.send(()).unwrap();
        old.join().unwrap();
        thread::spawn(|| write(3)).join().unwrap();
        let report = watch.report();
        assert_eq!((report.hits, report.delivered), (3, 3), "{report:?}");
    });
}

#[test]
fn single_hits_come_as_a_stream() {
    in_child(|| {
        VALUE.store(0, Ordering::Relaxed);
        let watch = of_value().arm().unwrap();
        assert_eq!(watch.take_hits(), []);
        (1..=5).for_each(write);
        let values: Vec<_> =
            watch.take_hits().iter().map(|hit| (hit.old.unwrap(), hit.new.unwrap())).collect();
        assert_eq!(values, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]);
        assert_eq!(watch.take_hits(), []);
        (0..2000).for_each(write);
        let kept = watch.take_hits().len() as u64;
        assert_eq!(kept + watch.report().coverage.dropped, 2000);
    });
}

/// Writes below this many calls, and itself.
#[inline(never)]
fn write_below(calls: usize, value: u64) -> usize {
    if calls == 0 {
        write(value);
        return 0;
    }
    std::hint::black_box(write_below(calls - 1, value)) + 1
}

/// The caller is an instruction of [`write_below`].
fn is_below(caller: usize) -> bool {
    let function = write_below as *const () as usize;
    (function..function + 256).contains(&caller)
}

#[test]
fn stacks_lead_to_first_functions_or_are_cut() {
    in_child(|| {
        for (calls, end, room) in [(20, HitStackEnd::Whole, 21), (200, HitStackEnd::Cut, 64)] {
            let watch = of_value().arm().unwrap();
            let run = || {
                // Its functions are learned meanwhile.
                eventually(|| {
                    write_below(calls, 1);
                    watch.report().sites[0].end != HitStackEnd::Unknown
                });
                watch.take_hits();
                write_below(calls, 2);
            };
            thread::scope(|scope| scope.spawn(run).join().unwrap());
            let site = watch.report().sites.remove(0);
            assert_eq!(site.end, end, "{site:?}");
            let below = site.stack.iter().take_while(|&&caller| is_below(caller)).count();
            let is_cut = end == HitStackEnd::Cut;
            if is_cut {
                assert_eq!((site.stack.len(), site.inner), (128, 64));
            } else {
                assert_eq!((below, site.inner), (room, site.stack.len()));
            }
            // The outermost are there.
            assert!(below >= room && !is_below(*site.stack.last().unwrap()), "{site:x?}");
            let WatchHit { stack, end, .. } = watch.take_hits().remove(0);
            if MAY_LACK_ROOM {
                assert_eq!((stack, end), (vec![], HitStackEnd::Unknown));
            } else {
                assert_eq!((&stack[..room], end), (&site.stack[..room], site.end));
            }
        }
    });
}

#[test]
fn filters_hold_hits_back() {
    in_child(|| {
        static EVENTS: AtomicU32 = AtomicU32::new(0);
        static OTHER: AtomicU64 = AtomicU64::new(0);
        VALUE.store(0, Ordering::Relaxed);
        on_hit(|event| _ = EVENTS.fetch_add(event, Ordering::Relaxed));
        let changed = of_value().changed().event(1).arm().unwrap();
        let equal = of(&OTHER).equals(0x700).masked(0xff00).event(100).arm().unwrap();
        for value in [1, 1, 0x701, 0x702, 0x802] {
            write(value);
            OTHER.store(value, Ordering::Relaxed);
        }
        let (changed, equal) = (changed.report(), equal.report());
        assert_eq!((changed.hits, changed.passed), (5, 4), "{changed:?}");
        assert_eq!((equal.hits, equal.passed), (5, 2), "{equal:?}");
        assert_eq!(EVENTS.load(Ordering::Relaxed), 204);
    });
}

#[test]
fn watches_of_the_same_bytes_are_all_told() {
    in_child(|| {
        let watches: Vec<_> = (0..3).map(|_| of_value().arm().unwrap()).collect();
        (0..10).for_each(write);
        for watch in &watches {
            assert_eq!((watch.report().hits, watch.report().delivered), (10, 10));
        }
        // One that overlaps otherwise shares the signal, and says what it lost.
        let mut watches = watches;
        drop(watches.pop());
        let half = WatchSpec::new(VALUE.as_ptr().addr(), 4, Access::Write).rate(u32::MAX).arm().unwrap();
        (0..10).for_each(write);
        let (half, whole) = (half.close(), watches[0].report());
        assert_eq!((half.hits, half.delivered + half.lost, whole.hits), (10, 10, 20));
        assert_eq!(half.delivered + whole.delivered, 20);
    });
}

#[test]
fn a_range_takes_several_registers() {
    in_child(|| {
        static WORDS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
        let watch = WatchSpec::new(WORDS.as_ptr().addr(), 24, Access::Write).arm().unwrap();
        assert_eq!(dormouse_breakpoints::held()[0].slots, 3);
        for (at, word) in WORDS.iter().enumerate() {
            word.store(at as u64 + 1, Ordering::Relaxed);
        }
        assert_eq!((watch.report().hits, watch.report().passed), (3, 3));
    });
}

#[test]
fn reads_are_hits_too() {
    in_child(|| {
        VALUE.store(7, Ordering::Relaxed);
        let reads = WatchSpec::new(VALUE.as_ptr().addr(), 8, Access::ReadWrite).rate(u32::MAX).arm().unwrap();
        assert_eq!(std::hint::black_box(VALUE.load(Ordering::Relaxed)), 7);
        write(1);
        assert_eq!(VALUE.fetch_add(5, Ordering::Relaxed), 1);
        let report = reads.report();
        assert_eq!((report.hits, report.delivered, VALUE.load(Ordering::Relaxed)), (3, 3, 6), "{report:?}");
    });
}

#[test]
fn executions_are_hits_or_refused() {
    in_child(|| {
        let runs = WatchSpec::new(write as *const () as usize, 1, Access::Execute).arm();
        if !arch::WATCHES_INSTRUCTIONS {
            return assert!(matches!(runs, Err(Error::Processor)), "{runs:?}");
        }
        write(1);
        let report = runs.unwrap().report();
        assert_eq!((report.hits, report.sites[0].ip), (1, write as *const () as usize), "{report:?}");
    });
}

#[test]
fn a_maximum_ends_the_watch() {
    in_child(|| {
        let watch = of_value().max_hits(3).arm().unwrap();
        (0..10).for_each(write);
        assert_eq!(watch.report().passed, 3);
        eventually(|| watch.is_over());
        let report = watch.report();
        assert_eq!((report.state, report.passed, report.coverage.threads_armed), (WatchState::Over, 3, 0));
        assert!(dormouse_breakpoints::held().is_empty());
        let hits = report.hits;
        write(1);
        assert_eq!(watch.report().hits, hits, "disarmed");
    });
}

#[test]
fn a_storm_rests_and_comes_back() {
    in_child(|| {
        let watch = of_value().rate(1000).arm().unwrap();
        let mut writes = 0;
        while watch.report().coverage.rests < 2 {
            (0..100).for_each(write);
            writes += 100;
        }
        let report = watch.report();
        assert!(report.hits < writes && report.coverage.armed_ns < report.coverage.wall_ns, "{report:?}");
        eventually(|| watch.report().state == WatchState::Armed);
        let before = watch.report().hits;
        write(1);
        assert_eq!(watch.report().hits, before + 1);
    });
}

#[test]
fn flexible_watches_take_turns() {
    in_child(|| {
        static WORDS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
        let watches: Vec<_> = WORDS.iter().map(|word| of(word).flexible().arm().unwrap()).collect();
        let hits = || watches.iter().map(|watch| watch.report().hits).collect::<Vec<_>>();
        eventually(|| {
            for word in &WORDS {
                word.store(1, Ordering::Relaxed);
            }
            hits().iter().all(|&hits| hits > 0)
        });
        for watch in &watches {
            let coverage = watch.report().coverage;
            assert!(coverage.armed_ns < coverage.wall_ns, "{coverage:?}");
        }
        drop(watches);
        assert!(dormouse_breakpoints::held().is_empty());
    });
}

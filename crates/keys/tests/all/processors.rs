//! When a batch returns, it acts on every processor: a thread on each runs the site all the time.
#![cfg(not(dormouse_fallback))]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::thread::{ScopedJoinHandle, scope, yield_now};

use dormouse_keys::{static_key, unlikely};
use dormouse_testkit::{StopOnDrop, in_child, skip};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::process;

static_key! {
    static KEY: "processors.key" = false;
}

#[inline(never)]
fn site() -> bool {
    unlikely!(KEY)
}

/// How often a processor runs the site between two checks.
const RUNS: usize = 1000;
const CHANGES: usize = 20;

/// A processor, and the answers that it has seen.
struct Reader {
    number: usize,
    /// The number of changes, and one more, at its last check.
    seen: AtomicUsize,
    /// Checks whose answer was not what the last change has made of the key.
    wrong: AtomicUsize,
}

impl Reader {
    /// Runs the site until `is_over`. `steps` is odd while a batch is under way, and twice the
    /// number of changes otherwise.
    fn run(&self, steps: &AtomicUsize, is_over: &AtomicBool) {
        let mut own = CpuSet::new();
        own.set(self.number);
        sched_setaffinity(None, &own).unwrap();
        while !is_over.load(Ordering::Acquire) {
            (0..RUNS).for_each(|_| _ = black_box(site()));
            let before = steps.load(Ordering::Acquire);
            let answer = site();
            // The next read is not made before the site has run.
            fence(Ordering::SeqCst);
            if before.is_multiple_of(2) && steps.load(Ordering::Acquire) == before {
                let changes = before / 2;
                self.wrong.fetch_add(usize::from(answer == changes.is_multiple_of(2)), Ordering::Relaxed);
                self.seen.store(changes + 1, Ordering::Release);
            }
            // The thread that changes the key may have this processor, too.
            yield_now();
        }
    }
}

fn change_before_all() {
    let allowed = sched_getaffinity(None).unwrap();
    let readers: Vec<_> = (0..CpuSet::MAX_CPU)
        .filter(|&number| allowed.is_set(number))
        .map(|number| Reader { number, seen: AtomicUsize::new(0), wrong: AtomicUsize::new(0) })
        .collect();
    if readers.len() < 2 {
        return skip("there is one processor");
    }
    let (steps, is_over) = (&AtomicUsize::new(0), &AtomicBool::new(false));
    scope(|scope| {
        let _stop = StopOnDrop(is_over);
        let threads: Vec<_> =
            readers.iter().map(|reader| scope.spawn(move || reader.run(steps, is_over))).collect();
        for change in 0..=CHANGES {
            if change > 0 {
                steps.fetch_add(1, Ordering::AcqRel);
                if change.is_multiple_of(2) { KEY.disable() } else { KEY.enable() }.unwrap();
                steps.fetch_add(1, Ordering::AcqRel);
            }
            let has_seen = |reader: &Reader| reader.seen.load(Ordering::Acquire) > change;
            while !readers.iter().all(has_seen) {
                assert!(!threads.iter().any(ScopedJoinHandle::is_finished), "a reader has ended");
                yield_now();
            }
        }
    });
    for reader in &readers {
        assert_eq!(reader.wrong.load(Ordering::Relaxed), 0, "wrong answers on processor {}", reader.number);
    }
}

/// Before the first change each processor has run the site as the program began with it.
#[test]
fn the_first_batch_acts_on_every_processor() {
    in_child(change_before_all);
}

#[test]
fn the_memory_file_acts_on_every_processor() {
    in_child(|| {
        if !process::refuse_exec_gain() {
            return;
        }
        change_before_all();
    });
}

//! Threads clone, wake and drop wakers of tasks at random while the tasks are polled, end, and
//! begin: each wake arrives once, and the runtime's wakers go with the leaves'.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_testkit::{StopOnDrop, stress_time};
use dormouse_waits::{Placing, TaskWaits, Waiting, Who, living, polled, read};
use support::{Counting, number};

const TASKS: usize = 6;
const PLACES: usize = 4;
const THREADS: u64 = 3;

/// One task's runtime, the wakers that leaves hold, and how often they have woken it.
#[derive(Default)]
struct Bed {
    runtime: Arc<Counting>,
    places: [Mutex<Option<Waker>>; PLACES],
    wakes: AtomicUsize,
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

impl Bed {
    /// A thread uses one of the leaf's wakers.
    fn use_one(&self, random: &mut Random) {
        let mut place = self.places[random.below(PLACES)].lock().unwrap();
        let Some(waker) = place.take() else { return };
        let kind = random.below(5);
        if (1..4).contains(&kind) {
            self.wakes.fetch_add(1, Ordering::SeqCst);
        }
        match kind {
            0 => drop(waker),
            1 => waker.wake(),
            2 => {
                waker.wake_by_ref();
                *place = Some(waker);
            }
            3 => {
                *place = Some(waker.clone());
                drop(place);
                waker.wake();
            }
            _ => {
                let clone = waker.clone();
                *place = Some(clone);
                drop(place);
                drop(waker);
            }
        }
    }

    /// A leaf's part of a poll.
    fn leaf(&self, lent: &Waker, random: &mut Random) {
        let mut place = self.places[random.below(PLACES)].lock().unwrap();
        match &mut *place {
            Some(held) if held.will_wake(lent) => {}
            empty_or_other => *empty_or_other = Some(lent.clone()),
        }
        drop(place);
        if random.below(4) == 0 {
            self.wakes.fetch_add(1, Ordering::SeqCst);
            lent.wake_by_ref();
        }
    }
}

#[test]
fn wakers_and_tasks_go_as_they_like() {
    // That registrations are free when their slot is, each slot finds out by itself.
    let _on = (Waiting::start().unwrap(), Placing::start().unwrap());
    let beds: [Bed; TASKS] = std::array::from_fn(|_| Bed::default());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for seed in 1..=THREADS {
            let (beds, stop) = (&beds, &stop);
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                while !stop.load(Ordering::Relaxed) {
                    beds[random.below(TASKS)].use_one(&mut random);
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(living().all(|task| task.group == 20));
                assert!(polled().count() <= TASKS);
                read();
            }
        });
        for half in 0..2_usize {
            let (beds, stop) = (&beds, &stop);
            scope.spawn(move || poll_all(&beds[half * TASKS / 2..][..TASKS / 2], half as u64, stop));
        }
        let begun = Instant::now();
        while begun.elapsed() < stress_time() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    for bed in &beds {
        for place in &bed.places {
            place.lock().unwrap().take();
        }
        assert_eq!(bed.runtime.wakes(), bed.wakes.load(Ordering::SeqCst));
        assert_eq!(bed.runtime.alive(), 0);
    }
    assert_eq!(living().count(), 0);
}

/// Polls the tasks of these beds, ends some, and begins others.
fn poll_all(beds: &[Bed], seed: u64, stop: &AtomicBool) {
    let mut random = Random((seed + 77).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let begin = || {
        let who = Who { task: number(), group: 20 };
        (who, TaskWaits::begun(who))
    };
    let mut tasks: Vec<_> = beds.iter().map(|_| begin()).collect();
    while !stop.load(Ordering::Relaxed) {
        let at = random.below(beds.len());
        let (bed, (who, waits)) = (&beds[at], &mut tasks[at]);
        let raw = bed.runtime.waker();
        waits.poll(*who, &mut Context::from_waker(&raw), |cx| bed.leaf(cx.waker(), &mut random));
        if random.below(50) == 0 {
            tasks[at] = begin();
        }
    }
}

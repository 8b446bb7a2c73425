//! The waker that futures get is as true as the runtime's: it compares, wakes, and goes as that
//! does.

use crate::support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::thread;

use dormouse_waits::{TaskWaits, Waiting, Who};
use support::{Counting, number};

/// A task on a runtime that counts, while times are taken.
struct Bed {
    runtime: Arc<Counting>,
    who: Who,
    waits: TaskWaits,
    waiting: Waiting,
}

impl Bed {
    fn new() -> Self {
        let waiting = Waiting::start().unwrap();
        let who = Who { task: number(), group: 1 };
        Self { runtime: Arc::default(), who, waits: TaskWaits::begun(who), waiting }
    }

    fn poll<T>(&mut self, leaf: impl FnOnce(&Waker) -> T) -> T {
        let runtime = Arc::clone(&self.runtime);
        self.poll_with(&runtime.waker(), leaf)
    }

    fn poll_with<T>(&mut self, runtime: &Waker, leaf: impl FnOnce(&Waker) -> T) -> T {
        let mut cx = Context::from_waker(runtime);
        self.waits.poll(self.who, &mut cx, |cx| leaf(cx.waker()))
    }

    fn take(&mut self) -> Waker {
        self.poll(Waker::clone)
    }
}

#[test]
fn a_poll_has_a_waker_of_ours() {
    let mut bed = Bed::new();
    let runtime = Arc::clone(&bed.runtime);
    bed.poll(|waker| assert!(!waker.will_wake(&runtime.waker())));
}

#[test]
fn wakers_compare_as_the_runtimes_do() {
    let mut bed = Bed::new();
    let first = bed.take();
    // Another waker of the same task: the runtime's clone.
    let clone = Waker::clone(&bed.runtime.waker());
    bed.poll_with(&clone, |waker| assert!(first.will_wake(waker)));
    drop(clone);
    let other = Arc::<Counting>::default();
    let second = bed.poll_with(&other.waker(), |waker| {
        assert!(!first.will_wake(waker), "another task of the runtime's");
        waker.clone()
    });
    bed.poll_with(&other.waker(), |waker| assert!(second.will_wake(waker)));
    first.wake();
    assert_eq!((bed.runtime.wakes(), other.wakes()), (1, 0), "each wakes the one that it was taken of");
    second.wake();
    assert_eq!((bed.runtime.wakes(), other.wakes()), (1, 1));
    assert_eq!((bed.runtime.alive(), other.alive()), (0, 0));
}

#[test]
fn a_waker_compares_after_all_went() {
    let mut bed = Bed::new();
    let first = bed.take();
    let copy = first.clone();
    drop((first, copy));
    let again = bed.take();
    bed.poll(|waker| assert!(again.will_wake(waker)));
}

#[test]
fn the_runtime_sees_one_waker_for_all_leaves() {
    let mut bed = Bed::new();
    bed.poll(|_| ());
    assert_eq!(bed.runtime.alive(), 0, "no leaf took one");
    let mut wakers: Vec<_> = (0..4).map(|_| bed.take()).collect();
    wakers.push(wakers[0].clone());
    assert_eq!(bed.runtime.alive(), 1);
    while let Some(waker) = wakers.pop() {
        assert_eq!(bed.runtime.alive(), 1);
        if wakers.len() % 2 == 0 { drop(waker) } else { waker.wake() }
    }
    assert_eq!((bed.runtime.alive(), bed.runtime.wakes()), (0, 2));
}

#[test]
fn each_wake_arrives_once() {
    let mut bed = Bed::new();
    bed.poll(Waker::wake_by_ref);
    assert_eq!(bed.runtime.wakes(), 1, "within the poll, without a leaf's");
    let waker = bed.take();
    bed.poll(Waker::wake_by_ref);
    bed.poll(|_| waker.wake_by_ref());
    assert_eq!(bed.runtime.wakes(), 3, "within the poll, by both kinds");
    let waker = thread::spawn(move || {
        waker.wake_by_ref();
        waker
    });
    let waker = waker.join().unwrap();
    assert_eq!(bed.runtime.wakes(), 4);
    Waker::clone(&waker).wake();
    waker.wake();
    assert_eq!((bed.runtime.wakes(), bed.runtime.alive()), (6, 0));
}

#[test]
fn wakers_outlive_their_task() {
    let mut bed = Bed::new();
    let (one, other) = (bed.take(), bed.take());
    let Bed { waits, runtime, waiting, .. } = bed;
    drop(waits);
    one.wake_by_ref();
    let third = one.clone();
    // Others, which must not be mistaken for it.
    let mut beds: Vec<_> = (0..100).map(|_| Bed::new()).collect();
    let held: Vec<_> = beds.iter_mut().map(Bed::take).collect();
    one.wake();
    drop(other);
    third.wake();
    assert_eq!((runtime.wakes(), runtime.alive()), (3, 0));
    assert!(beds.iter().all(|bed| bed.runtime.wakes() == 0 && bed.runtime.alive() == 1));
    drop(held);
    assert!(beds.iter().all(|bed| bed.runtime.alive() == 0));
    drop(waiting);
}

#[test]
fn other_threads_use_the_lent_waker() {
    let mut bed = Bed::new();
    let clones = |waker: &Waker| {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        waker.wake_by_ref();
                        waker.clone()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    };
    // While no leaf has one, and while one has.
    let apart = bed.poll(clones);
    let held = bed.take();
    let counted = bed.poll(clones);
    assert_eq!(bed.runtime.wakes(), 8);
    assert!(apart.iter().all(|waker| waker.will_wake(&bed.runtime.waker())), "the runtime's own");
    assert!(counted.iter().all(|waker| waker.will_wake(&held)));
    apart.into_iter().chain(counted).for_each(Waker::wake);
    assert_eq!((bed.runtime.wakes(), bed.runtime.alive()), (16, 1), "those of both kinds arrive");
    drop(held);
    assert_eq!(bed.runtime.alive(), 0);
}

#[test]
fn a_runtime_whose_clone_panics_is_asked_again() {
    let mut bed = Bed::new();
    bed.runtime.panics.store(true, Ordering::SeqCst);
    let failed = catch_unwind(AssertUnwindSafe(|| bed.take()));
    assert!(failed.is_err());
    assert_eq!(bed.runtime.alive(), 0);
    let waker = bed.take();
    bed.poll(|lent| assert!(waker.will_wake(lent)));
    waker.wake();
    assert_eq!((bed.runtime.wakes(), bed.runtime.alive()), (1, 0));
}

#[test]
fn a_task_begun_before_times_gets_our_waker() {
    let who = Who { task: number(), group: 1 };
    let mut bed = Bed { waits: TaskWaits::default(), who, ..Bed::new() };
    let waker = bed.take();
    bed.poll(|lent| assert!(waker.will_wake(lent)));
    drop(waker);
    assert_eq!(bed.runtime.alive(), 0);
}

#[test]
fn wakers_outlive_the_times() {
    let mut bed = Bed::new();
    let waker = bed.take();
    let Bed { runtime, mut waits, who, waiting } = bed;
    drop(waiting);
    waker.wake_by_ref();
    let raw = runtime.waker();
    waits.poll(who, &mut Context::from_waker(&raw), |cx| cx.waker().wake_by_ref());
    drop(waits);
    waker.wake();
    assert_eq!((runtime.wakes(), runtime.alive()), (3, 0));
}

//! A program whose allocations are sampled. Each test in a process of its own, because the listener
//! hears of the whole process.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use dormouse_events::heap;
use dormouse_sys::heap::{Allocation, Listener};
use dormouse_sys::process::identity;
use dormouse_testkit::{fork, in_child};

use crate::ALLOC;

const PERIOD: u64 = 1024;

/// The thread whose allocations are of interest.
static THREAD: AtomicU64 = AtomicU64::new(0);
static HEARD: AtomicU64 = AtomicU64::new(0);
/// The weighted bytes of those.
static WEIGHED: AtomicU64 = AtomicU64::new(0);
static NESTED: AtomicU64 = AtomicU64::new(0);
static INSIDE: AtomicBool = AtomicBool::new(false);
/// The place whose free is waited for, and how often it was heard of.
static EXPECTED: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);

static LISTENER: Listener = Listener { allocated, freed };

fn allocated(allocation: &Allocation) {
    if u64::from(identity::tid()) != THREAD.load(Ordering::Relaxed) {
        return;
    }
    NESTED.fetch_add(INSIDE.swap(true, Ordering::Relaxed).into(), Ordering::Relaxed);
    // A real listener must not; here it shows that it would not be asked again.
    for _ in 0..10 {
        drop(black_box(Box::new([0_u8; 4096])));
    }
    INSIDE.store(false, Ordering::Relaxed);
    let odds = -(-(allocation.size as f64) / allocation.period as f64).exp_m1();
    WEIGHED.fetch_add((allocation.size as f64 / odds) as u64, Ordering::Relaxed);
    HEARD.fetch_add(1, Ordering::Relaxed);
}

fn freed(place: usize) {
    FREED.fetch_add((place == EXPECTED.load(Ordering::Relaxed)).into(), Ordering::Relaxed);
}

/// The allocations of this thread's work that were heard of, and their weighted bytes.
fn heard(work: impl FnOnce()) -> (u64, u64) {
    HEARD.store(0, Ordering::Relaxed);
    WEIGHED.store(0, Ordering::Relaxed);
    THREAD.store(identity::tid().into(), Ordering::Relaxed);
    work();
    THREAD.store(0, Ordering::Relaxed);
    (HEARD.load(Ordering::Relaxed), WEIGHED.load(Ordering::Relaxed))
}

fn allocate(bytes: usize, times: usize) {
    for _ in 0..times {
        // By hand: a pair of `Box::new` and its drop may be optimized out.
        let layout = Layout::from_size_align(bytes, 8).unwrap();
        // SAFETY: the layout is not empty, and the place is given back with it.
        unsafe { ALLOC.dealloc(black_box(ALLOC.alloc(layout)), layout) };
    }
}

#[test]
fn weights_restore_what_was_allocated() {
    const TIMES: usize = 50_000;
    in_child(|| {
        assert_eq!(heard(|| allocate(1 << 20, 10)), (0, 0), "asleep");
        heap().set_period(PERIOD);
        let awake = heap().sample(&LISTENER).unwrap();
        for size in [24, 700, 9000] {
            let (heard, weighed) = heard(|| allocate(size, TIMES));
            let odds = -(-(size as f64) / PERIOD as f64).exp_m1();
            let expected = (size * TIMES) as f64;
            // Of a sum of weights of 1/odds, each there with these odds.
            let sigma = size as f64 * (TIMES as f64 * (1.0 - odds) / odds).sqrt();
            assert!((weighed as f64 - expected).abs() <= 5.0 * sigma + heard as f64, "{size}: {weighed}");
            assert!(heard > 100, "{heard}");
        }
        assert_eq!(NESTED.load(Ordering::Relaxed), 0);
        let zeroed = heard(|| drop(black_box(vec![0_u8; 1 << 20])));
        assert_eq!(zeroed.0, 1);
        let mut grown = Vec::<u8>::with_capacity(1 << 20);
        let moved = heard(|| grown.reserve_exact(black_box(2 << 20)));
        assert_eq!((moved.0, moved.1), (1, 2 << 20), "a new one, of its whole size");
        drop(awake);
        assert_eq!(heard(|| allocate(1 << 20, 10)), (0, 0), "asleep again");
    });
}

#[test]
fn frees_are_heard_of_while_they_are_watched() {
    in_child(|| {
        let _awake = heap().sample(&LISTENER).unwrap();
        let freed_of = |make: &dyn Fn() -> Vec<u8>, end: &dyn Fn(Vec<u8>)| {
            let made = make();
            FREED.store(0, Ordering::Relaxed);
            EXPECTED.store(made.as_ptr().addr(), Ordering::Relaxed);
            end(made);
            EXPECTED.store(0, Ordering::Relaxed);
            FREED.load(Ordering::Relaxed)
        };
        let make = || black_box(Vec::with_capacity(1 << 20));
        assert_eq!(freed_of(&make, &drop), 0);
        let watched = heap().watch_frees().unwrap();
        assert_eq!(freed_of(&make, &drop), 1);
        // A vector that moves is freed where it was. (The new place is forgotten, not freed.)
        let grow = |mut bytes: Vec<u8>| {
            bytes.reserve_exact(black_box(64 << 20));
            std::mem::forget(bytes);
        };
        assert_eq!(freed_of(&make, &grow), 1);
        drop(watched);
        assert_eq!(freed_of(&make, &drop), 0);
    });
}

/// Allocates in the middle of other allocations. (The code that it interrupts is this crate's
/// listener and no allocator: there it would be the handler's own fault.)
extern "C" fn handler(_: libc::c_int) {
    allocate(1 << 20, 3);
}

#[test]
fn handlers_over_the_listener_are_not_heard() {
    static RAISES: AtomicBool = AtomicBool::new(true);
    static RAISING: Listener = Listener {
        allocated: |allocation| {
            allocated(allocation);
            // SAFETY: the handler is installed. It is not raised for its own allocations.
            RAISES.load(Ordering::Relaxed).then(|| unsafe { libc::raise(libc::SIGUSR1) });
        },
        freed,
    };
    in_child(|| {
        // SAFETY: the handler has no state.
        unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
        heap().set_period(1);
        let _awake = heap().sample(&RAISING).unwrap();
        assert_eq!(heard(|| allocate(1 << 20, 100)).0, 100);
        RAISES.store(false, Ordering::Relaxed);
        // SAFETY: as above. Outside of the listener a handler's are as all others.
        assert_eq!(heard(|| _ = unsafe { libc::raise(libc::SIGUSR1) }).0, 3);
    });
}

#[test]
fn a_fork_child_samples_nothing_of_its_parents() {
    in_child(|| {
        heap().set_period(1);
        let _awake = heap().sample(&LISTENER).unwrap();
        let child = fork(|| {
            assert_eq!(heard(|| allocate(1 << 20, 10)).0, 0);
            let _own = heap().sample(&LISTENER).unwrap();
            assert_eq!(heard(|| allocate(1 << 20, 10)).0, 10);
        });
        assert!(child.success(), "{child}");
        assert_eq!(heard(|| allocate(1 << 20, 10)).0, 10);
    });
}

#[test]
fn threads_allocate_while_sampling_begins_and_ends() {
    const ROUNDS: usize = 50;
    static MADE: AtomicU64 = AtomicU64::new(0);
    static TOLD: AtomicU64 = AtomicU64::new(0);
    static COUNTING: Listener = Listener {
        allocated: |_| _ = TOLD.fetch_add(1, Ordering::Relaxed),
        freed: |_| _ = MADE.fetch_add(1, Ordering::Relaxed),
    };
    in_child(|| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let stop = &stop;
                scope.spawn(move || {
                    let mut kept: Vec<Vec<u8>> = Vec::new();
                    for n in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let size = 1 + (n * 37 + thread * 11) % 5000;
                        let mut bytes = vec![n as u8; size];
                        bytes.reserve(black_box(n % 300));
                        assert!(bytes.iter().all(|&byte| byte == n as u8));
                        kept.push(bytes);
                        if kept.len() > 50 {
                            kept.swap_remove(n % 50);
                        }
                    }
                });
            }
            for round in 0..ROUNDS {
                let told = TOLD.load(Ordering::Relaxed);
                let awake = heap().sample(&COUNTING).unwrap();
                let watched = (round % 2 == 0).then(|| heap().watch_frees().unwrap());
                heap().set_period([1, 100, 10_000][round % 3]);
                while TOLD.load(Ordering::Relaxed) == told {
                    std::thread::yield_now();
                }
                drop((awake, watched));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(MADE.load(Ordering::Relaxed) > 0);
    });
}

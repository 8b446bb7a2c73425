//! A sample of allocations, by bytes, for a listener outside of this crate
//! ([`dormouse_sys::heap`]).
//!
//! Each thread counts down the bytes to the next allocation that is picked. At each pick the
//! distance is drawn anew from the exponential distribution. That distribution has no memory: the
//! rest of a distance is distributed as a whole one. So a thread may begin to count, pause, or draw
//! anew when the period changes, at any time, and the sample stays unbiased.
//!
//! It sleeps behind keys of its own, which are tested only while the wrapper is awake. An
//! allocation that is not picked costs a subtraction from a constant thread-local; one that is
//! picked costs what the listener does.
//!
//! # In signal handlers
//!
//! A handler that allocates in the middle of a subtraction of its thread loses one of the two from
//! the distance. In the middle of the listener, its allocations are not reported ([`Underway`]).
//!
//! # Safety
//!
//! The unsafe code makes a reference from the pointer that [`listen`] has stored.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use dormouse_keys::static_key;
use dormouse_sys::heap::{Allocation, Listener};
use dormouse_sys::stack::CallFrame;
use dormouse_sys::underway::Underway;

static_key! {
    /// Somebody samples allocations.
    pub(super) static SAMPLED: "dormouse.alloc.sampled" = false;
}

static_key! {
    /// Somebody follows allocations of the sample until they are freed.
    pub(super) static FOLLOWED: "dormouse.alloc.followed" = false;
}

/// Odd, with bits everywhere (the golden ratio): the step of [`Countdown::random`].
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

static LISTENER: AtomicPtr<Listener> = AtomicPtr::new(ptr::null_mut());
static PERIOD: AtomicU64 = AtomicU64::new(1);
/// The seed of the next thread's random numbers. It is the same in each run, which does no harm.
static SEED: AtomicU64 = AtomicU64::new(1);

struct Countdown {
    /// Bytes up to the next one that is picked, that one included.
    left: Cell<u64>,
    /// The period by which it was drawn; 0: nothing was.
    period: Cell<u64>,
    random: Cell<u64>,
    telling: Underway,
}

thread_local! {
    static COUNTDOWN: Countdown = const {
        Countdown {
            left: Cell::new(0),
            period: Cell::new(0),
            random: Cell::new(0),
            telling: Underway::new(),
        }
    };
}

const _: () = assert!(!std::mem::needs_drop::<Countdown>());

/// Sets the listener that is called from now on.
pub(super) fn listen(listener: &'static Listener) {
    // Pairs with the load in `listener`.
    LISTENER.store(ptr::from_ref(listener).cast_mut(), Ordering::Release);
}

/// Bytes between two picks, on average.
pub(super) fn set_period(bytes: u64) {
    PERIOD.store(bytes.max(1), Ordering::Relaxed);
}

fn listener() -> Option<&'static Listener> {
    // Pairs with the store in `listen`.
    // SAFETY: null, or what `listen` was given, which is static.
    unsafe { LISTENER.load(Ordering::Acquire).as_ref() }
}

/// An allocation was made, by the code with these registers. Never inlined: counting
/// alone need not save the registers that this takes.
#[inline(never)]
pub(super) fn allocated(place: usize, size: usize, from: CallFrame) {
    COUNTDOWN.with(|countdown| {
        let period = PERIOD.load(Ordering::Relaxed);
        let left = countdown.left.get();
        if period == countdown.period.get() && (size as u64) < left {
            countdown.left.set(left - size as u64);
        } else if countdown.is_picked(size as u64, period) {
            countdown.tell(&Allocation { place, size, period, from });
        }
    });
}

/// A place is about to be freed.
#[inline]
pub(super) fn freed(place: usize) {
    if let Some(listener) = listener() {
        (listener.freed)(place);
    }
}

impl Countdown {
    /// Counts an allocation at which the distance ends, or begins by another period.
    #[cold]
    fn is_picked(&self, size: u64, period: u64) -> bool {
        if self.period.get() == 0 {
            self.random.set(SEED.fetch_add(STEP, Ordering::Relaxed).wrapping_mul(STEP));
        }
        let is_drawn = self.period.replace(period) == period;
        let left = if is_drawn { self.left.get() } else { self.draw(period) };
        let is_picked = size >= left;
        self.left.set(if is_picked { self.draw(period) } else { left - size });
        is_picked
    }

    /// A distance: more than `n` bytes with odds of `exp(-n / period)`.
    fn draw(&self, period: u64) -> u64 {
        let nats = -self.uniform().ln();
        // At most 37 nats. A cast cuts, so a distance is the first byte that is not before the end;
        // one beyond all numbers is the largest.
        ((nats * period as f64) as u64).saturating_add(1)
    }

    /// Above 0, up to 1.
    fn uniform(&self) -> f64 {
        const BITS: u32 = 53;
        ((self.random() >> (u64::BITS - BITS)) + 1) as f64 / (1_u64 << BITS) as f64
    }

    /// `SplitMix64` (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
    fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(STEP);
        self.random.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    #[cold]
    fn tell(&self, allocation: &Allocation) {
        let (Some(listener), Some(begun)) = (listener(), self.telling.begin()) else { return };
        (listener.allocated)(allocation);
        self.telling.end(begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn countdown() -> Countdown {
        Countdown { left: Cell::new(0), period: Cell::new(0), random: Cell::new(7), telling: Underway::new() }
    }

    /// How many of `count` allocations of `size` bytes are picked.
    fn picked(countdown: &Countdown, size: u64, period: u64, count: u64) -> f64 {
        (0..count).filter(|_| countdown.is_picked(size, period)).count() as f64
    }

    #[test]
    fn odds_are_those_of_the_bytes() {
        const COUNT: u64 = 200_000;
        for (size, period) in [(1, 100), (16, 512), (100, 100), (1000, 100), (64, 1), (3, 2)] {
            let odds = -(-(size as f64) / period as f64).exp_m1();
            let expected = odds * COUNT as f64;
            let sigma = (expected * (1.0 - odds)).sqrt();
            let found = picked(&countdown(), size, period, COUNT);
            assert!((found - expected).abs() <= 5.0 * sigma + 1.0, "{size}/{period}: {found} of {expected}");
        }
    }

    #[test]
    fn weights_restore_mixed_sizes() {
        const COUNT: u64 = 100_000;
        const PERIOD: u64 = 4096;
        const SIZES: [u64; 4] = [16, 500, 5000, 100_000];
        let countdown = countdown();
        let mut found = [0.0; 4];
        for n in 0..COUNT {
            let class = (n % 4) as usize;
            if countdown.is_picked(SIZES[class], PERIOD) {
                found[class] += 1.0;
            }
        }
        for (size, found) in SIZES.into_iter().zip(found) {
            let odds = -(-(size as f64) / PERIOD as f64).exp_m1();
            let expected = odds * (COUNT / 4) as f64;
            let sigma = (expected * (1.0 - odds)).sqrt();
            assert!((found - expected).abs() <= 5.0 * sigma + 1.0, "{size}: {found} of {expected}");
        }
    }

    #[test]
    fn another_period_counts_at_once() {
        let countdown = countdown();
        assert!(!countdown.is_picked(1, u64::MAX));
        assert!(picked(&countdown, 64, 1, 100) > 99.0);
    }

    #[test]
    fn the_longest_period_picks_nothing() {
        let countdown = countdown();
        let mut least = u64::MAX;
        for _ in 0..1000 {
            least = least.min(countdown.draw(u64::MAX));
        }
        assert!(least > 1 << 40, "{least}");
        assert!((0..1000).all(|_| !countdown.is_picked(1, u64::MAX)));
    }

    #[test]
    fn threads_draw_different_distances() {
        let draw = || {
            COUNTDOWN.with(|countdown| {
                countdown.is_picked(1, 1 << 40);
                countdown.left.get()
            })
        };
        assert_ne!(std::thread::spawn(draw).join().unwrap(), std::thread::spawn(draw).join().unwrap());
    }
}

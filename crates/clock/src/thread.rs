//! The clock of one thread: the kernel's value, extended by ticks while the tier's proof holds.
//!
//! # Invariants
//!
//! 1. While `armed` is a tier and that tier's proof holds, the thread has run without a break since
//!    `base_tsc`, when its CPU time was `base_ns`.
//! 2. `last` is the largest value that the thread has been given; it moves by
//!    [`arch::advance`](crate::arch) alone, so a signal handler's read in the middle of ours is noticed and
//!    ours begins again.
//! 3. `epoch` moves at the beginning of every resync. A read or an outer resync that finds it moved begins
//!    again: what it has read of `base_*` may be half of one resync and half of another.
//! 4. During a resync and a change of tiers `armed` is [`Tier::Syscall`], so a handler in the middle of one
//!    does a resync of its own, or asks the kernel.
//! 5. A tier gives back what it has on a thread only in [`force`] and at the thread's end, never in a read:
//!    a handler's read may have come in the middle of another.
//!
//! The order of the accesses matters against signal handlers of the same thread only, so compiler
//! fences are all it takes.
//!
//! # Safety
//!
//! The unsafe code finds the thread's clock.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::time::Duration;

use dormouse_sys::Capability;

use crate::arch::{advance, rdtsc};
use crate::error::Error;
use crate::tier::{self, Proofs, Tier};
use crate::{kernel, moment, tsc};

/// Nanoseconds after which a read asks the kernel again although the proof holds: bounds what steal,
/// interrupts and a wrong rate can do. One call in a millisecond is a thousandth of the time at most.
pub const EPOCH_NS: u64 = 1_000_000;

/// The widest bracket of a resync, in nanoseconds, that is not worth another try.
const WIDE: u64 = 10_000;

/// CPU time of a thread, and what it is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTime {
    /// CPU time, in nanoseconds: what [`thread_cpu_ns`] gives.
    pub ns: u64,
    /// The kernel's own value is no further from it than that, in nanoseconds.
    ///
    /// Nearly all of it is the time since the kernel was last asked, a millisecond at most: steal and
    /// interrupts in it, which the kernel may leave out, cannot be told from work. The rest is half the
    /// width of the resync's bracket, and what the clock was ahead when the kernel was last asked and now
    /// waits for.
    pub error_bound_ns: u64,
    /// The tier that it was read by.
    pub tier: Tier,
}

impl From<CpuTime> for Duration {
    fn from(time: CpuTime) -> Self {
        Self::from_nanos(time.ns)
    }
}

/// A value, and how it came about.
struct Reading {
    ns: u64,
    /// What the clock makes of it; less than `ns` while it waits to be true again.
    true_ns: u64,
    /// Ticks since the kernel was asked.
    age: u64,
    /// Ticks that the bracket of that question was wide.
    width: u64,
}

struct Clock {
    armed: Cell<Tier>,
    epoch: Cell<u32>,
    base_ns: Cell<u64>,
    base_tsc: Cell<u64>,
    /// Ticks that the epoch may last.
    limit: Cell<u64>,
    width: Cell<u64>,
    last: Cell<u64>,
    proofs: Proofs,
    tier: Cell<Tier>,
    /// [`tier::generation`] when the thread got its tier, 0: it has none.
    attached: Cell<u32>,
    /// The thread is between two tiers.
    changing: Cell<bool>,
}

/// Fork children will be told.
static HOOKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CLOCK: Clock = const {
        Clock {
            armed: Cell::new(Tier::Syscall),
            epoch: Cell::new(0),
            base_ns: Cell::new(0),
            base_tsc: Cell::new(0),
            limit: Cell::new(0),
            width: Cell::new(0),
            last: Cell::new(0),
            proofs: Proofs::new(),
            tier: Cell::new(Tier::Syscall),
            attached: Cell::new(0),
            changing: Cell::new(false),
        }
    };
}

const _: () = assert!(!std::mem::needs_drop::<Clock>());

/// [`LocalKey::with`](std::thread::LocalKey::with), inlined however much `look` does: no call for the place of a constant.
#[inline(always)]
fn with<R>(look: impl FnOnce(&Clock) -> R) -> R {
    let clock = CLOCK.with(std::ptr::from_ref);
    // SAFETY: it has no destructor, so it is there as long as the thread, and is the thread's alone.
    look(unsafe { &*clock })
}

/// CPU time of the calling thread, in nanoseconds; never smaller than an earlier answer on this thread.
///
/// # Cost
///
/// One `rdtsc` and a few nanoseconds on all tiers but [`Tier::Syscall`]; plus a system call after the
/// thread was descheduled, once a millisecond, and on [`Tier::Gap`] when the last read is longer ago than
/// about two microseconds.
#[inline]
pub fn thread_cpu_ns() -> u64 {
    with(|clock| clock.fast().map_or_else(|| clock.slow().ns, |(reading, _)| reading.ns))
}

/// [`thread_cpu_ns`], and the moment of the read or one just before it.
#[inline]
pub(crate) fn thread_cpu_ns_at() -> (u64, u64) {
    with(|clock| {
        if let Some((reading, now)) = clock.fast() {
            return (reading.ns, now);
        }
        let now = moment::now();
        (clock.slow().ns, now)
    })
}

/// CPU time of the calling thread with the bound of its error.
///
/// # Cost
///
/// That of [`thread_cpu_ns`] and a multiplication.
#[inline]
pub fn thread_cpu_time() -> CpuTime {
    with(|clock| {
        let reading = clock.fast().map_or_else(|| clock.slow(), |(reading, _)| reading);
        let bracket = reading.width.div_ceil(2);
        CpuTime {
            ns: reading.ns,
            error_bound_ns: (reading.ns - reading.true_ns) + moment::to_ns(reading.age + bracket),
            tier: clock.tier.get(),
        }
    })
}

/// The tier of the calling thread's clock.
pub fn tier() -> Tier {
    CLOCK.with(Clock::attach)
}

/// Makes `tier` the best that threads take, or with `None` the best there is again, or what
/// `DORMOUSE_CLOCK` says. The calling thread changes at once, others when their clocks next ask the kernel:
/// within a millisecond of their running. A thread that cannot have the tier takes the next one, as always:
/// [`tier`] tells. Not for signal handlers. The page of another thread that leaves [`Tier::Page`] stays its
/// own until its end.
///
/// # Cost
///
/// The test of the tier, if it was never needed before: a few milliseconds.
///
/// # Errors
///
/// [`Error::Tier`] when the test is not passed; then nothing changes.
pub fn force(tier: Option<Tier>) -> Result<(), Error> {
    CLOCK.with(|clock| {
        tier::begin_at(tier, &clock.proofs)?;
        clock.let_go();
        clock.attach();
        Ok(())
    })
}

/// What `dormouse doctor` says of the calling thread's clock.
pub fn capability() -> Vec<Capability> {
    tier::report(tier())
}

impl Clock {
    /// A reading without asking, and the counter at that moment.
    #[inline(always)]
    fn fast(&self) -> Option<(Reading, u64)> {
        let armed = self.armed.get();
        // Before the counter, which may be forbidden then.
        if armed == Tier::Syscall {
            return None;
        }
        let epoch = self.epoch.get();
        let last = self.last.get();
        let (base_ns, base_tsc) = (self.base_ns.get(), self.base_tsc.get());
        compiler_fence(Ordering::SeqCst);
        let now = rdtsc();
        let age = now.wrapping_sub(base_tsc);
        compiler_fence(Ordering::SeqCst);
        // Looked at after the counter: if the proof holds now, the thread ran through until now.
        if !self.proofs.holds(armed, now) || age > self.limit.get() || self.epoch.get() != epoch {
            return None;
        }
        // No overflow: at most EPOCH_NS.
        let true_ns = base_ns + ((age * tsc::rate()) >> 32);
        let ns = true_ns.max(last);
        advance(&self.last, last, ns).then(|| (Reading { ns, true_ns, age, width: self.width.get() }, now))
    }

    #[cold]
    #[inline(never)]
    fn slow(&self) -> Reading {
        let mut tier = self.attach();
        while tier != Tier::Syscall {
            if let Some(reading) = self.resync(tier) {
                return reading;
            }
            tier = self.change(Some(tier));
        }
        self.asked(kernel::thread_ns(), 0)
    }

    /// The kernel has just said `true_ns`, somewhere in a bracket of `width` ticks.
    fn asked(&self, true_ns: u64, width: u64) -> Reading {
        loop {
            let last = self.last.get();
            let ns = true_ns.max(last);
            if advance(&self.last, last, ns) {
                return Reading { ns, true_ns, age: width / 2, width };
            }
        }
    }

    /// Asks the kernel and begins an epoch; `None` when the thread cannot go on in this tier.
    fn resync(&self, tier: Tier) -> Option<Reading> {
        if !tsc::holds() {
            return None;
        }
        let wide = moment::from_ns(WIDE);
        let (mut ns, mut width) = (0, 0);
        // A thread that is preempted in every try is better served by the kernel's plain value.
        for left in (0..4).rev() {
            self.armed.set(Tier::Syscall);
            let epoch = self.epoch.get().wrapping_add(1);
            self.epoch.set(epoch);
            compiler_fence(Ordering::SeqCst);
            if !self.proofs.arm(tier) {
                return None;
            }
            let before = rdtsc();
            ns = kernel::thread_ns();
            let after = rdtsc();
            width = after.wrapping_sub(before);
            // The kernel's word, even if more has been given already: then the clock stands still until it
            // is true again, and no error outlives its epoch.
            self.base_ns.set(ns);
            // The kernel read its clock somewhere between the two.
            self.base_tsc.set(before.wrapping_add(width / 2));
            self.limit.set(moment::from_ns(EPOCH_NS));
            self.width.set(width);
            compiler_fence(Ordering::SeqCst);
            if self.proofs.holds(tier, after) && self.epoch.get() == epoch && (width < wide || left == 0) {
                self.armed.set(tier);
                return Some(self.asked(ns, width));
            }
        }
        // A handler's resync may have raised it over what we have written since.
        self.armed.set(Tier::Syscall);
        Some(self.asked(ns, width))
    }

    /// The thread's tier. Gets one if the thread has none, or one of before the last [`force`].
    fn attach(&self) -> Tier {
        if self.attached.get() == tier::generation() {
            return self.tier.get();
        }
        // No lock that a fork or a signal could come into: adding it again adds nothing.
        if !HOOKED.load(Ordering::Relaxed) {
            dormouse_sys::thread::on_fork_child(forget);
            HOOKED.store(true, Ordering::Relaxed);
        }
        self.change(None)
    }

    /// Goes to the first tier below `above` that is to be had.
    #[cold]
    fn change(&self, above: Option<Tier>) -> Tier {
        if self.changing.replace(true) {
            // A signal handler in the middle of it.
            return Tier::Syscall;
        }
        self.armed.set(Tier::Syscall);
        self.epoch.set(self.epoch.get().wrapping_add(1));
        let generation = tier::generation();
        // While another thread tests, this one asks the kernel, and looks again at its next read.
        let tier = tier::climb_down(&self.proofs, above);
        self.tier.set(tier.unwrap_or(Tier::Syscall));
        self.attached.set(if tier.is_some() { generation } else { 0 });
        compiler_fence(Ordering::SeqCst);
        self.changing.set(false);
        self.tier.get()
    }

    /// Leaves the tier and gives back what it had.
    fn let_go(&self) {
        self.armed.set(Tier::Syscall);
        self.epoch.set(self.epoch.get().wrapping_add(1));
        self.attached.set(0);
        // A handler between these two asks the kernel.
        let changing = self.changing.replace(true);
        compiler_fence(Ordering::SeqCst);
        self.proofs.detach(Tier::Rseq);
        self.proofs.detach(Tier::Page);
        compiler_fence(Ordering::SeqCst);
        self.changing.set(changing);
    }
}

/// The calling thread ends.
pub(crate) fn end() {
    CLOCK.with(Clock::let_go);
}

/// In a fork child the only thread's CPU time begins at zero again.
fn forget() {
    CLOCK.with(|clock| {
        clock.armed.set(Tier::Syscall);
        clock.epoch.set(clock.epoch.get().wrapping_add(1));
        clock.attached.set(0);
        clock.last.set(0);
        tsc::forget();
        tier::forget();
    });
}

#[cfg(test)]
#[path = "../tests/child/mod.rs"]
mod child;

#[cfg(test)]
mod tests {
    use super::child::in_child;
    use super::*;

    fn spin(for_ns: u64) {
        let end = kernel::thread_ns() + for_ns;
        while kernel::thread_ns() < end {}
    }

    #[test]
    fn a_clock_that_was_ahead_stands_still_and_says_so_until_it_is_true_again() {
        CLOCK.with(|clock| {
            let now = thread_cpu_ns();
            // As after an epoch with steal.
            clock.last.set(now + 30_000_000);
            clock.armed.set(Tier::Syscall);
            let waiting = thread_cpu_time();
            assert_eq!(waiting.ns, now + 30_000_000, "never back");
            assert!(waiting.error_bound_ns > 25_000_000, "{waiting:?}");
            spin(60_000_000);
            let (ours, kernel) = (thread_cpu_time(), kernel::thread_ns());
            assert!(ours.ns <= kernel + ours.error_bound_ns, "{ours:?} stays ahead of {kernel}");
            assert!(ours.error_bound_ns < 25_000_000, "{ours:?}");
        });
    }

    #[test]
    fn what_the_clock_was_ahead_it_waits_for_and_does_not_carry_on() {
        CLOCK.with(|clock| {
            let ahead = thread_cpu_ns() + 2_000_000;
            clock.last.set(ahead);
            for _ in 0..100 {
                clock.armed.set(Tier::Syscall);
                assert!(thread_cpu_ns() >= ahead);
            }
            spin(4_000_000);
            let (ours, kernel) = (thread_cpu_ns(), kernel::thread_ns());
            // Half of what it was ahead: steal in one epoch of this test may be some of it.
            assert!(ours <= kernel + 1_000_000, "{} ns ahead", ours - kernel);
        });
    }

    #[test]
    fn a_proof_that_does_not_hold_means_a_resync_not_a_wrong_time() {
        CLOCK.with(|clock| {
            if clock.attach() == Tier::Syscall {
                return println!("1 skipped: {:?}", capability());
            }
            thread_cpu_ns();
            let epoch = clock.epoch.get();
            std::thread::sleep(Duration::from_micros(50));
            thread_cpu_ns();
            assert_ne!(clock.epoch.get(), epoch);
        });
    }

    #[test]
    fn a_thread_that_is_between_two_tiers_asks_the_kernel() {
        CLOCK.with(|clock| {
            thread_cpu_ns();
            // As a signal handler finds it in the middle of a change.
            clock.changing.set(true);
            clock.armed.set(Tier::Syscall);
            clock.attached.set(0);
            let before = kernel::thread_ns();
            assert!(thread_cpu_ns() >= before);
            assert_eq!(clock.attached.get(), 0);
            clock.changing.set(false);
            assert!(thread_cpu_ns() >= before);
            assert_ne!(clock.attached.get(), 0);
        });
    }

    #[test]
    fn a_counter_that_is_given_up_sends_every_thread_to_the_kernel_for_good() {
        let name = "thread::tests::a_counter_that_is_given_up_sends_every_thread_to_the_kernel_for_good";
        in_child(name, &[&[]], || {
            let best = tier();
            let mut last = thread_cpu_ns();
            tsc::give_up();
            // Until its epoch is over; no step back on the way.
            let end = kernel::thread_ns() + 3_000_000;
            while kernel::thread_ns() < end {
                let now = thread_cpu_ns();
                assert!(now >= last);
                last = now;
            }
            assert_eq!(thread_cpu_time().tier, Tier::Syscall);
            assert_eq!(std::thread::spawn(tier).join().unwrap(), Tier::Syscall);
            let refused = force(Some(best));
            assert!(best == Tier::Syscall || matches!(refused, Err(Error::Tier { .. })), "{refused:?}");
            assert!(capability().iter().any(|line| line.detail.contains("changed its rate")));
        });
    }
}

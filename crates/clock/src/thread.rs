//! The clock of one thread: the kernel's value, extended by ticks while the tier's proof holds.
//!
//! # Invariants
//!
//! 1. While `armed` is a tier and that tier's proof holds, the thread has run without interruption
//!    since `base_tsc`, when its CPU time was `base_ns`.
//! 2. `last` is the largest value that the thread has been given. Only
//!    [`arch::advance`](crate::arch) moves it, so a read that is interrupted by a signal handler's
//!    read notices that and begins again.
//! 3. `epoch` moves at the beginning of every resync. A read or an outer resync that finds it
//!    changed begins again: its `base_*` may be half of one resync and half of another.
//! 4. During a resync and a change of tiers `armed` is [`Tier::Syscall`], so a handler in the
//!    middle of one makes a resync of its own, or reads the kernel's clock.
//! 5. A tier detaches from a thread only in [`force`] and at the thread's end, never in a read: a
//!    handler's read may have interrupted another read.
//!
//! The order of the accesses matters only for signal handlers of the same thread, so compiler
//! fences are enough.
//!
//! # Safety
//!
//! The unsafe code finds the thread's clock.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

use dormouse_sys::Capability;
use dormouse_sys::process::fork::{Phase, Reset};
use dormouse_sys::process::identity;
use dormouse_sys::underway::Underway;

use crate::arch::{advance, rdtsc};
use crate::error::Error;
use crate::point::{ns_to_ticks, ticks_to_ns};
use crate::stamp::{share, stamp};
use crate::stretch::{Answer, Limits, Side, StretchClock};
use crate::tier::{self, Proofs, Tier};
use crate::tsc::Reference;
use crate::{kernel, tsc};

/// Nanoseconds after which a read asks the kernel again although the proof holds: this bounds the
/// error by steal, interrupts and a wrong rate. One call in a millisecond is at most a thousandth
/// of the time.
pub const EPOCH_NS: u64 = 1_000_000;

/// The widest bracket of a resync, in nanoseconds, that is not worth another try.
const WIDE: u64 = 10_000;

/// CPU time of a thread, with its error bound and its tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTime {
    /// CPU time in nanoseconds, as [`thread_cpu_ns`] returns it.
    pub ns: u64,
    /// The largest possible distance from the kernel's own value, in nanoseconds.
    ///
    /// Nearly all of it is the time since the kernel was last asked, at most a millisecond: steal
    /// and interrupts in it, which the kernel may leave out, look like work. The rest is half the
    /// width of the resync's bracket, and the amount by which the clock was ahead of the kernel at
    /// the last resync (it stands still until the kernel has caught up). `u64::MAX` where a seccomp
    /// filter refuses the call.
    pub error_bound_ns: u64,
    /// The tier by which the clock was read.
    pub tier: Tier,
}

/// [`Reading::age`] where the kernel does not answer.
const UNKNOWN: u64 = u64::MAX;

/// A value, and how it came about.
struct Reading {
    ns: u64,
    /// The value by base and counter; less than `ns` while the clock waits to be true again.
    true_ns: u64,
    /// Ticks since the kernel was asked, or [`UNKNOWN`].
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
    changing: Underway,
    reference: Reference,
    /// On the gap tier.
    stretches: StretchClock,
}

static FORGET: Reset = Reset::new(Phase::Clocks, forget);

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
            proofs: Proofs::new(end),
            tier: Cell::new(Tier::Syscall),
            attached: Cell::new(0),
            changing: Underway::new(),
            reference: Reference::new(),
            stretches: StretchClock::new(),
        }
    };
}

const _: () = assert!(!std::mem::needs_drop::<Clock>());

/// [`LocalKey::with`](std::thread::LocalKey::with), inlined however much `look` does: no call for
/// the place of a constant.
#[inline(always)]
fn with<R>(look: impl FnOnce(&Clock) -> R) -> R {
    let clock = CLOCK.with(std::ptr::from_ref);
    // SAFETY: it has no destructor, so it is there as long as the thread, and is the thread's
    // alone.
    look(unsafe { &*clock })
}

/// CPU time of the calling thread in nanoseconds; never smaller than an earlier result on this
/// thread. Where a seccomp filter refuses `clock_gettime` it stands still.
///
/// # Cost
///
/// One `rdtsc` and a few nanoseconds on all tiers but [`Tier::Syscall`]. A system call more after
/// the thread was descheduled, once a millisecond, and on [`Tier::Gap`] when the last read was more
/// than about two microseconds ago.
#[inline]
pub fn thread_cpu_ns() -> u64 {
    with(|clock| clock.fast(true).map_or_else(|| clock.slow().ns, |(reading, _)| reading.ns))
}

/// [`thread_cpu_ns`], and the stamp of the read or one just before it.
#[inline]
pub fn thread_cpu_ns_at() -> (u64, u64) {
    with(|clock| {
        if let Some((reading, now)) = clock.fast(true) {
            return (reading.ns, now);
        }
        let now = stamp();
        (clock.slow().ns, now)
    })
}

/// The value at the beginning of a stretch that is charged: [`thread_cpu_ns_end`] minus this is the
/// stretch's CPU time. Two stretches of a thread must not overlap, except that one read may end the
/// first and begin the second: then it is an end.
///
/// On [`Tier::Gap`] this clock is not [`thread_cpu_ns`] but one beside it, which stands still
/// between two stretches where the thread's CPU time is not known. A stretch in which the thread
/// was descheduled may be charged more than it used: at most the CPU time that the thread has used
/// outside of stretches in the 10 ms before.
///
/// # Cost
///
/// The cost of [`thread_cpu_ns`]. On [`Tier::Gap`] a system call only once in 10 ms, however long
/// ago the last read was.
#[inline]
pub fn thread_cpu_ns_begin() -> u64 {
    with(|clock| clock.fast(false).map_or_else(|| clock.stretch(Side::Begin), |(reading, _)| reading.ns))
}

/// The value at the end of a stretch: see [`thread_cpu_ns_begin`]. Never smaller than an earlier
/// result of either function on this thread.
///
/// # Cost
///
/// The cost of [`thread_cpu_ns`].
#[inline]
pub fn thread_cpu_ns_end() -> u64 {
    with(|clock| clock.fast(false).map_or_else(|| clock.stretch(Side::End), |(reading, _)| reading.ns))
}

/// CPU time of the calling thread with its error bound.
///
/// # Cost
///
/// The cost of [`thread_cpu_ns`] and a multiplication.
#[inline]
pub fn thread_cpu_time() -> CpuTime {
    with(|clock| {
        let reading = clock.fast(true).map_or_else(|| clock.slow(), |(reading, _)| reading);
        // An unknown age stays unknown.
        let since = match reading.age {
            UNKNOWN => u64::MAX,
            age => ticks_to_ns(age + reading.width.div_ceil(2)),
        };
        CpuTime {
            ns: reading.ns,
            error_bound_ns: (reading.ns - reading.true_ns).saturating_add(since),
            tier: clock.tier.get(),
        }
    })
}

/// Prepares clocks, groups and budgets, so that no later thread has to: calibrates, tests the
/// tiers, and makes all calls to the kernel that are needed once. `dormouse::init()` calls it.
///
/// From then on a read makes no system call but `clock_gettime`, not even the first read of a
/// thread, so that seccomp filters which kill the process for other calls can be installed. (Only
/// [`Tier::Page`] opens an event for each new thread that has no filter: `prctl`, and then
/// `perf_event_open`, `mmap` and `close`.) From then on it is also no longer checked whether a
/// thread has forbidden itself the counter (`PR_SET_TSC`); such a thread must not read.
///
/// # Cost
///
/// A few milliseconds the first time.
pub fn prepare() {
    crate::point();
    kernel::processors();
    identity::number();
    tier();
    tier::prepared();
}

/// Whether the calling thread's clock reads the counter.
pub(crate) fn has_counter() -> bool {
    with(|clock| clock.attached.get() != 0 && clock.tier.get() != Tier::Syscall)
}

/// The tier of the calling thread's clock.
pub fn tier() -> Tier {
    CLOCK.with(Clock::attach)
}

/// Makes `tier` the best tier that threads take; `None` restores the default (the best available,
/// or that of `DORMOUSE_CLOCK`). The calling thread changes at once, other threads when their
/// clocks next ask the kernel: within a millisecond of running. A thread that cannot attach to the
/// tier takes the next one, as always: [`tier`] returns it. Not for signal handlers. Another thread
/// that leaves [`Tier::Page`] keeps its page until its end.
///
/// # Cost
///
/// The test of the tier, if it was never made before: a few milliseconds.
///
/// # Errors
///
/// [`Error::Tier`] if the tier does not pass its test; then nothing changes.
pub fn force(tier: Option<Tier>) -> Result<(), Error> {
    CLOCK.with(|clock| {
        if let (Err(reason), Some(tier)) = (tier::begin_at(tier, &clock.proofs), tier) {
            return Err(Error::Tier { tier, reason });
        }
        clock.let_go();
        clock.attach();
        Ok(())
    })
}

/// The lines of `dormouse doctor` about the calling thread's clock.
pub fn capability() -> Vec<Capability> {
    tier::report(tier())
}

impl Clock {
    /// A reading without asking, and the counter at that moment; `by_gap` also on that tier.
    #[inline(always)]
    fn fast(&self, by_gap: bool) -> Option<(Reading, u64)> {
        let armed = self.armed.get();
        // Before the counter, which may be forbidden then.
        if armed == Tier::Syscall || armed == Tier::Gap && !by_gap {
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
        share(now);
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
        kernel::thread_ns().map_or_else(|| self.refused(), |ns| self.asked(ns, 0))
    }

    #[inline(never)]
    fn stretch(&self, side: Side) -> u64 {
        if self.attach() != Tier::Gap {
            return self.slow().ns;
        }
        let limits = Limits { gap: self.proofs.longest_gap(), epoch: self.limit.get() };
        self.stretches.read(side, limits, rdtsc, || {
            let Reading { ns, age, .. } = self.slow();
            let is_base = self.armed.get() == Tier::Gap;
            let plain = || Answer { ns, tsc: rdtsc() };
            let base = || Answer { ns: self.base_ns.get(), tsc: self.base_tsc.get() };
            (age != UNKNOWN).then(|| if is_base { base() } else { plain() })
        })
    }

    /// A filter refuses the question: the clock stands still, and its lag is unknown.
    fn refused(&self) -> Reading {
        let last = self.last.get();
        Reading { ns: last, true_ns: last, age: UNKNOWN, width: 0 }
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
        if !tsc::holds(&self.reference) {
            return None;
        }
        let wide = ns_to_ticks(WIDE);
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
            let Some(said) = kernel::thread_ns() else { return Some(self.refused()) };
            let after = rdtsc();
            ns = said;
            width = after.wrapping_sub(before);
            // The kernel's word, even if more has been given already: then the clock stands still
            // until it is true again, and no error outlives its epoch.
            self.base_ns.set(ns);
            // The kernel read its clock somewhere between the two.
            self.base_tsc.set(before.wrapping_add(width / 2));
            self.limit.set(ns_to_ticks(EPOCH_NS));
            self.width.set(width);
            compiler_fence(Ordering::SeqCst);
            if self.proofs.holds(tier, after) && self.epoch.get() == epoch && (width < wide || left == 0) {
                self.armed.set(tier);
                return Some(self.asked(ns, width));
            }
        }
        // A handler's resync may have set a tier, over cells that we have written since.
        self.armed.set(Tier::Syscall);
        Some(self.asked(ns, width))
    }

    /// The thread's tier. Gets one if the thread has none, or one of before the last [`force`].
    fn attach(&self) -> Tier {
        if self.attached.get() == tier::generation() {
            return self.tier.get();
        }
        if !FORGET.join() {
            // In the middle of a fork of this thread, which would not make the clock begin again in
            // the child.
            return Tier::Syscall;
        }
        self.change(None)
    }

    /// Goes to the first tier below `above` that the thread can have.
    #[cold]
    fn change(&self, above: Option<Tier>) -> Tier {
        let Some(changing) = self.changing.begin() else {
            // A signal handler in the middle of it.
            return Tier::Syscall;
        };
        self.armed.set(Tier::Syscall);
        self.epoch.set(self.epoch.get().wrapping_add(1));
        let generation = tier::generation();
        // While another thread tests, this one reads the kernel's clock, and checks again at its
        // next read.
        let tier = tier::climb_down(&self.proofs, above);
        self.tier.set(tier.unwrap_or(Tier::Syscall));
        self.attached.set(if tier.is_some() { generation } else { 0 });
        self.changing.end(changing);
        self.tier.get()
    }

    /// Leaves the tier and detaches from it.
    fn let_go(&self) {
        self.armed.set(Tier::Syscall);
        self.epoch.set(self.epoch.get().wrapping_add(1));
        self.attached.set(0);
        // A handler between these two reads the kernel's clock.
        let changing = self.changing.begin();
        self.proofs.detach(Tier::Rseq);
        self.proofs.detach(Tier::Page);
        changing.map(|changing| self.changing.end(changing));
    }
}

/// CPU time of the calling thread by a system call; if a filter refuses the call, the last known
/// value.
pub fn asked_ns() -> u64 {
    kernel::thread_ns().unwrap_or_else(|| with(|clock| clock.last.get()))
}

/// The calling thread ends.
fn end() {
    CLOCK.with(Clock::let_go);
}

/// In a fork child the only thread's CPU time begins at zero again.
fn forget() {
    CLOCK.with(|clock| {
        clock.armed.set(Tier::Syscall);
        clock.epoch.set(clock.epoch.get().wrapping_add(1));
        clock.attached.set(0);
        clock.last.set(0);
        clock.stretches.forget();
        kernel::forget();
        tier::forget();
    });
}

#[cfg(test)]
mod tests;

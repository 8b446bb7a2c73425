//! The clock of one thread: the kernel's value, extended by ticks while the proof holds.
//!
//! # Invariants
//!
//! 1. While `flag` is `Some` and still up, the thread has run without a break since `base_tsc`, when its CPU
//!    time was `base_ns`.
//! 2. `last` is the largest value that the thread has been given; it moves by [`arch::advance`] alone, so a
//!    signal handler's read in the middle of ours is noticed and ours begins again.
//! 3. `epoch` moves at the beginning of every resync. A read or an outer resync that finds it moved begins
//!    again: what it has read of `base_*` may be half of one resync and half of another.
//! 4. During a resync `flag` is `None`, so a handler in the middle of it does one of its own.
//!
//! The order of the accesses matters against signal handlers of the same thread only, so compiler
//! fences are all it takes.

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Duration;

use dormouse_sys::rseq::Flag;

use crate::arch::{advance, rdtsc};
use crate::tier::{self, Tier};
use crate::{kernel, moment, tsc};

/// Ticks after which a read asks the kernel again whatever the flag says: bounds what steal and a wrong rate
/// can do.
const EPOCH_TICKS: u64 = 1 << 27;

#[derive(Clone, Copy, PartialEq)]
enum Attached {
    No,
    Rseq,
    Syscall,
}

struct Clock {
    flag: Cell<Option<Flag>>,
    epoch: Cell<u32>,
    base_ns: Cell<u64>,
    base_tsc: Cell<u64>,
    last: Cell<u64>,
    attached: Cell<Attached>,
}

thread_local! {
    static CLOCK: Clock = const {
        Clock {
            flag: Cell::new(None),
            epoch: Cell::new(0),
            base_ns: Cell::new(0),
            base_tsc: Cell::new(0),
            last: Cell::new(0),
            attached: Cell::new(Attached::No),
        }
    };
}

/// CPU time of the calling thread, in nanoseconds; never smaller than an earlier answer on this thread.
///
/// # Cost
///
/// One `rdtsc` and a few nanoseconds on [`Tier::Rseq`], plus a system call after the thread was descheduled.
#[inline]
pub fn thread_cpu_ns() -> u64 {
    CLOCK.with(|clock| clock.fast().map_or_else(|| clock.slow(), |(ns, _)| ns))
}

/// [`thread_cpu_ns`], and the moment of the read or one just before it.
#[inline]
pub(crate) fn thread_cpu_ns_at() -> (u64, u64) {
    CLOCK.with(|clock| {
        clock.fast().unwrap_or_else(|| {
            let now = moment::now();
            (clock.slow(), now)
        })
    })
}

/// CPU time of the calling thread; see [`thread_cpu_ns`].
#[inline]
pub fn thread_cpu_time() -> Duration {
    Duration::from_nanos(thread_cpu_ns())
}

/// The tier of the calling thread's clock.
pub fn tier() -> Tier {
    CLOCK.with(|clock| {
        clock.attach();
        if clock.attached.get() == Attached::Rseq { Tier::Rseq } else { Tier::Syscall }
    })
}

impl Clock {
    #[inline]
    fn fast(&self) -> Option<(u64, u64)> {
        let flag = self.flag.get()?;
        let epoch = self.epoch.get();
        let last = self.last.get();
        let (base_ns, base_tsc) = (self.base_ns.get(), self.base_tsc.get());
        compiler_fence(Ordering::SeqCst);
        let now = rdtsc();
        let ticks = now.wrapping_sub(base_tsc);
        compiler_fence(Ordering::SeqCst);
        // Looked at after the counter: if it is up now, the thread ran through until now.
        if !flag.is_armed() || ticks > EPOCH_TICKS || self.epoch.get() != epoch {
            return None;
        }
        // No overflow: at most 2^27 ticks, and a rate under 2^37 is a counter above 31 MHz.
        let ns = (base_ns + ((ticks * tsc::rate()) >> 32)).max(last);
        advance(&self.last, last, ns).then_some((ns, now))
    }

    #[cold]
    fn slow(&self) -> u64 {
        self.attach();
        match self.attached.get() {
            Attached::Rseq => self.resync(),
            Attached::No | Attached::Syscall => self.raise(kernel::thread_ns()),
        }
    }

    /// Gives `ns`, or what was given before if that is more.
    fn raise(&self, ns: u64) -> u64 {
        loop {
            let last = self.last.get();
            let ns = ns.max(last);
            if advance(&self.last, last, ns) {
                return ns;
            }
        }
    }

    fn resync(&self) -> u64 {
        let Ok(flag) = Flag::of_this_thread() else {
            return self.fall_back();
        };
        if !tsc::refine() {
            return self.fall_back();
        }
        let mut ns = 0;
        // A thread that is preempted in every try is better served by the kernel's plain value.
        for _ in 0..4 {
            self.flag.set(None);
            let epoch = self.epoch.get().wrapping_add(1);
            self.epoch.set(epoch);
            compiler_fence(Ordering::SeqCst);
            flag.arm();
            let before = rdtsc();
            ns = kernel::thread_ns();
            let after = rdtsc();
            // The kernel's word, even if more has been given already: then the clock stands still until it is true
            // again, and no error outlives its epoch.
            self.base_ns.set(ns);
            // The kernel read its clock somewhere between the two.
            self.base_tsc.set(before + after.wrapping_sub(before) / 2);
            compiler_fence(Ordering::SeqCst);
            if flag.is_armed() && self.epoch.get() == epoch {
                self.flag.set(Some(flag));
                return self.raise(ns);
            }
        }
        // A handler's resync may have raised it over what we have written since.
        self.flag.set(None);
        self.raise(ns)
    }

    #[cold]
    fn fall_back(&self) -> u64 {
        self.flag.set(None);
        self.attached.set(Attached::Syscall);
        self.raise(kernel::thread_ns())
    }

    #[cold]
    fn attach(&self) {
        static HOOK: Once = Once::new();
        if self.attached.get() != Attached::No {
            return;
        }
        HOOK.call_once(|| {
            dormouse_sys::thread::on_fork_child(forget);
        });
        // While another thread decides, this one asks the kernel, and looks again at its next read.
        let Some(choice) = tier::choice() else { return };
        let rseq = choice.tier == Tier::Rseq && Flag::of_this_thread().is_ok();
        self.attached.set(if rseq { Attached::Rseq } else { Attached::Syscall });
    }
}

/// In a fork child the only thread's CPU time begins at zero again.
fn forget() {
    tier::forget();
    CLOCK.with(|clock| {
        clock.flag.set(None);
        clock.last.set(0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(for_ns: u64) {
        let end = kernel::thread_ns() + for_ns;
        while kernel::thread_ns() < end {}
    }

    #[test]
    fn it_follows_the_kernels_clock_while_running() {
        for _ in 0..50 {
            spin(300_000);
            let before = kernel::thread_ns();
            let ours = thread_cpu_ns();
            let after = kernel::thread_ns();
            // Steal inside one epoch is counted; 5 ms is far more than an epoch of these spins can hold.
            assert!(ours + 20_000 >= before, "{} ns behind", before - ours);
            assert!(ours <= after + 5_000_000, "{} ns ahead", ours - after);
        }
    }

    #[test]
    fn sleep_is_not_cpu_time() {
        let before = thread_cpu_ns();
        std::thread::sleep(Duration::from_millis(50));
        assert!(thread_cpu_ns() - before < 20_000_000);
    }

    #[test]
    fn it_never_steps_back_with_more_threads_than_processors() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = 0;
                    for _ in 0..500_000 {
                        let now = thread_cpu_ns();
                        assert!(now >= last, "{now} after {last}");
                        last = now;
                    }
                });
            }
        });
    }

    #[test]
    fn a_clock_that_was_ahead_stands_still_until_it_is_true_again() {
        CLOCK.with(|clock| {
            let now = thread_cpu_ns();
            // As after an epoch with steal.
            clock.last.set(now + 30_000_000);
            clock.flag.set(None);
            assert_eq!(thread_cpu_ns(), now + 30_000_000, "never back");
            spin(60_000_000);
            let (ours, kernel) = (thread_cpu_ns(), kernel::thread_ns());
            assert!(ours <= kernel + 5_000_000, "{ours} stays ahead of {kernel}");
        });
    }

    #[test]
    fn what_the_clock_was_ahead_it_waits_for_and_does_not_carry_on() {
        CLOCK.with(|clock| {
            let ahead = thread_cpu_ns() + 2_000_000;
            clock.last.set(ahead);
            for _ in 0..100 {
                if let Ok(flag) = Flag::of_this_thread() {
                    flag.disarm();
                }
                assert!(thread_cpu_ns() >= ahead);
            }
            spin(4_000_000);
            let (ours, kernel) = (thread_cpu_ns(), kernel::thread_ns());
            // Half of what it was ahead: steal in one epoch of this test may be some of it.
            assert!(ours <= kernel + 1_000_000, "{} ns ahead", ours - kernel);
        });
    }

    #[test]
    fn a_foreign_owner_of_the_flag_means_a_resync_not_a_wrong_time() {
        if tier() != Tier::Rseq {
            return;
        }
        CLOCK.with(|clock| {
            thread_cpu_ns();
            let epoch = clock.epoch.get();
            Flag::of_this_thread().unwrap().disarm();
            thread_cpu_ns();
            assert_ne!(clock.epoch.get(), epoch);
        });
    }
}

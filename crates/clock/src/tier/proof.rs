//! The functions that each tier has, and the test that two of them share.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use dormouse_sys::futex;

use crate::kernel;

/// A tier's proof on one thread. Its functions are called on that thread alone.
pub(super) trait Proof {
    /// Whether it can be relied on in this process. Once, and not in a signal handler.
    fn test(&self) -> Result<(), String>;

    /// Prepares this thread for it.
    ///
    /// # Async-signal-safety
    ///
    /// System calls and atomics only, as in `arm` and `holds`.
    fn attach(&self) -> Result<(), &'static str>;

    /// From now on the thread runs; false: this thread has lost the tier.
    fn arm(&self) -> bool;

    /// Whether the thread has run all the time from `arm` to now, when the counter stands at `tsc`.
    fn holds(&self, tsc: u64) -> bool;

    /// Undoes `attach`. Not while a read may be under way: never in a signal handler.
    fn detach(&self) {}
}

/// Blocks for `time`, by a call that filters of services with threads allow.
pub(super) fn sleep(time: Duration) {
    let word = AtomicU32::new(0);
    let _over = futex::wait(&word, 0, time.try_into().ok().as_ref());
}

/// The test of a tier that raises a flag: the flag must fall when the thread blocks, and stay up
/// when it does not. A clock that trusted one that stays up would count sleep as CPU time.
pub(super) fn falls_on_blocking_alone(proof: &dyn Proof, name: &str) -> Result<(), String> {
    let still_up = |call: &dyn Fn()| {
        proof.arm();
        call();
        proof.holds(0)
    };
    // One may find its time over before it has begun, where a hypervisor takes the processor away
    // just then; on a busy machine more do, and longer ones are tried.
    let outlives = |micros| {
        let sleep = || sleep(Duration::from_micros(micros));
        (0..5).filter(|_| still_up(&sleep)).count() > 1
    };
    if outlives(50) && outlives(200) {
        return Err(format!("this kernel keeps {name} when a thread blocks"));
    }
    // Preemption may take the flag down now and then, not every time.
    let plain = || _ = kernel::thread_ns();
    let kept = (0..100).filter(|_| still_up(&plain)).count();
    if kept < 50 {
        return Err(format!(
            "this kernel changes {name} at system calls that do not block ({kept} of 100 kept)"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::Range;

    use super::*;

    /// A flag that is down when it is read for these times.
    struct Flag {
        down: Range<u32>,
        looks: Cell<u32>,
    }

    impl Proof for Flag {
        fn test(&self) -> Result<(), String> {
            falls_on_blocking_alone(self, "the flag")
        }
        fn attach(&self) -> Result<(), &'static str> {
            Ok(())
        }
        fn arm(&self) -> bool {
            true
        }
        fn holds(&self, _tsc: u64) -> bool {
            !self.down.contains(&self.looks.replace(self.looks.get() + 1))
        }
        fn detach(&self) {}
    }

    fn test(down: Range<u32>) -> Result<(), String> {
        Flag { down, looks: Cell::new(0) }.test()
    }

    #[test]
    fn a_flag_that_ignores_sleep_is_refused() {
        assert!(test(0..0).unwrap_err().contains("keeps the flag when a thread blocks"));
        assert!(test(0..u32::MAX).unwrap_err().contains("0 of 100 kept"));
        assert_eq!(test(0..5), Ok(()));
    }

    #[test]
    fn sleeps_that_did_not_block_are_repeated() {
        assert_eq!(test(2..10), Ok(()), "two were over before they began, and the longer ones were not");
        assert!(test(2..8).is_err(), "two of those, too");
    }
}

//! The restartable-sequence area as proof: up to Linux 6.18 the kernel clears `rseq_cs` whenever
//! the thread comes back from a preemption, a blocking call or a signal.
//!
//! Linux 6.19 and later do not clear it after a blocking call, which the test detects. Any code may
//! use the field: a library with restartable sequences of its own (tcmalloc) leaves its descriptor
//! there. That harms neither, because a sequence begins by storing its descriptor. But a read that
//! finds a foreign descriptor has no proof and asks the kernel, and a thread where that is the rule
//! is better served by another tier.

use std::cell::Cell;

use dormouse_sys::rseq::Flag;

use super::proof::{Proof, falls_on_blocking_alone};

/// Resyncs in a row that found a foreign descriptor, after which the thread leaves the tier.
const FOREIGN: u32 = 100;

pub(super) struct Thread {
    flag: Cell<Option<Flag>>,
    /// The resyncs in a row that have found a foreign descriptor.
    foreign: Cell<u32>,
}

impl Thread {
    pub(super) const fn new() -> Self {
        Self { flag: Cell::new(None), foreign: Cell::new(0) }
    }
}

impl Proof for Thread {
    fn test(&self) -> Result<(), String> {
        self.attach()?;
        let said = falls_on_blocking_alone(self, "rseq_cs");
        self.detach();
        said
    }

    fn attach(&self) -> Result<(), &'static str> {
        self.foreign.set(0);
        self.flag.set(Some(Flag::of_this_thread()?));
        Ok(())
    }

    fn arm(&self) -> bool {
        let Some(flag) = self.flag.get() else { return false };
        self.foreign.set(if flag.is_foreign() { self.foreign.get() + 1 } else { 0 });
        flag.arm();
        self.foreign.get() < FOREIGN
    }

    #[inline(always)]
    fn holds(&self, _tsc: u64) -> bool {
        self.flag.get().is_some_and(Flag::is_armed)
    }

    fn detach(&self) {
        if let Some(flag) = self.flag.take() {
            flag.disarm();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_that_is_taken_down_proves_nothing() {
        let thread = Thread::new();
        if let Err(reason) = thread.attach() {
            return dormouse_testkit::skip(reason);
        }
        assert!(thread.arm());
        Flag::of_this_thread().unwrap().disarm();
        assert!(!thread.holds(0));
    }
}

//! The stalled time of groups by its causes: sums, which the lookout adds to and readers share.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use dormouse_sys::process::fork::{self, Phase};
use dormouse_sys::process::identity;

use super::sample::{ThreadIn, ThreadTally};
use super::window::Within;

/// The stalled time of a group by its causes, as far as it is known: lower bounds, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GroupStalls {
    /// Its polls waited for a CPU.
    pub(crate) cpu_wait_ns: u64,
    /// The part of that for which a CPU limit may be the reason; an upper bound. Unknown where no
    /// limit can be seen.
    pub(crate) throttled_ns: Option<u64>,
    /// Its polls slept.
    pub(crate) asleep_ns: u64,
    /// The part of that for block devices; unknown where the kernel does not count it.
    pub(crate) block_io_ns: Option<u64>,
    /// Major page faults of polls, of windows that lay within the group's polls.
    pub(crate) major_faults: u64,
    /// The calls in which the polls slept, by samples at the begin and at the end of each window:
    /// those of polls, and of work for requests.
    pub(crate) within: ThreadTally,
    /// The calls in which work slept that was entered by hand, and for which no request is known to
    /// wait.
    pub(crate) by_hand: ThreadTally,
}

/// The sums of all groups, which readers share with the sampler of stalls. Held for moments, and
/// never over a fork: a child does not touch it.
#[derive(Debug, Default)]
pub(crate) struct StallSums {
    groups: Mutex<HashMap<u32, GroupStalls>>,
    /// A reader has waited for a sample in vain, and there has been none since.
    pub(crate) is_late: AtomicBool,
}

impl StallSums {
    /// Calls `f` with the sums.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut HashMap<u32, GroupStalls>) -> T) -> T {
        f(&mut self.groups.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The sums of this process, which never go back: they outlive the thread that adds to them.
pub(super) fn sums_of_process() -> Arc<StallSums> {
    static SUMS: fork::Mutex<Option<(u64, Arc<StallSums>)>> = fork::Mutex::new(Phase::Stalls, None);
    // Memory is not taken, nor given back, under a lock for which a fork waits.
    let (process, fresh) = (identity::id(), Arc::default());
    let Ok(mut sums) = SUMS.lock() else { return fresh };
    if let Some((_, known)) = sums.as_ref().filter(|(of, _)| *of == process) {
        return Arc::clone(known);
    }
    let parents = sums.replace((process, Arc::clone(&fresh)));
    drop((sums, parents));
    fresh
}

impl GroupStalls {
    /// Adds sleep of a window. If the calls at its ends differ, it is not known when the one ended,
    /// so each has half of it. Sleep that is seen at one of them is of that call; at none of them,
    /// of another one.
    pub(super) fn add_sleep(&mut self, ns: u64, block_ns: u64, [first, last]: [Option<Within>; 2]) {
        self.asleep_ns += ns;
        let asleep = |end: Option<Within>| end.filter(|within| within.asleep_in.is_some());
        let seen = |end, other| asleep(end).or(asleep(other)).or(end).or(other);
        for (within, ns) in [(seen(first, last), ns / 2), (seen(last, first), ns - ns / 2)] {
            let tally = match within {
                Some(Within { is_by_hand: true, .. }) => &mut self.by_hand,
                _ => &mut self.within,
            };
            tally.add(within.and_then(|within| within.asleep_in).unwrap_or(ThreadIn::Other), ns);
        }
        if let Some(block_io_ns) = &mut self.block_io_ns {
            *block_io_ns += block_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_by_hand_is_tallied_apart() {
        let end =
            |call: Option<u32>, is_by_hand| Some(Within { asleep_in: call.map(ThreadIn::Call), is_by_hand });
        let sums = |ends: [Option<Within>; 2]| {
            let mut of = GroupStalls::default();
            of.add_sleep(9, 0, ends);
            assert_eq!(of.asleep_ns, 9);
            (of.within.sorted(), of.by_hand.sorted())
        };
        let (one, other) = (ThreadIn::Call(1), ThreadIn::Call(2));
        assert_eq!(sums([end(Some(1), false), end(Some(2), false)]), (vec![(other, 5), (one, 4)], vec![]));
        assert_eq!(sums([end(Some(1), false), end(Some(2), true)]), (vec![(one, 4)], vec![(other, 5)]));
        // It ran at one end, or was in no group: the sleep is of the other end.
        assert_eq!(sums([end(None, false), end(Some(2), true)]), (vec![], vec![(other, 9)]));
        assert_eq!(sums([end(Some(1), true), None]), (vec![], vec![(one, 9)]));
        assert_eq!(sums([end(None, true), end(None, true)]), (vec![], vec![(ThreadIn::Other, 9)]));
        assert_eq!(sums([None, None]), (vec![(ThreadIn::Other, 9)], vec![]));
    }
}

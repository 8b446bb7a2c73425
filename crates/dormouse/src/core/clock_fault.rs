//! The rule by which the CPU time of groups is refused, wherever it is read.
//!
//! The tasks of groups run on threads of the process, so groups cannot use more CPU time than the
//! process does. If they have more, a clock is false: a library or an emulator answers in the
//! kernel's place, or the kernel's clocks of threads and of processes disagree. Then no CPU time of
//! a group can be trusted, so none is shown.
//!
//! # No false refusals
//!
//! - The process's clock is read before the groups at the first of two readings, and after them at
//!   the second. So a reader that waits for a processor in between only makes the bound wider.
//! - A thread's own clock may be an epoch ahead of the kernel's, and so may each group that it
//!   runs: this is allowed for each thread.
//! - A hypervisor may take time away from threads that live for less than an epoch, and that time
//!   is charged to their groups: up to half of the groups' time may be such time.

use dormouse_clock::EPOCH_NS;
use dormouse_sys::thread;

/// Nanoseconds by which groups may have more in any case.
const SLACK_NS: u64 = 100_000_000;

/// The reason, for people.
const WHY: &str = "groups have more CPU time than their process, so a clock is false";

/// Why the CPU time that groups have used in some time is refused, if the process has used this in
/// the same time.
pub(crate) fn clock_fault(groups_ns: u64, process_ns: u64) -> Option<&'static str> {
    clock_fault_with(thread::live().count() as u64, groups_ns, process_ns)
}

fn clock_fault_with(threads: u64, groups_ns: u64, process_ns: u64) -> Option<&'static str> {
    let most = process_ns.saturating_mul(2).saturating_add(SLACK_NS + threads * EPOCH_NS);
    (groups_ns > most).then_some(WHY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clocks_may_differ_by_is_allowed() {
        const SECOND: u64 = 1_000_000_000;
        for (threads, groups, process, is_refused) in [
            (1, 0, 0, false),
            (1, SECOND, SECOND, false),
            (1, 2 * SECOND, SECOND, false),
            (1, 2 * SECOND + SLACK_NS + EPOCH_NS, SECOND, false),
            (1, 2 * SECOND + SLACK_NS + EPOCH_NS + 1, SECOND, true),
            (1000, SECOND, 0, false),
            (1, 86_400 * SECOND, SECOND, true),
            (1, u64::MAX, u64::MAX, false),
        ] {
            assert_eq!(
                clock_fault_with(threads, groups, process).is_some(),
                is_refused,
                "{groups} {process}"
            );
        }
    }
}

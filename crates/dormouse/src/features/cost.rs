//! The cost of dormouse itself in this process, since its start: CPU time of its own threads, which
//! their clocks tell exactly; CPU time on the service's threads, estimated as the number of polls
//! and of records times their [price](crate::core::price), and as what handlers of CPU samples and
//! of hits of watches measure themselves; memory.
//!
//! # Things it does not do
//!
//! It prices no samples of allocations and page faults, no stacks of places, and not the kernel's
//! part of signals and hits, nor what dormouse costs while nothing is counted, when polls have no
//! number. A forked child has its parent's figures.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_protocol::{GroupRow, OwnCost};
use dormouse_sys::{Capability, records, signals};

use crate::core::group::Group;
use crate::core::price::{POLL, Price, RECORD};
use crate::features::recorder;

/// The memory of a group, in bytes: see [`Group`].
const GROUP_BYTES: u64 = 3 * 1024;

/// A number of things that have a price, and what they have cost so far.
struct Spent {
    number: AtomicU64,
    ps: AtomicU64,
    price: &'static Price,
}

static POLLS: Spent = Spent::at(&POLL);
static RECORDS: Spent = Spent::at(&RECORD);

impl Spent {
    const fn at(price: &'static Price) -> Self {
        Self { number: AtomicU64::new(0), ps: AtomicU64::new(0), price }
    }

    /// Their cost so far, in nanoseconds, when there are `number` of them; `None` without a price.
    fn ns(&self, number: u64) -> Option<u64> {
        if number == 0 {
            return Some(0);
        }
        let price = self.price.read()?;
        // Two readers at once may count what is new twice, or not: it is an estimate.
        let more = number.saturating_sub(self.number.swap(number, Ordering::Relaxed));
        let more = more.saturating_mul(price);
        Some((self.ps.fetch_add(more, Ordering::Relaxed) + more) / 1000)
    }
}

/// The cost so far, by the rows of all groups.
pub(crate) fn own_cost(groups: &[GroupRow]) -> OwnCost {
    let entries = groups.iter().fold(0_u64, |sum, group| sum.saturating_add(group.entries));
    let (rings, written) = records::written();
    let recorded = recorder::stat().map_or(0, |stat| stat.held);
    let tables = dormouse_profile::unwind_tables::size();
    let memory = rings * records::RING_BYTES + dormouse_waits::mapped_bytes() + recorded + tables;
    OwnCost {
        threads_ns: signals::own_cpu_ns(dormouse_clock::thread_cpu_ns_of),
        polls_ns: POLLS.ns(entries),
        records_ns: RECORDS.ns(written),
        samples_ns: Some(dormouse_profile::spent_ns()),
        hits_ns: Some(dormouse_breakpoints::spent_ns()),
        memory_bytes: memory as u64 + Group::most() as u64 * GROUP_BYTES,
    }
}

/// The check that `doctor` shows.
pub(crate) fn cost_check() -> Capability {
    let groups: Vec<GroupRow> = Group::read_all(false).into_iter().map(|(row, _)| row).collect();
    Capability::ok("cost", own_cost(&groups).sentence(dormouse_clock::process_cpu_ns()))
}

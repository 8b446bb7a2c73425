//! The cost of dormouse itself in this process, since its start: CPU time of its own threads, which
//! their clocks tell exactly; time on the service's threads, which is measured there for
//! [one call in some](dormouse_clock::overhead), and in the handlers of CPU samples and of hits of
//! watches; memory.
//!
//! # Things it does not do
//!
//! Not in it are clones and drops of wakers and the stacks of places, samples of allocations and
//! page faults, reads of sockets that return a time, the kernel's part of signals and hits, and the
//! cost while nothing is counted. Of memory, its code, small tables beside the service's own data,
//! what it takes from the allocator for answers and traces, tables of profiles that run, the caches
//! of maps and the columns of a process's fifteenth and later events are not. A forked child has
//! its parent's CPU times.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dormouse_clock::overhead::{RECORDS, TASKS};
use dormouse_clock::thread_cpu_ns;
use dormouse_protocol::OwnCost;
use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::process::identity;
use dormouse_sys::resident::{OwnMemory, own_memory};
use dormouse_sys::{Capability, records, signals};

use crate::core::group::Group;
use crate::features::recorder;

/// The memory of a group, in bytes: see [`Group`].
const GROUP_BYTES: u64 = 3 * 1024;

/// The time to note a lock that is taken and freed, in nanoseconds, by `bench locks`. A read of the
/// counter takes as long, so it is not timed in the service.
const NOTE_NS: u64 = 10;

/// After a reading of pages this many times as long passes before the next: they take a thousandth
/// of a processor at most. Many tasks on many threads have tens of thousands of pages.
const RARE: u64 = 1000;
/// The longest time between two readings, in nanoseconds.
const OLDEST: u64 = 10_000_000_000;

/// The process of the last reading, its bytes and whether they are resident, and when the next one
/// is due.
static READ: (AtomicU64, AtomicUsize, AtomicU64) =
    (AtomicU64::new(0), AtomicUsize::new(0), AtomicU64::new(0));
/// In the bytes, of which there are fewer.
const IS_RESIDENT: usize = 1 << (usize::BITS - 1);

/// For how long a reading that took that much CPU time is shown.
fn pause(took_ns: u64) -> u64 {
    took_ns.saturating_mul(RARE).min(OLDEST)
}

/// The memory of what is in pages, of now or some seconds ago.
fn paged() -> OwnMemory {
    let (of, read, due) = &READ;
    // Acquire: pairs with the store below. The other words are there.
    if of.load(Ordering::Acquire) == identity::id() && monotonic_ns() < due.load(Ordering::Relaxed) {
        let read = read.load(Ordering::Relaxed);
        return OwnMemory { bytes: read & !IS_RESIDENT, is_resident: read & IS_RESIDENT != 0 };
    }
    let begun = thread_cpu_ns();
    let paged = own_memory(records::written_ranges().chain(signals::own_stacks()));
    let took_ns = thread_cpu_ns().saturating_sub(begun);
    read.store(paged.bytes | if paged.is_resident { IS_RESIDENT } else { 0 }, Ordering::Relaxed);
    due.store(monotonic_ns() + pause(took_ns), Ordering::Relaxed);
    of.store(identity::id(), Ordering::Release);
    paged
}

/// The cost so far.
pub(crate) fn own_cost() -> OwnCost {
    let paged = paged();
    let recorded = recorder::stat().map_or(0, |stat| stat.held);
    let tables = dormouse_profile::unwind_tables::size();
    let memory = paged.bytes + recorded + tables;
    OwnCost {
        threads_ns: signals::own_cpu_ns(dormouse_clock::thread_cpu_ns_of),
        polls_ns: TASKS.ns().map(|ns| ns + NOTE_NS * dormouse_locks::notes()),
        records_ns: RECORDS.ns(),
        samples_ns: Some(dormouse_profile::spent_ns()),
        hits_ns: Some(dormouse_breakpoints::spent_ns()),
        memory_bytes: memory as u64 + Group::most() as u64 * GROUP_BYTES,
        memory_is_most: !paged.is_resident,
    }
}

/// The check that `doctor` shows.
pub(crate) fn cost_check() -> Capability {
    Capability::ok("cost", own_cost().sentence(dormouse_clock::process_cpu_ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_take_a_thousandth_of_a_cpu() {
        assert_eq!([0, 20_000, 5_000_000, u64::MAX].map(pause), [0, 20_000_000, 5_000_000_000, OLDEST]);
    }
}

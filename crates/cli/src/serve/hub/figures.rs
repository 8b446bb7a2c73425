//! The figures of a service's answer: how many are kept, and whether some are missing.

use dormouse_protocol::Stat;

use crate::sample::events::EventRequest;

/// The most groups of a service. A service of ours has no more.
const MOST_GROUPS: usize = 1024;

/// Whether groups have no times any more, or fewer events than before.
pub(super) fn lacks(now: &Stat, before: &Stat) -> bool {
    now.groups.iter().zip(&before.groups).any(|(now, before)| {
        now.waits.is_none() && before.waits.is_some() || now.counts.len() < before.counts.len()
    })
}

/// Leaves out what no reader shows, and gives the number of groups that were too many.
pub(super) fn shrink(stat: &mut Stat, events: &EventRequest) -> usize {
    let left_out = stat.expand(MOST_GROUPS);
    stat.groups.shrink_to_fit();
    for group in &mut stat.groups {
        group.counts.retain(|count| events.has(&count.event));
    }
    stat.thread_total = stat.thread_count();
    stat.threads = Vec::new();
    left_out
}

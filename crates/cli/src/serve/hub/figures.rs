//! The figures of a service's answer: how many are kept, and whether some are missing.

use dormouse_protocol::{CountRow, ExemplarRow, GroupRow, Stat, WaitsRow};

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
        group.counts.shrink_to_fit();
    }
    stat.thread_total = stat.thread_count();
    stat.threads = Vec::new();
    left_out
}

/// The memory of the rows of groups, in bytes. A group may take only four bytes of an answer, so
/// rows are counted by their own size.
pub(super) fn rows_bytes(stat: &Stat) -> usize {
    let of_group = |group: &GroupRow| {
        let of_waits = |waits: &WaitsRow| {
            size_of::<WaitsRow>() + waits.requests.exemplars.len() * size_of::<ExemplarRow>()
        };
        size_of::<GroupRow>()
            + group.counts.len() * size_of::<CountRow>()
            + group.waits.as_deref().map_or(0, of_waits)
    };
    stat.groups.iter().map(of_group).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_as_they_are() {
        let zeros = format!("[0{}]", ",0".repeat(999));
        let columns = format!(r#"{{"id":{zeros},"waits":{{"poll_ns":{zeros}}}}}"#);
        let mut stat = Stat { columns: Some(serde_json::from_str(&columns).unwrap()), ..Stat::default() };
        assert_eq!(shrink(&mut stat, &EventRequest::default()), 0);
        assert_eq!(rows_bytes(&stat), 1000 * (size_of::<GroupRow>() + size_of::<WaitsRow>()));
        assert!(rows_bytes(&stat) > 200 * columns.len());
    }
}

//! The times of tasks that are taken for clients.
//!
//! To take times costs at each poll, so nobody does unless somebody asks. The agent has them taken
//! as long as the client is connected, as it counts events for it.

use std::collections::HashMap;

use dormouse_sys::perf;
use dormouse_waits::buckets::SCALE;
use dormouse_waits::{CpuTaking, Exemplar, Placing, Waiting, exemplars, read_each};

use crate::registry::MAX_GROUPS;
use crate::wire::{ExemplarRow, GroupRow, WaitsBegun, WaitsRow, WaitsWish};

/// That of one group: four histograms of some hundred buckets and an exemplar for each of one, as
/// numbers, as rows, and as text.
const EACH: usize = 64 * 1024;

/// The memory of the times of all groups.
pub(crate) fn memory() -> usize {
    dormouse_waits::groups() * EACH
}

/// One client's times, taken as long as this lives.
#[derive(Debug)]
pub(crate) struct ClientWaits {
    _waiting: Waiting,
    _placing: Option<Placing>,
    _cpu: Option<CpuTaking>,
    told: Telling,
}

/// The times of groups, by their numbers.
pub(crate) type GroupTimes = HashMap<u32, WaitsRow>;

/// The times of all groups that have any.
pub(crate) fn times() -> GroupTimes {
    read_each().map(|of| (of.group, WaitsRow::from(&of))).collect()
}

/// How times are told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Telling {
    /// Whether with exemplars of requests.
    pub(crate) exemplars: bool,
}

impl ClientWaits {
    /// Has times taken.
    pub(crate) fn begin(wish: WaitsWish) -> Result<(Self, WaitsBegun), dormouse_keys::Error> {
        let waiting = Waiting::start()?;
        // Without memory for places there are times.
        let placing = wish.places.then(Placing::start).and_then(Result::ok);
        // Under a filter a thread's first look at its clock might end the process.
        let cpu = (wish.cpu && !perf::is_filtered()).then(CpuTaking::start);
        let begun = WaitsBegun { places: placing.is_some(), cpu: cpu.is_some() };
        let told = Telling { exemplars: wish.exemplars };
        Ok((Self { _waiting: waiting, _placing: placing, _cpu: cpu, told }, begun))
    }

    /// How the client wants them told.
    pub(crate) fn told(&self) -> Telling {
        self.told
    }
}

impl Telling {
    /// Tells the times of these groups. `has_cpu`: the groups' CPU time is counted.
    pub(crate) fn tell(self, groups: &mut [GroupRow], mut waits: GroupTimes, has_cpu: bool) {
        // Groups with greater numbers share a row.
        for group in groups.iter_mut().filter(|group| group.id as usize <= MAX_GROUPS) {
            let mut row = waits.remove(&group.id).unwrap_or_default();
            if self.exemplars {
                row.requests.exemplars = exemplar_rows(&exemplars(group.id));
            }
            row.on_cpu_ns = has_cpu.then_some(group.cpu_ns);
            group.waits = Some(row);
        }
    }
}

/// One exemplar for each power of two, of the buckets within: as many as a scraper takes, and a
/// thousand groups have a thousand times as much text. One with a trace is of more use, then the
/// longest.
fn exemplar_rows(all: &[Exemplar]) -> Vec<ExemplarRow> {
    // The zero bucket has no index.
    let rows: Vec<_> = all.iter().filter(|it| it.bucket > 0).map(ExemplarRow::from).collect();
    let power = |row: &ExemplarRow| row.index >> SCALE;
    rows.chunk_by(|one, other| power(one) == power(other))
        .filter_map(|within| within.iter().max_by_key(|row| (row.trace_id.is_some(), row.duration_ns)))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use dormouse_waits::TraceContext;

    use super::*;

    #[test]
    fn each_power_of_two_has_one_exemplar() {
        let trace = TraceContext::new([1; 16], [2; 8]);
        let of = |bucket: usize, trace| Exemplar {
            bucket,
            task: bucket as u64,
            duration_ns: bucket as u64 * 100,
            unix_ns: 1,
            trace,
        };
        let all = [of(0, None), of(41, None), of(42, trace), of(43, trace), of(44, None), of(45, None)];
        let first = ExemplarRow::from(&all[1]).index;
        let rows = exemplar_rows(&all);
        let powers: Vec<_> = rows.iter().map(|row| row.index >> SCALE).collect();
        assert!(powers.is_sorted() && powers.windows(2).all(|pair| pair[0] != pair[1]), "{rows:?}");
        assert!((2..=3).contains(&rows.len()), "{rows:?}");
        let of_first = rows.iter().find(|row| row.index >> SCALE == first >> SCALE).unwrap();
        let longest = all[1..].iter().map(ExemplarRow::from).filter(|row| {
            row.index >> SCALE == first >> SCALE && row.trace_id.is_some() == of_first.trace_id.is_some()
        });
        assert_eq!(Some(of_first.task), longest.map(|row| row.task).max(), "{rows:?}");
    }
}

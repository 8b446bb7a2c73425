//! The times of tasks that are taken for clients.
//!
//! To take times costs at each poll, so nobody does unless somebody asks. The agent has them taken
//! as long as the client is connected, as it counts events for it.

use std::collections::HashMap;

use dormouse_sys::perf;
use dormouse_waits::{CpuTaking, GroupWaits, Placing, Waiting};

use crate::registry::MAX_GROUPS;
use crate::wire::{GroupRow, WaitsBegun, WaitsRow, WaitsWish};

/// That of one group: four histograms of some hundred buckets, as numbers, as
/// rows, and as text.
const EACH: usize = 32 * 1024;

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
    /// The sums of each group that the client has been told. A look at waits that go on is wrong by
    /// less than it takes; the next one shall not be behind it.
    told: HashMap<u32, [u64; 3]>,
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
        Ok((Self { _waiting: waiting, _placing: placing, _cpu: cpu, told: HashMap::new() }, begun))
    }

    /// Tells the times of these groups. `has_cpu`: the groups' CPU time is counted.
    pub(crate) fn tell(&mut self, groups: &mut [GroupRow], waits: &[GroupWaits], has_cpu: bool) {
        let waits: HashMap<u32, &GroupWaits> = waits.iter().map(|of| (of.group, of)).collect();
        // Groups with greater numbers share a row.
        for group in groups.iter_mut().filter(|group| group.id as usize <= MAX_GROUPS) {
            let mut row = waits.get(&group.id).copied().map(WaitsRow::from).unwrap_or_default();
            let sums = [&mut row.poll_ns, &mut row.runnable_ns, &mut row.await_ns];
            for (sum, told) in sums.into_iter().zip(self.told.entry(group.id).or_default()) {
                *sum = (*sum).max(*told);
                *told = *sum;
            }
            row.on_cpu_ns = has_cpu.then_some(group.cpu_ns);
            group.waits = Some(row);
        }
    }
}

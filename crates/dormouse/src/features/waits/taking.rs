//! The times of tasks that are taken for clients.
//!
//! Taking times costs at each poll, so it is done only on request. The agent has them taken while
//! the client is connected, just as it counts events for it.

use dormouse_clock::ns_to_ticks;
use dormouse_keys::Key;
use dormouse_metrics::MetricsFormat;
use dormouse_protocol::{GroupRow, StatPart, StatRequest, WaitsBegun, WaitsColumns, WaitsRequest, WaitsRow};
use dormouse_sys::perf;
use dormouse_waits::{CpuTaking, GroupWaits, Histograms, Waiting, exemplars_since, read_these};

use crate::core::registry::MAX_GROUPS;
use crate::core::rows::{exemplar_row, set_waits};
use crate::features::learning::Placed;
use crate::features::stalls::{StalledGroups, Stalls};

/// How long after the end of its request an exemplar may be written.
const LATE_NS: u64 = 1_000_000_000;

/// One client's times, taken as long as this lives.
#[derive(Debug)]
pub(crate) struct ClientWaits {
    waiting: Waiting,
    _placed: Option<Placed>,
    _cpu: Option<CpuTaking>,
    stalls: Option<Stalls>,
    scope: TimesScope,
}

/// How to send times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimesScope {
    /// Whether with exemplars of requests.
    pub(crate) exemplars: bool,
    /// The moment, as a stamp, since which an exemplar must have changed to be sent; 0: all are
    /// sent.
    pub(crate) since: u64,
    /// Whether with outgoing calls.
    pub(crate) calls: bool,
    /// The histograms to send.
    pub(crate) histograms: Histograms,
}

impl ClientWaits {
    /// Has times taken.
    pub(crate) fn begin(request: WaitsRequest) -> Result<(Self, WaitsBegun), dormouse_keys::Error> {
        let waiting = Waiting::start()?;
        // Without memory for places there are times.
        let placed = request.places.then(Placed::start).and_then(Result::ok);
        // Under a filter a thread's first reading of its clock might end the process.
        let cpu = (request.cpu && !perf::is_filtered()).then(CpuTaking::start);
        let stalls = request.stalls.then(Stalls::begin).and_then(Result::ok);
        let begun = WaitsBegun { places: placed.is_some(), cpu: cpu.is_some(), stalls: stalls.is_some() };
        let scope = TimesScope { exemplars: request.exemplars, calls: request.calls, ..TimesScope::ALL };
        Ok((Self { waiting, _placed: placed, _cpu: cpu, stalls, scope }, begun))
    }

    /// The keys that it keeps on.
    pub(crate) fn keys(&self) -> &[&'static Key] {
        self.waiting.keys()
    }

    /// The stalled time of groups by its causes, if the client has requested it.
    pub(crate) fn stalls(&self) -> StalledGroups {
        self.stalls.as_ref().map_or_else(StalledGroups::default, Stalls::rows)
    }

    /// How the client has requested them.
    pub(crate) fn scope(&self) -> TimesScope {
        self.scope
    }
}

impl TimesScope {
    pub(crate) const ALL: Self = Self { exemplars: true, since: 0, calls: true, histograms: Histograms::All };

    /// The times that a format shows.
    pub(crate) fn in_format(format: MetricsFormat) -> Self {
        match format {
            MetricsFormat::Text => Self { exemplars: false, histograms: Histograms::Requests, ..Self::ALL },
            MetricsFormat::OpenMetrics => Self { histograms: Histograms::Requests, ..Self::ALL },
            MetricsFormat::Protobuf => Self::ALL,
        }
    }

    /// The part of these times that the answer to a request has.
    pub(crate) fn of_request(self, by: StatRequest) -> Self {
        let since = by.exemplars_since_ns.map_or(0, |ns| stamp_at(ns.saturating_sub(LATE_NS)));
        Self { since, ..self }.of_part(by.part)
    }

    fn of_part(self, part: Option<StatPart>) -> Self {
        match part {
            None | Some(StatPart::Histograms | StatPart::Groups | StatPart::Whole) => self,
            Some(StatPart::Exemplars) => Self { histograms: Histograms::Requests, ..self },
            Some(StatPart::Requests) => Self { exemplars: false, histograms: Histograms::Requests, ..self },
        }
    }

    /// Adds their times to these groups. `has_cpu`: the groups' CPU time is counted.
    pub(crate) fn add_to(self, groups: &mut [GroupRow], has_cpu: bool, stalls: &mut StalledGroups) {
        let mut left = groups.iter_mut();
        let numbers: Vec<u32> = left.as_slice().iter().map(|group| group.id).collect();
        read_these(self.histograms, numbers, |of| {
            let Some(group) = left.next().filter(|group| has_times(group)) else { return };
            let mut row = Box::default();
            self.set(&mut row, group, of, has_cpu, stalls);
            group.waits = Some(row);
        });
    }

    /// The times of these groups, in columns. Their rows are made one after the other, in the same
    /// memory.
    pub(crate) fn columns(
        self,
        part: StatPart,
        groups: &[GroupRow],
        has_cpu: bool,
        stalls: &mut StalledGroups,
    ) -> WaitsColumns {
        let (mut columns, mut row) = (WaitsColumns::of_part(part), WaitsRow::default());
        let mut left = groups.iter();
        read_these(self.histograms, groups.iter().map(|group| group.id), |of| {
            let Some(group) = left.next() else { return };
            let has_times = has_times(group);
            if has_times {
                self.set(&mut row, group, of, has_cpu, stalls);
            }
            columns.push(has_times.then_some(&row), part);
        });
        columns.leave_out();
        columns
    }

    /// Makes `row` that of a group.
    fn set(
        self,
        row: &mut WaitsRow,
        group: &GroupRow,
        of: Option<&GroupWaits>,
        has_cpu: bool,
        stalls: &mut StalledGroups,
    ) {
        match of {
            Some(of) => set_waits(row, of, self.histograms),
            None => *row = WaitsRow::default(),
        }
        if self.exemplars {
            row.requests.exemplars = exemplars_since(group.id, self.since, exemplar_row);
        }
        row.on_cpu_ns = has_cpu.then_some(group.cpu_ns);
        row.stalls = stalls.remove(&group.id);
    }
}

/// Whether a group has times of its own: those with greater numbers share a row.
fn has_times(group: &GroupRow) -> bool {
    group.id as usize <= MAX_GROUPS
}

/// The stamp of a moment of `CLOCK_MONOTONIC`; 0 of a moment before the first stamp.
fn stamp_at(monotonic_ns: u64) -> u64 {
    let now = dormouse_clock::point();
    now.tsc.saturating_sub(ns_to_ticks(now.monotonic_ns.saturating_sub(monotonic_ns)))
}

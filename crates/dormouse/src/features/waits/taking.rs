//! The times of tasks that are taken for clients.
//!
//! Taking times costs at each poll, so it is done only on request. The agent has them taken while
//! the client is connected, just as it counts events for it.

use dormouse_clock::ns_to_ticks;
use dormouse_keys::Key;
use dormouse_metrics::MetricsFormat;
use dormouse_protocol::{GroupRow, StatPart, StatRequest, WaitsBegun, WaitsRequest, WaitsRow};
use dormouse_sys::perf;
use dormouse_waits::{CpuTaking, Histograms, Waiting, exemplars_since, read_each};

use crate::core::registry::MAX_GROUPS;
use crate::core::rows::{exemplar_row, requests_row, waits_row};
use crate::features::learning::Placed;
use crate::features::stalls::Stalls;

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

/// The times of groups, in the order of their numbers, until they are sent.
pub(crate) type GroupTimes = Vec<(u32, Option<Box<WaitsRow>>)>;

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

    /// Adds stalled time by its causes, if the client has requested it.
    pub(crate) fn add_stalls(&self, groups: &mut [GroupRow]) {
        if let Some(stalls) = &self.stalls {
            stalls.tell(groups);
        }
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

    /// The times of all groups that have any.
    pub(crate) fn times(self) -> GroupTimes {
        let row = match self.histograms {
            Histograms::All => waits_row,
            Histograms::Requests => requests_row,
        };
        let mut times = GroupTimes::with_capacity(dormouse_waits::groups());
        read_each(self.histograms, |of| times.push((of.group, Some(Box::new(row(of))))));
        times
    }

    /// Tells the times of these groups. `has_cpu`: the groups' CPU time is counted.
    pub(crate) fn add_to(self, groups: &mut [GroupRow], mut waits: GroupTimes, has_cpu: bool) {
        // Groups with greater numbers share a row.
        for group in groups.iter_mut().filter(|group| group.id as usize <= MAX_GROUPS) {
            let its = waits.binary_search_by_key(&group.id, |(of, _)| *of);
            let mut row = its.ok().and_then(|at| waits[at].1.take()).unwrap_or_default();
            if self.exemplars {
                row.requests.exemplars = exemplars_since(group.id, self.since, exemplar_row);
            }
            row.on_cpu_ns = has_cpu.then_some(group.cpu_ns);
            group.waits = Some(row);
        }
    }
}

/// The stamp of a moment of `CLOCK_MONOTONIC`; 0 of a moment before the first stamp.
fn stamp_at(monotonic_ns: u64) -> u64 {
    let now = dormouse_clock::point();
    now.tsc.saturating_sub(ns_to_ticks(now.monotonic_ns.saturating_sub(monotonic_ns)))
}

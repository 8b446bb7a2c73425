//! Conversion of readings and reports to rows of answers.

use dormouse_events::{Availability, Count, Unit};
use dormouse_keys::{BatchReport, KeyUse};
use dormouse_protocol::{
    BatchStat, CallRow, CarriedRow, ClockPoint, CountRow, EventInfo, ExemplarRow, GroupRow, HistogramRow,
    MessagesRow, PlaceRow, ProbeInfo, QueueRow, StreamsRow, TaskRow, UnansweredRow, WaitsRow, WireId,
    WireTaskState, bucket_index,
};
use dormouse_waits::calls::{CallKind, PeerCalls};
use dormouse_waits::places::{Place, WalkEnd};
use dormouse_waits::{
    Exemplar, GroupWaits, Histograms, LivingTask, QueueTimes, TaskState, TraceContext, Traffic, Unanswered,
};

use crate::core::ends::outcome_word;
use crate::core::group::Group;
use crate::core::probe::Probe;

/// All groups, with the counts of all events.
pub(crate) fn group_rows() -> Vec<GroupRow> {
    let with = |(row, counts): (GroupRow, Vec<_>)| {
        let counts = counts.iter().map(count_row).collect();
        GroupRow { counts, ..row }
    };
    Group::read_all(true).into_iter().map(with).collect()
}

pub(crate) fn count_row(of: &Count) -> CountRow {
    CountRow {
        event: of.event.name().into(),
        value: of.value,
        enabled_ns: of.enabled_ns,
        running_ns: of.running_ns,
    }
}

pub(crate) fn event_info(of: Availability) -> EventInfo {
    let unit = if of.unit == Unit::Times { "1" } else { of.unit.suffix() };
    EventInfo {
        name: of.name.to_owned(),
        unit: unit.to_owned(),
        pmu: of.pmu.to_owned(),
        note: of.note.unwrap_or_default().to_owned(),
        unavailable: of.why_not,
    }
}

pub(crate) fn batch_stat(report: BatchReport) -> BatchStat {
    BatchStat {
        keys: report.keys,
        sites: report.sites,
        pages: report.pages,
        barriers: report.barriers,
        traps: report.traps,
        skipped: report.skipped,
        unsealed: report.unsealed,
        elapsed_ns: report.elapsed.as_nanos() as u64,
    }
}

pub(crate) fn task_row(of: LivingTask) -> TaskRow {
    TaskRow {
        task: of.task,
        group: of.group,
        age_ns: of.age_ns,
        state: match of.state {
            TaskState::Polled => WireTaskState::Polled,
            TaskState::Runnable => WireTaskState::Runnable,
            TaskState::Awaiting => WireTaskState::Awaiting,
        },
        for_ns: of.for_ns,
        poll_ns: of.poll_ns,
        runnable_ns: of.runnable_ns,
        await_ns: of.await_ns,
        polls: of.polls,
        wakes: of.wakes,
        has_waker: of.has_waker,
        cpu_ns: of.cpu_ns,
        places: of.places,
        polls_ago: of.polls_ago,
        more_places: of.has_more_places,
        trace_id: of.trace.map(TraceContext::trace_digits),
        site: of.site.number(),
        unwakeable: of.is_unwakeable,
        by_hand: of.is_by_hand,
    }
}

pub(crate) fn place_row(Place { number, stack, inner, end }: Place) -> PlaceRow {
    let cut = end == WalkEnd::Enough;
    PlaceRow { number, stack, cut, inner: cut.then_some(inner as u32), lost: end == WalkEnd::NoRule }
}

/// Makes `row` that of the group, in the memory that it has. Only `All` histograms name tasks.
pub(crate) fn set_waits(row: &mut WaitsRow, of: &GroupWaits, histograms: Histograms) {
    (row.poll_ns, row.runnable_ns, row.await_ns) = (of.poll_ns, of.runnable_ns, of.await_ns);
    row.queue = Some(queue_row(of.queue));
    row.requests.set(&of.requests);
    row.bodies.set(&of.bodies);
    row.gaps.set(&of.gaps);
    row.received_gaps.set(&of.received_gaps);
    row.streams = Some(streams_row(of));
    row.carried = carried_row(of.traffic);
    row.messages = messages_row(of.traffic);
    row.unanswered = Some(unanswered_row(of.unanswered));
    if histograms == Histograms::All {
        row.requests.set_tasks(&of.requests);
        row.polls.set(&of.polls);
        row.delays.set(&of.delays);
        row.awaits.set(&of.awaits);
    }
}

fn queue_row(of: QueueTimes) -> QueueRow {
    let QueueTimes { requests, received, unseen_ns, behind_ns } = of;
    QueueRow { requests, received, unseen_ns, behind_ns }
}

fn streams_row(of: &GroupWaits) -> StreamsRow {
    StreamsRow { frames: of.streams.frames, bytes: of.streams.bytes, sending: of.sending }
}

/// Without any bytes nobody knows whether a stream would count them.
fn carried_row(Traffic { read, written, .. }: Traffic) -> Option<CarriedRow> {
    (read > 0 || written > 0).then_some(CarriedRow { read, written })
}

fn messages_row(Traffic { messages, message_bytes, .. }: Traffic) -> Option<MessagesRow> {
    (messages > 0).then_some(MessagesRow { messages, bytes: message_bytes })
}

fn unanswered_row(Unanswered { requests, age_ns }: Unanswered) -> UnansweredRow {
    UnansweredRow { requests, age_ns }
}

pub(crate) fn call_row(of: &PeerCalls) -> CallRow {
    let kind = of.peer.map_or(CallKind::Other, |peer| peer.kind()).name().into();
    let peer = of.peer.map(|peer| peer.as_str().to_owned().into());
    let (times, cancelled) = (HistogramRow::without_tasks(&of.times), of.cancelled);
    CallRow { group: of.group, kind, peer, times, errors: of.errors, cancelled }
}

pub(crate) fn exemplar_row(of: Exemplar) -> ExemplarRow {
    ExemplarRow {
        index: bucket_index(of.bucket),
        task: of.task,
        duration_ns: of.duration_ns,
        unix_ns: of.unix_ns,
        outcome: of.outcome.and_then(outcome_word).map(Into::into),
        trace_id: of.trace.map(|trace| WireId(trace.trace_id())),
        span_id: of.trace.and_then(TraceContext::span_id).map(WireId),
    }
}

/// The probe of a key; `None` if the key belongs to no probe.
pub(crate) fn probe_info(used: &KeyUse) -> Option<ProbeInfo> {
    let probe = used.key.attached::<Probe>()?;
    Some(ProbeInfo {
        id: probe.id(),
        name: used.key.name().to_owned(),
        file: used.key.file().to_owned(),
        line: used.key.line(),
        object: used.object.to_string(),
        fields: probe.fields().map(str::to_owned).collect(),
    })
}

/// The clock point of this moment.
pub(crate) fn clock_point() -> ClockPoint {
    let point = dormouse_clock::point();
    ClockPoint { tsc: point.tsc, tsc_hz: point.hz, mono_ns: point.monotonic_ns, real_ns: point.realtime_ns }
}

//! Rows that go into columns and come back.

use std::borrow::Cow;

use dormouse_statistics::buckets::{UNIT_NS, ZERO_THRESHOLD_NS, place};

use super::exemplars::{LONGEST_OUTCOME, MOST_OUTCOMES};
use super::groups::MOST_EVENTS;
use super::*;
use crate::id::WireId;
use crate::objective::Objective;
use crate::verbs::objectives::ObjectiveRow;
use crate::verbs::stat::{BlockingRow, CountRow, GroupRow, LongLivedRow, OutcomesRow, Outliving};
use crate::verbs::waits::{
    CarriedRow, ExemplarRow, HistogramRow, MessagesRow, QueueRow, StallsRow, StreamsRow, UnansweredRow,
    WaitsRow, bucket_index,
};

const UNITS: HistogramRow = HistogramRow {
    scale: SCALE,
    unit_ns: UNIT_NS,
    zero_threshold_ns: ZERO_THRESHOLD_NS,
    zero_count: 0,
    buckets: Vec::new(),
    sum_ns: Some(0),
    max_ns: 0,
    max_task: None,
    tasks: Vec::new(),
    exemplars: Vec::new(),
};

/// Groups with all figures, without times, and with times that are empty.
fn groups() -> Vec<GroupRow> {
    let duration_ns = 1_300_000;
    let exemplar = ExemplarRow {
        index: bucket_index(place(duration_ns)),
        task: 9,
        duration_ns,
        unix_ns: 1_790_000_000_123_456_789,
        outcome: Some("sold_out".into()),
        trace_id: Some(WireId([7; 16])),
        span_id: None,
    };
    let requests = HistogramRow {
        zero_count: 2,
        buckets: vec![(bucket_index(1), 1), (bucket_index(2), u64::from(u32::MAX)), (-30, 5), (-27, 8)],
        sum_ns: Some(123),
        max_ns: 77,
        max_task: Some(9),
        tasks: vec![(bucket_index(2), 9), (-27, 11)],
        exemplars: vec![exemplar],
        ..UNITS
    };
    let polls = HistogramRow { buckets: vec![(-20, 3)], ..UNITS };
    let unanswered = Some(UnansweredRow { requests: 3, age_ns: 4 });
    let own = vec![("sold_out".into(), 5)];
    let outcomes = OutcomesRow { completed: 1, client_error: 2, error: 3, cancelled: 4, panicked: 5, own };
    let queue = Some(QueueRow { requests: 9, received: 8, unseen_ns: 7, behind_ns: 6 });
    let waits = WaitsRow {
        on_cpu_ns: Some(2),
        poll_ns: 5,
        queue,
        unanswered,
        requests,
        polls,
        delays: UNITS,
        awaits: UNITS,
        bodies: HistogramRow { buckets: vec![(-10, 4)], ..UNITS },
        gaps: UNITS,
        received_gaps: HistogramRow { buckets: vec![(-9, 2)], ..UNITS },
        streams: Some(StreamsRow { frames: 1, bytes: 2, sending: 3 }),
        carried: Some(CarriedRow { read: 4, written: 5 }),
        messages: Some(MessagesRow { messages: 6, bytes: 7 }),
        stalls: Some(Box::new(StallsRow {
            cpu_wait_ns: 1,
            throttled_ns: Some(2),
            asleep_ns: 3,
            block_io_ns: None,
            major_faults: Some(4),
            within: vec![("futex".into(), 3)],
            by_hand: vec![("futex".into(), 2)],
        })),
        ..WaitsRow::default()
    };
    let empty = WaitsRow {
        requests: UNITS,
        polls: UNITS,
        delays: UNITS,
        awaits: UNITS,
        bodies: UNITS,
        gaps: UNITS,
        received_gaps: UNITS,
        ..WaitsRow::default()
    };
    let count = CountRow { event: "page-faults".into(), value: 1, enabled_ns: 2, running_ns: 3 };
    let objective = Objective { target_ppm: 999_000, limit_ns: 5 };
    let objectives = vec![ObjectiveRow { objective, met: 6, missed: 7 }];
    let busy = GroupRow {
        id: 1,
        name: "tea".into(),
        cpu_ns: 2,
        entries: 3,
        alive: 4,
        started: 5,
        finished: 6,
        requests: 7,
        outcomes: Some(outcomes),
        objectives,
        blocking: Some(BlockingRow { begun: 8, queued_ns: 9 }),
        polls: 8,
        counts: vec![count],
        waits: Some(Box::new(waits)),
        outliving: Some(Outliving { tasks: 1, ns: 2 }),
        long_lived: Some(LongLivedRow { tasks: 3, age_ns: Some(4) }),
    };
    let timeless = GroupRow { id: 2, name: "quiet".into(), ..GroupRow::default() };
    let idle = GroupRow { id: 3, waits: Some(Box::new(empty)), ..GroupRow::default() };
    vec![busy, timeless, idle]
}

/// The groups as a client reads them that has requested this part.
fn read(part: StatPart) -> Vec<GroupRow> {
    let mut stat = Stat { groups: groups(), ..Stat::default() };
    stat.shorten(part);
    let mut back: Stat = serde_json::from_str(&serde_json::to_string(&stat).unwrap()).unwrap();
    assert_eq!(back.expand(usize::MAX), 0);
    back.groups
}

#[test]
fn rows_come_back_from_their_columns() {
    assert_eq!(read(StatPart::Whole), groups());
}

#[test]
fn each_part_has_more_than_the_one_before() {
    let of = |part| *read(part)[0].waits.clone().unwrap();
    let merged = groups()[0].waits.clone().unwrap().requests.at_scale(EXPORTED_SCALE);
    for part in [StatPart::Requests, StatPart::Exemplars, StatPart::Histograms] {
        let WaitsRow { requests, bodies, polls, queue, .. } = of(part);
        assert_eq!((&requests.buckets, requests.scale), (&merged.buckets, EXPORTED_SCALE), "{part:?}");
        let exemplars = if part == StatPart::Requests { &[][..] } else { &merged.exemplars };
        assert_eq!((&requests.exemplars[..], queue.is_some()), (exemplars, true), "{part:?}");
        assert_eq!(bodies.buckets, [(-10 >> 2, 4)], "{part:?}");
        assert_eq!(polls.buckets.is_empty(), part != StatPart::Histograms, "{part:?}");
        assert_eq!(read(part)[0].outliving, None, "{part:?}");
    }
    let mut right = groups();
    right[0].waits.as_mut().unwrap().requests.tasks.clear();
    assert_eq!(read(StatPart::Groups), right);
}

#[test]
fn columns_of_any_length_are_read() {
    let columns = r#"{"id":[1,2,3],"cpu_ns":[5],"name":["tea"],"waits":{"poll_ns":[1,2],"first_bucket":2147483647,
        "requests":{"buckets":[-9223372036854775808,7,7],"tasks":[1]},
        "exemplars":{"of_group":[4294967295],"task":[1,2]}},"of_a_newer_agent":[]}"#;
    let mut stat = Stat { columns: Some(serde_json::from_str(columns).unwrap()), ..Stat::default() };
    assert_eq!(stat.expand(2), 1);
    let [first, second] = &stat.groups[..] else { panic!("{stat:?}") };
    assert_eq!((first.cpu_ns, second.cpu_ns, &*second.name), (5, 0, ""));
    let requests = &first.waits.as_ref().unwrap().requests;
    assert_eq!((requests.buckets.len(), requests.exemplars.len()), (2, 2));
    assert!(second.waits.as_ref().unwrap().requests.buckets.is_empty());
}

#[test]
fn outcomes_of_exemplars_are_words_of_the_list() {
    let long = "o".repeat(LONGEST_OUTCOME + 1);
    let words = ["error", "sold_out", &long].map(|word| Cow::Owned(word.to_owned()));
    let exemplars = ExemplarColumns {
        of_group: vec![5],
        task: vec![1; 5],
        outcomes: words.into_iter().chain((0..MOST_OUTCOMES).map(|_| "more".into())).collect(),
        outcome: vec![1, 2, 3, MOST_OUTCOMES as u8, MOST_OUTCOMES as u8 + 1],
        ..ExemplarColumns::default()
    };
    let seen: Vec<_> = exemplars.lists(SCALE).next().into_iter().map(|of| of.outcome).collect();
    assert_eq!(seen, [Some("error"), Some("sold_out"), None, Some("more"), None].map(|of| of.map(Cow::from)));
    assert!(matches!(seen[0], Some(Cow::Borrowed(_))), "{seen:?}");
}

#[test]
fn long_names_of_events_are_not_copied() {
    let column = |length| CountColumns {
        event: "e".repeat(length).into(),
        value: vec![Some(1); 2],
        ..CountColumns::default()
    };
    let columns = GroupColumns {
        id: vec![1, 2],
        counts: vec![column(60), column(MOST_EVENTS), column(1)],
        ..GroupColumns::default()
    };
    let mut stat = Stat { columns: Some(Box::new(columns)), ..Stat::default() };
    stat.expand(usize::MAX);
    assert_eq!(stat.groups.iter().map(|group| group.counts.len()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn a_thousand_busy_groups_are_a_short_answer() {
    let tens =
        |from: i32, n: u64| (from..from + 90).map(|at| (at, n + u64::from(at.unsigned_abs()))).collect();
    let row = |from| HistogramRow {
        buckets: tens(from, 900),
        sum_ns: Some(123_456_789_012),
        max_ns: 345_678_912,
        ..UNITS
    };
    let exemplar = |n: u64| ExemplarRow {
        task: 1_234_567 + n,
        ..groups()[0].waits.as_ref().unwrap().requests.exemplars[0].clone()
    };
    let exemplars = (0..8).map(exemplar).map(|of| ExemplarRow { span_id: Some(WireId([7; 8])), ..of });
    let waits = WaitsRow {
        on_cpu_ns: Some(12_345_678_912),
        poll_ns: 12_345_678_912,
        runnable_ns: 2_345_678_912,
        await_ns: 412_345_678_912,
        queue: Some(QueueRow {
            requests: 123_456,
            received: 123_456,
            unseen_ns: 345_678_912,
            behind_ns: 5_678_912,
        }),
        unanswered: Some(UnansweredRow { requests: 123_456, age_ns: 12_345_678_912 }),
        polls: row(-260),
        delays: row(-280),
        awaits: row(-200),
        bodies: row(-160),
        // Few groups have streams.
        gaps: UNITS,
        received_gaps: HistogramRow::default(),
        streams: Some(StreamsRow { frames: 123_456_789, bytes: 123_456_789_012, sending: 12 }),
        carried: None,
        messages: None,
        stalls: None,
        requests: HistogramRow { exemplars: exemplars.collect(), ..row(-180) },
    };
    let group = |id| GroupRow {
        id,
        name: format!("GET /api/v1/customers/:id/orders/{id}").into(),
        cpu_ns: 12_345_678_912,
        started: 123_456,
        finished: 123_450,
        requests: 123_450,
        outcomes: Some(OutcomesRow { completed: 123_456, error: 12_345, ..OutcomesRow::default() }),
        polls: 1_234_567,
        waits: Some(Box::new(waits.clone())),
        ..GroupRow::default()
    };
    let mut stat = Stat { groups: (0..1000).map(group).collect(), ..Stat::default() };
    stat.shorten(StatPart::Groups);
    let length = serde_json::to_vec(&stat).unwrap().len();
    assert!(length < 7 << 19, "{length}");
}

/// An answer of a service that was built before these columns were put together.
#[test]
fn recorded_columns_are_read() {
    let mut stat: Stat =
        serde_json::from_str(include_str!("../../../../tests/recorded/columns.json")).unwrap();
    assert_eq!(stat.expand(usize::MAX), 0);
    let group = stat.groups.iter().find(|group| group.name == "GET /menu").unwrap();
    let waits = group.waits.as_ref().unwrap();
    let answered = waits.requests.buckets.iter().map(|(_, n)| n).sum::<u64>();
    assert!(answered > 0 && answered <= group.requests, "{group:?}");
    assert_eq!(group.outcomes.as_ref().map(|of| of.completed), Some(group.requests));
    assert!(group.counts.iter().any(|count| count.event == "task-clock" && count.value > 0), "{group:?}");
    assert!(waits.requests.exemplars.iter().all(|one| one.duration_ns <= waits.requests.max_ns), "{group:?}");
    let calls: u64 = stat.calls.iter().flat_map(|row| &row.times.buckets).map(|(_, n)| n).sum();
    assert!(calls > 0, "{:?}", stat.calls);
}

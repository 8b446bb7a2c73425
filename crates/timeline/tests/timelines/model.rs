//! Timelines from records that are late, lost, or of another order.

use dormouse::record::{Field, RecordKind};
use dormouse_protocol::Note;
use dormouse_timeline::{Edges, Timeline, TimelineEvent};

use crate::known::{
    BREW, CLOCK, STEPS, add, begin, builder, end, end_dropped, enter, exit, record, step, timeline, traced,
};

/// The events of a thread: begin and end in microseconds, task, what was seen.
fn events(timeline: &Timeline, tid: u32) -> Vec<(u64, u64, u64, Edges)> {
    let thread = timeline.threads.iter().find(|thread| thread.tid == tid).unwrap();
    let row = |it: &TimelineEvent| (it.begin_ns / 1_000, it.end_ns / 1_000, it.task, it.edges);
    thread.events.iter().map(row).collect()
}

#[test]
fn threads_have_their_spans_and_points() {
    let timeline = timeline();
    // The first record tells of a time 10 us before the clock's point.
    assert_eq!((timeline.unix_ns, timeline.mono_ns), (CLOCK.real_ns - 10_000, CLOCK.mono_ns - 10_000));
    assert_eq!((timeline.duration_ns, timeline.lost), (1_010_000, 7));
    assert_eq!(
        events(&timeline, 4001),
        [
            (120, 210, 11, Edges::Both),
            (140, 180, 21, Edges::Both),
            (150, 170, 21, Edges::Both),
            (160, 160, 21, Edges::Point),
            (910, 910, 0, Edges::Point),
            (960, 1_010, 33, Edges::Begin),
            (1_010, 1_010, 33, Edges::Point),
        ]
    );
    assert_eq!(
        events(&timeline, 4002),
        [
            (0, 50, 33, Edges::End),
            (510, 710, 11, Edges::Both),
            (560, 610, 21, Edges::Both),
            (570, 570, 21, Edges::Point),
        ]
    );
    let step = timeline.threads[0].events[3];
    assert_eq!(timeline.values(&step), [Field::Unsigned(3), Field::Text("black")]);
    assert_eq!(
        (timeline.group(5), timeline.group(0), timeline.group(9)),
        ("GET /tea", "(no group)", "(group unknown)")
    );
}

#[test]
fn tasks_have_ages_parents_and_requests() {
    let timeline = timeline();
    let rows: Vec<_> = timeline
        .tasks
        .iter()
        .map(|it| (it.task, it.parent, it.is_request, it.begin_ns / 1_000, it.end_ns / 1_000, it.edges))
        .collect();
    assert_eq!(rows, [(11, 0, true, 110, 720, Edges::Both), (21, 11, true, 130, 620, Edges::Both)]);
    assert_eq!([11, 21, 33].map(|task| timeline.request_of(task)), [11, 11, 33]);
    let outcomes: Vec<_> = timeline.tasks.iter().map(|it| timeline.outcome(it)).collect();
    assert_eq!(outcomes, [Some("cancelled"), None], "a record of an older service has none");
    assert_eq!(timeline.tasks[0].dropped, Some(0));
}

#[test]
fn drops_are_known_once_and_bounded() {
    let mut builder = builder();
    let drops = (0..2_000_u64).map(|n| end_dropped(n, (2 * n + 1, 5), n % 700, 9));
    add(&mut builder, 4001, &drops.collect::<Vec<_>>());
    let timeline = builder.finish();
    assert_eq!(timeline.drops.len(), 512);
    for it in &timeline.tasks {
        let place = u32::try_from(it.task / 2 % 700).unwrap();
        let known = it.dropped.map(|at| timeline.drops[usize::from(at)].place);
        assert_eq!(known, Some(place).filter(|place| *place < 512), "{it:?}");
    }
}

#[test]
fn a_task_has_the_trace_that_was_recorded() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let mut builder = builder();
    // From another thread, and first.
    add(&mut builder, 4002, &[traced(20, (11, 5), &"0".repeat(31)), traced(30, (11, 5), TRACE)]);
    add(&mut builder, 4001, &[begin(10, (11, 5), 0, true), begin(20, (21, 6), 0, true)]);
    add(&mut builder, 4001, &[traced(40, (21, 6), "no digits"), traced(50, (41, 6), TRACE)]);
    let timeline = builder.finish();
    let traces: Vec<_> = timeline.tasks.iter().map(|it| (it.task, it.trace_digits())).collect();
    assert_eq!(traces, [(11, Some(TRACE.to_owned())), (21, None)]);
}

#[test]
fn an_end_may_come_before_its_begin() {
    let mut builder = builder();
    add(&mut builder, 4002, &[end(50, (21, 6)), end(60, (31, 6))]);
    add(&mut builder, 4001, &[begin(10, (21, 6), 31, false), begin(20, (41, 6), 21, false)]);
    let timeline = builder.finish();
    let rows: Vec<_> = timeline.tasks.iter().map(|it| (it.task, it.begin_ns, it.end_ns, it.edges)).collect();
    assert_eq!(
        rows,
        [(21, 0, 40_000, Edges::Both), (31, 0, 50_000, Edges::End), (41, 10_000, 50_000, Edges::Begin)]
    );
    // Of 31 nobody saw the begin: it may be a server's main task.
    assert_eq!(timeline.request_of(41), 21);
}

#[test]
fn lost_exits_end_with_what_is_around() {
    let mut builder = builder();
    let brew = |phase, at| record(phase, BREW, at, (11, 5), &[]);
    add(
        &mut builder,
        4001,
        &[
            enter(0, (11, 5)),
            brew(RecordKind::Enter, 10),
            enter(20, (21, 6)),
            exit(30, (11, 5), 30),
            brew(RecordKind::Exit, 40),
            // Without the time that it took it began after what ended before.
            record(RecordKind::Exit, BREW, 50, (31, 5), &[]),
        ],
    );
    let timeline = builder.finish();
    assert_eq!(
        events(&timeline, 4001),
        [
            (0, 30, 11, Edges::Both),
            (10, 40, 11, Edges::Both),
            (20, 30, 21, Edges::Begin),
            (40, 50, 31, Edges::End),
        ]
    );
}

/// The enter or the exit of a function, of which the latter has a time.
fn brew(at_us: u64, task: u64, elapsed_us: Option<u64>) -> Vec<u8> {
    match elapsed_us {
        None => record(RecordKind::Enter, BREW, at_us, (task, 5), &[]),
        Some(us) => record(RecordKind::Exit, BREW, at_us, (task, 5), &[Field::Unsigned(us * 1_000)]),
    }
}

#[test]
fn calls_that_overlap_are_not_crossed() {
    let mut builder = builder();
    let all = [brew(0, 11, None), brew(10, 21, None), brew(50, 11, Some(50)), brew(90, 21, Some(80))];
    add(&mut builder, 4001, &all);
    let expected = [(0, 50, 11, Edges::Both), (10, 90, 21, Edges::Both)];
    assert_eq!(events(&builder.finish(), 4001), expected);
}

#[test]
fn calls_of_one_task_end_by_their_times() {
    let mut builder = builder();
    // Joined futures: the first to begin is the first to end.
    let all = [brew(0, 11, None), brew(10, 11, None), brew(50, 11, Some(50)), brew(90, 11, Some(80))];
    add(&mut builder, 4001, &all);
    let expected = [(0, 50, 11, Edges::Both), (10, 90, 11, Edges::Both)];
    assert_eq!(events(&builder.finish(), 4001), expected);
}

#[test]
fn a_call_that_awaits_is_one_span() {
    for thread in [4001, 4002] {
        let mut builder = builder();
        let first = [enter(0, (11, 5)), brew(10, 11, None), exit(20, (11, 5), 20)];
        add(&mut builder, 4001, &first);
        let last = [enter(80, (11, 5)), brew(100, 11, Some(90)), exit(110, (11, 5), 30)];
        add(&mut builder, thread, &last);
        let timeline = builder.finish();
        let mut all = events(&timeline, 4001);
        if thread != 4001 {
            all.extend(events(&timeline, thread));
        }
        let call = (10, 100, 11, Edges::Both);
        assert_eq!(all, [(0, 20, 11, Edges::Both), call, (80, 110, 11, Edges::Both)]);
    }
}

#[test]
fn an_exit_may_come_before_its_enter() {
    let mut builder = builder();
    add(&mut builder, 4002, &[brew(100, 11, Some(90)), brew(150, 11, Some(30))]);
    add(&mut builder, 4001, &[brew(10, 11, None)]);
    let all = events(&builder.finish(), 4002);
    assert_eq!(all, [(0, 90, 11, Edges::Both), (110, 140, 11, Edges::End)]);
}

#[test]
fn lost_exits_end_with_the_call_around() {
    let mut builder = builder();
    let inner = record(RecordKind::Enter, STEPS, 20, (11, 5), &[]);
    add(&mut builder, 4001, &[brew(0, 11, None), inner, brew(50, 11, Some(50)), brew(90, 13, None)]);
    let all = events(&builder.finish(), 4001);
    assert_eq!(all[..2], [(0, 50, 11, Edges::Both), (20, 50, 11, Edges::Begin)]);
}

#[test]
fn a_call_without_exit_ends_with_its_timeline() {
    let mut builder = builder();
    let all = [enter(0, (11, 5)), brew(10, 11, None), exit(20, (11, 5), 20), step(50, (0, 0), 1, "late")];
    add(&mut builder, 4001, &all);
    let all = events(&builder.finish(), 4001);
    assert_eq!(all[1], (10, 50, 11, Edges::Begin));
}

#[test]
fn requests_of_a_connection_are_several() {
    let mut builder = builder();
    // The number of a connection is even, and no multiple of 4.
    let all = [begin(0, (2, 6), 0, false), begin(1, (11, 5), 2, true), begin(2, (13, 5), 2, true)];
    add(&mut builder, 4001, &all);
    add(&mut builder, 4001, &[begin(3, (16, 5), 13, false)]);
    let timeline = builder.finish();
    assert_eq!([2, 11, 13, 16].map(|task| timeline.request_of(task)), [2, 11, 13, 13]);
    let mut file = Vec::new();
    dormouse_timeline::encode::perfetto(&timeline, &mut file).unwrap();
    assert!(file.windows(10).any(|word| word == b"connection"));
}

#[test]
fn parents_in_a_circle_end() {
    let mut builder = builder();
    add(&mut builder, 4001, &[begin(0, (11, 5), 21, true), begin(1, (21, 5), 11, true)]);
    let timeline = builder.finish();
    assert_eq!(timeline.tasks.len(), 2);
    assert_eq!(timeline.request_of(11), timeline.request_of(21));
}

#[test]
fn a_long_chain_of_tasks_is_one_request() {
    const LENGTH: u64 = 20_000;
    let mut builder = builder();
    let chain: Vec<_> = (1..=LENGTH).map(|task| begin(task, (4 * task, 5), 4 * (task - 1), false)).collect();
    add(&mut builder, 4001, &chain);
    let timeline = builder.finish();
    assert!((1..=LENGTH).all(|task| timeline.request_of(4 * task) == 4));
}

#[test]
fn nothing_recorded_is_an_empty_timeline() {
    let timeline = builder().finish();
    assert_eq!((timeline.duration_ns, timeline.events()), (0, 0));
    assert_eq!(timeline.unix_ns, CLOCK.real_ns);
}

#[test]
fn a_limit_is_kept_within_a_frame() {
    let mut builder = builder();
    let records = [step(1, (0, 0), 1, "a"), step(2, (0, 0), 2, "b"), step(3, (0, 0), 3, "c")].concat();
    assert_eq!(builder.add(4001, 1, &records, 2).unwrap(), 2);
    assert!(builder.add(4001, 1, b"what is that", 9).is_err());
    assert_eq!(builder.finish().events(), 2);
}

proptest::proptest! {
    #[test]
    fn any_order_of_records_makes_a_timeline(
        all in proptest::collection::vec((0u8..3, 1u32..6, 0u64..99, 0u64..4, 0u32..3), 0..60)
    ) {
        let mut builder = builder();
        builder.learn(Note::Thread { tid: 9, start: 9, name: "x\u{1b}\"".into() });
        for (phase, probe, at, task, group) in all {
            let phase = [RecordKind::Point, RecordKind::Enter, RecordKind::Exit][phase as usize];
            let values = [Field::Unsigned(at), Field::Boolean(true)];
            add(&mut builder, 4001, &[record(phase, probe, at, (task, group), &values)]);
        }
        let timeline = builder.finish();
        for event in timeline.threads.iter().flat_map(|thread| &thread.events) {
            proptest::prop_assert!(event.begin_ns <= event.end_ns && event.end_ns <= timeline.duration_ns);
        }
        dormouse_timeline::encode::perfetto(&timeline, Vec::new()).unwrap();
        dormouse_timeline::encode::firefox(timeline, Vec::new()).unwrap();
    }
}

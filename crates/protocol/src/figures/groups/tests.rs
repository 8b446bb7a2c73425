//! Figures of rows with known times.

use super::*;
use crate::figures::{FigureColumn, FigureValue};
use crate::objective::Objective;
use crate::verbs::{CarriedRow, GroupRow, HistogramRow, MessagesRow, ObjectiveRow, QueueRow, WaitsRow};

fn figure(key: &str, waits: &WaitsRow) -> FigureValue {
    let row = GroupRow { waits: Some(Box::new(waits.clone())), ..GroupRow::default() };
    let figure = GROUP_FIGURES.iter().find(|figure| figure.key == key).expect("a figure");
    figure.value(&GroupSpan::of(&row, false))
}

#[test]
fn the_four_times_share_the_whole() {
    let row =
        WaitsRow { on_cpu_ns: Some(10), poll_ns: 30, runnable_ns: 20, await_ns: 50, ..WaitsRow::default() };
    let keys = ["on_cpu_percent", "stalled_percent", "runnable_percent", "await_percent"];
    let shares = |row: &WaitsRow| keys.map(|key| figure(key, row).number());
    assert_eq!(shares(&row), [10.0, 20.0, 20.0, 50.0].map(Some));
    // Clocks that differ a little, and work without polls.
    let longer = WaitsRow { on_cpu_ns: Some(33), ..row.clone() };
    assert_eq!(figure("stalled_ns", &longer), FigureValue::Whole(0));
    assert_eq!(shares(&longer).map(|share| share.map(f64::round)), [32.0, 0.0, 19.0, 49.0].map(Some));
    let uncounted = WaitsRow { on_cpu_ns: None, ..row };
    assert_eq!(shares(&uncounted), [None, None, Some(20.0), Some(50.0)]);
    assert_eq!(figure("await_percent", &WaitsRow::default()), FigureValue::Unknown, "of nothing");
}

#[test]
fn a_queue_that_was_not_measured_is_unknown() {
    let row = |queue| WaitsRow { poll_ns: 60, await_ns: 20, queue, ..WaitsRow::default() };
    let keys = ["queued_ns", "queued_unseen_ns", "queued_behind_ns", "queued_percent", "await_percent"];
    let figures = |queue| keys.map(|key| figure(key, &row(queue)).number());
    let queue = QueueRow { requests: 2, received: 1, unseen_ns: 15, behind_ns: 5 };
    assert_eq!(figures(Some(queue)), [20.0, 15.0, 5.0, 20.0, 20.0].map(Some));
    let seen = QueueRow { received: 0, unseen_ns: 0, ..queue };
    assert_eq!(figures(Some(seen))[..3], [Some(5.0), None, Some(5.0)], "a lower bound");
    for none in [None, Some(QueueRow::default())] {
        assert_eq!(figures(none), [None, None, None, None, Some(25.0)]);
    }
}

#[test]
fn what_no_stream_counts_is_absent() {
    let keys = ["connection_read_bytes", "connection_written_bytes", "received_messages", "received_bytes"];
    let figures = |row: &WaitsRow| keys.map(|key| figure(key, row));
    let absent = [const { FigureValue::Absent }; 4];
    assert_eq!(figures(&WaitsRow::default()), absent);
    let carried = Some(CarriedRow { read: 5, written: 0 });
    let messages = Some(MessagesRow { messages: 2, bytes: 9 });
    let row = WaitsRow { carried, messages, ..WaitsRow::default() };
    assert_eq!(figures(&row), [5, 0, 2, 9].map(FigureValue::Whole));
    assert_eq!(figures(&row.since(&row)), [0; 4].map(FigureValue::Whole), "nothing more");
    assert_eq!(figures(&WaitsRow::default().since(&row)), absent);
    assert_eq!(figure("received_gap", &WaitsRow::default()), FigureValue::Absent);
    let FigureValue::Durations(gaps) = figure("received_gap", &row) else { panic!("two have one") };
    assert_eq!(gaps.count, 0);
}

#[test]
fn polls_over_a_millisecond_are_slow() {
    let polls = HistogramRow {
        scale: 2,
        unit_ns: 1_000_000_000,
        // Up to 977 µs, and longer.
        buckets: vec![(-41, 3), (-40, 1)],
        ..HistogramRow::default()
    };
    let slow = |polls| figure("slow_polls_percent", &WaitsRow { polls, ..WaitsRow::default() });
    assert_eq!(slow(polls), FigureValue::Number(25.0));
    assert_eq!(slow(HistogramRow::default()), FigureValue::Unknown, "no polls");
}

#[test]
fn the_objective_missed_most_is_shown() {
    let row = |target_ppm, met, missed| ObjectiveRow {
        objective: Objective { target_ppm, limit_ns: 250_000_000 },
        met,
        missed,
    };
    let figures = |objectives: &[ObjectiveRow]| {
        let row = GroupRow { objectives: objectives.to_vec(), ..GroupRow::default() };
        ["met_percent", "missed", "objective"].map(|key| {
            let figure = GROUP_FIGURES.iter().find(|figure| figure.key == key).unwrap();
            figure.value(&GroupSpan::of(&row, false))
        })
    };
    assert_eq!(figures(&[]), [FigureValue::Absent, FigureValue::Absent, FigureValue::Absent]);
    // 10 % of what may be missed, and 20 times of it.
    let shown = figures(&[row(500_000, 95, 5), row(999_000, 98, 2), row(990_000, 100, 0)]);
    assert_eq!(shown, [98.0.into(), 2.into(), FigureValue::Text("99.9% < 250ms".into())]);
    assert_eq!(figures(&[row(990_000, 0, 0)])[0], FigureValue::Unknown, "of no requests");
    let wild = row(u32::MAX, u64::MAX, u64::MAX);
    assert!(figures(&[wild])[0].number().unwrap() <= 100.0);
}

#[test]
fn keys_and_places_are_given_once() {
    let mut keys: Vec<_> = GROUP_FIGURES.iter().map(|figure| (figure.in_waits, figure.key)).collect();
    let mut places: Vec<_> = GROUP_FIGURES.iter().flat_map(|figure| figure.columns).collect();
    keys.sort_unstable();
    assert!(keys.windows(2).all(|two| two[0] != two[1]), "{keys:?}");
    places.sort_by_key(|column| (column.view as u8, column.place));
    let same = |two: &&[&FigureColumn]| (two[0].view, two[0].place) == (two[1].view, two[1].place);
    assert!(places.windows(2).find(same).is_none(), "{places:?}");
}

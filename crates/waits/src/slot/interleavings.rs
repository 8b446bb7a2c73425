//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-waits --lib interleavings`.
//!
//! The sequence in a slot is that of `dormouse-sys`, which has a model of its own. Here it adds no
//! order, so these models show what the other words do without it.

use loom::sync::Arc;
use loom::thread::spawn;

use super::*;
use crate::living::stamps;

/// The stamp with which the poll of the first task began.
const BEGUN: u64 = 5;

#[test]
fn a_reader_sees_no_two_tasks_as_one() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let slot = Arc::new(Slot::default());
        slot.prepare(1, 1);
        slot.polling.store(BEGUN, Ordering::Relaxed);
        slot.turn();
        let tasks = {
            let slot = Arc::clone(&slot);
            spawn(move || {
                slot.leave();
                slot.prepare(2, 2);
                slot.turn();
            })
        };
        if let Some((seen, _)) = stamps(&slot, 0) {
            let seen = (seen.task, seen.group, seen.polling);
            assert!([(1, 1, BEGUN), (2, 2, 0)].contains(&seen), "{seen:?}");
        }
        tasks.join().unwrap();
    });
}

#[test]
fn a_cpu_time_is_of_its_run() {
    loom::model(|| {
        let time = Arc::new(CpuTime::default());
        time.set(1, 10);
        let thread = {
            let time = Arc::clone(&time);
            spawn(move || time.set(2, 5))
        };
        let seen = time.of(2);
        assert!([None, Some(5)].contains(&seen), "{seen:?}");
        thread.join().unwrap();
    });
}

#[test]
fn a_turn_is_seen_after_what_it_gave() {
    loom::model(|| {
        let times = Arc::new([CpuTime::default(), CpuTime::default()]);
        times.each_ref().map(|time| time.set(1, 10));
        let thread = {
            let times = Arc::clone(&times);
            spawn(move || {
                // As in `cpu::take`.
                let [task, last_turn] = &*times;
                task.set(1, 20);
                last_turn.set(1, 20);
            })
        };
        let [task, last_turn] = &*times;
        if last_turn.of(1) == Some(20) {
            assert_eq!(task.of(1), Some(20));
        }
        thread.join().unwrap();
    });
}

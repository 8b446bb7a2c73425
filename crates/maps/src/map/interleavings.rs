//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-maps --lib interleavings`.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::{Cache, Overlap};

/// Limits preemptions to the number that shows each of the errors that were tried; without a limit
/// the model takes hours.
fn bounded(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(test);
}

/// The writer gives the mappings at `places`, one after the other, the number of the update as
/// their value. The reader looks the one at 0 up twice, the second time with the first answer in
/// its cache: each answer was true at some moment between call and return.
fn timely(places: &'static [u64]) {
    let changed = places.iter().position(|&at| at == 0).unwrap() as u32 + 1;
    bounded(move || {
        let map = Arc::new(RangeMap::<u32>::new());
        let (begun, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        map.update(|edit| places.iter().try_for_each(|&at| edit.insert(at..at + 10, 0, Overlap::Reject)))
            .unwrap();
        let reader = {
            let (map, begun, ended) = (Arc::clone(&map), Arc::clone(&begun), Arc::clone(&ended));
            loom::thread::spawn(move || {
                let cache = Cache::new();
                for _ in 0..2 {
                    let low = ended.load(Ordering::Acquire);
                    let answer = map.find_cached(&cache, 5).unwrap().unwrap().value;
                    let high = begun.load(Ordering::Acquire);
                    assert!(answer == 0 && low < changed || answer == changed && high >= changed);
                }
            })
        };
        for (number, &at) in (1..).zip(places) {
            begun.store(number, Ordering::Release);
            map.update(|edit| edit.insert(at..at + 10, number, Overlap::Replace)).unwrap();
            ended.store(number, Ordering::Release);
        }
        reader.join().unwrap();
    });
}

#[test]
fn every_answer_was_true_between_call_and_return() {
    timely(&[0]);
}

#[test]
fn spared_answers_were_true_between_call_and_return() {
    timely(&[40, 0, 60]);
}

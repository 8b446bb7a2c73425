//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-locks --lib interleavings`.

use loom::sync::{Arc, Mutex};
use loom::thread::spawn;

use super::*;

const RUN: u32 = 1;

/// An entry whose words belong together.
fn entry(address: usize, n: u32) -> Entry {
    let long = u64::from(n);
    Entry { address, row: n, tid: n, since: long, task: long, run: RUN, flags: n, around: [0; 2] }
}

fn seen(hand: &Hand, address: usize) -> Option<Entry> {
    hand.read(|there| there == mark(address, RUN)).map(|(_, entry, _)| entry).find(|it| it.address == address)
}

fn take(hand: &Hand, address: usize, n: u32) {
    let entry = entry(address, n);
    assert_eq!(hand.begin(mark(address, RUN), &entry), 1, "it is free");
    hand.cells[0].show(entry.since);
}

#[test]
fn a_reader_finds_a_whole_hold_or_none() {
    loom::model(|| {
        let hand = Arc::new(Hand::new());
        let reader = {
            let hand = hand.clone();
            spawn(move || {
                if let Some(seen) = seen(&hand, 8) {
                    assert_eq!(seen, entry(8, 1));
                }
            })
        };
        take(&hand, 8, 1);
        hand.cells[0].free();
        // Another lock in the same cell.
        take(&hand, 16, 2);
        reader.join().unwrap();
        assert_eq!((seen(&hand, 8), seen(&hand, 16)), (None, Some(entry(16, 2))));
    });
}

#[test]
fn a_hold_that_is_left_is_never_missed() {
    loom::model(|| {
        let hand = Arc::new(Hand::new());
        take(&hand, 8, 1);
        let reader = {
            let hand = hand.clone();
            spawn(move || {
                let seen = seen(&hand, 8).expect("its guard is not dropped yet");
                assert_eq!(Entry { flags: 1, ..seen }, entry(8, 1));
            })
        };
        assert!(hand.leave_behind(Some(RUN)));
        // The next thread with the block.
        hand.begin_thread();
        assert_eq!(hand.begin(mark(16, RUN), &entry(16, 2)), 0, "there is no room");
        reader.join().unwrap();
        assert_eq!(hand.cells[0].free_left().address, 8);
        assert_eq!(seen(&hand, 8), None);
    });
}

#[test]
fn a_late_guard_frees_its_own_hold_alone() {
    loom::model(|| {
        let hand = Arc::new(Hand::new());
        take(&hand, 8, 1);
        hand.leave_behind(Some(RUN));
        let late = {
            let hand = hand.clone();
            spawn(move || assert_eq!(hand.cells[0].free_left().task, 1))
        };
        // In another run, too, the next thread takes the cell only after the guard is dropped.
        let next = Entry { run: RUN + 1, ..entry(16, 2) };
        hand.begin_thread();
        let is_taken = hand.begin(mark(16, next.run), &next) == 1;
        let shown = is_taken.then(|| hand.cells[0].show(next.since));
        late.join().unwrap();
        assert_eq!(hand.cells[0].read(), shown.map(|version| (next, version.get())));
    });
}

#[test]
fn holders_follow_one_another_under_the_lock() {
    loom::model(|| {
        let (hands, lock) = (Arc::new([Hand::new(), Hand::new()]), Arc::new(Mutex::new(())));
        let hold = |own: usize| {
            let (hands, lock) = (hands.clone(), lock.clone());
            move || {
                let entry = entry(8, own as u32);
                assert_eq!(hands[own].begin(mark(8, RUN), &entry), 1);
                let _guard = lock.lock().unwrap();
                hands[own].cells[0].show(entry.since);
                assert_eq!(seen(&hands[own], 8), Some(entry));
                assert_eq!(seen(&hands[1 - own], 8), None, "no other one while it holds");
                hands[own].cells[0].free();
            }
        };
        let other = spawn(hold(1));
        hold(0)();
        other.join().unwrap();
    });
}

#[test]
fn a_hint_leads_to_a_holder_or_none() {
    let mut model = loom::model::Builder::new();
    // All orders are too many.
    model.preemption_bound = Some(2);
    model.check(|| {
        let (hands, hints) = (Arc::new([Hand::new(), Hand::new()]), Arc::new(Hints::<1>::new()));
        let lock = Arc::new(Mutex::new(()));
        let hold = |own: usize, address: usize| {
            let (hands, hints, lock) = (hands.clone(), hints.clone(), lock.clone());
            move || {
                let entry = entry(address, own as u32 + 1);
                let nth = hands[own].begin(mark(address, RUN), &entry);
                let _guard = lock.lock().unwrap();
                hints.put(address, place(own, nth));
                hands[own].cells[0].show(entry.since);
                assert_eq!(hints.holder(&hands[..], address, RUN), Some(entry), "its own hint is the last");
                hands[own].cells[0].free();
            }
        };
        // Both share the hint: the second time it is that of another lock.
        let others = [spawn(hold(0, 8)), spawn(hold(1, 16))];
        if let Some(seen) = hints.holder(&hands[..], 8, RUN) {
            assert_eq!(seen, entry(8, 1), "the holder of this lock, whole");
        }
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(hints.holder(&hands[..], 8, RUN), None, "it is free");
    });
}

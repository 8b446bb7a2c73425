//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-locks --lib interleavings`.

use loom::sync::{Arc, Mutex};
use loom::thread::spawn;

use super::*;

/// An entry whose words belong together.
fn entry(address: usize, n: u32) -> Entry {
    let long = u64::from(n);
    Entry { address, row: n, tid: n, since: long, task: long, run: n, flags: n, around: [long; 2] }
}

fn first(table: &Table<1>, address: usize) -> Option<Entry> {
    table.find(address, false).next().map(|(_, entry)| entry)
}

fn assert_whole(seen: &Entry, address: usize) {
    assert_eq!(*seen, entry(address, seen.row));
}

#[test]
fn a_reader_finds_one_holder_or_none() {
    let mut model = loom::model::Builder::new();
    // All orders are too many.
    model.preemption_bound = Some(2);
    model.check(|| {
        let table = Arc::new(Table::<1>::new());
        let reader = {
            let table = table.clone();
            spawn(move || {
                for (_, seen) in table.find(8, false) {
                    assert_whole(&seen, 8);
                    assert_eq!(seen.row, 1);
                }
            })
        };
        let token = table.put_alone(&entry(8, 1)).unwrap();
        table.remove(token);
        // Another lock in the same place.
        table.put_alone(&entry(16, 2)).unwrap();
        reader.join().unwrap();
        assert_eq!(first(&table, 16), Some(entry(16, 2)));
        assert_eq!(first(&table, 8), None);
    });
}

#[test]
fn holders_follow_one_another_under_the_lock() {
    loom::model(|| {
        let table = Arc::new(Table::<1>::new());
        let lock = Arc::new(Mutex::new(()));
        let hold = |n: u32| {
            let (table, lock) = (table.clone(), lock.clone());
            move || {
                let _guard = lock.lock().unwrap();
                let token = table.put_alone(&entry(8, n)).unwrap();
                assert_eq!(first(&table, 8), Some(entry(8, n)), "no other one while it holds");
                assert_eq!(table.own(token), Some(entry(8, n)));
                table.remove(token);
            }
        };
        let other = spawn(hold(1));
        hold(2)();
        other.join().unwrap();
        assert_eq!(table.all().count(), 0);
    });
}

#[test]
fn two_locks_never_share_a_cell() {
    loom::model(|| {
        let table = Arc::new(Table::<1>::new());
        let other = {
            let table = table.clone();
            spawn(move || table.put_alone(&entry(16, 2)).is_some())
        };
        assert!(table.put_alone(&entry(8, 1)).is_some());
        assert!(other.join().unwrap());
        assert_eq!(first(&table, 8), Some(entry(8, 1)));
        assert_eq!(first(&table, 16), Some(entry(16, 2)));
    });
}

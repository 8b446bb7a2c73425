//! One ring, its writer and its reader.

use super::*;

fn ring() -> Box<Ring> {
    Box::new(Ring::new())
}

#[test]
fn records_come_out_in_order_once() {
    let ring = ring();
    let mut expected: Vec<u8> = Vec::new();
    let mut seen = Vec::new();
    for round in 0..40u32 {
        let record = vec![round as u8; 5000];
        assert!(ring.push(&record));
        expected.extend(&record);
        if round % 3 == 0 {
            assert!(ring.drain(&mut seen).is_some());
        }
    }
    assert!(ring.drain(&mut seen).is_some());
    assert_eq!(seen, expected);
}

#[test]
fn a_full_ring_drops_until_it_is_drained() {
    let ring = ring();
    let record = vec![1; RING_BYTES / 4];
    for _ in 0..4 {
        assert!(ring.push(&record));
    }
    assert!(!ring.push(&[2]));
    assert_eq!(ring.dropped.load(Ordering::Relaxed), 1);
    ring.drain(&mut Vec::new());
    assert!(ring.push(&[2]));
}

#[test]
fn a_write_inside_another_is_dropped() {
    let ring = ring();
    let writing = ring.writing.begin().unwrap();
    assert!(!ring.push(&[1]));
    assert_eq!(ring.dropped.load(Ordering::Relaxed), 1);
    ring.writing.end(writing);
    assert!(ring.push(&[1]));
}

#[test]
fn unread_records_of_orphans_are_counted() {
    let ring = ring();
    // Both halves of a mark overflow on the way.
    let almost = u64::from(u32::MAX - 40) << 32 | u64::from(u32::MAX - 400);
    ring.head.store(almost, Ordering::Relaxed);
    ring.tail.store(almost, Ordering::Relaxed);
    for _ in 0..100 {
        assert!(ring.push(&[0; 24]));
    }
    ring.state.store(ORPHANED, Ordering::Relaxed);
    assert!(ring.claim(ORPHANED, RingOwner { tid: 1, start: 1 }));
    assert_eq!(ring.dropped.load(Ordering::Relaxed), 100);
    assert!(ring.push(b"new"));
    let mut read = Vec::new();
    assert!(ring.drain(&mut read).is_some());
    assert_eq!(read, b"new");
}

#[test]
fn a_lost_ring_gets_no_record() {
    let ring = ring();
    assert!(ring.push(b"one"));
    let head = ring.head.load(Ordering::Relaxed);
    assert!(ring.push(b"other"));
    let mut read = Vec::new();
    ring.drain(&mut read);
    // As after a write that a handler wrongly took for one that was left.
    ring.head.store(head, Ordering::Relaxed);
    read.clear();
    assert!(ring.drain(&mut read).is_some());
    assert_eq!(read, b"");
    assert!(ring.push(b"next") && ring.drain(&mut read).is_some());
    assert_eq!(read, b"next");
}

#[test]
fn a_reader_sees_whole_records_only() {
    let ring = &ring();
    let total = std::thread::scope(|scope| {
        let writer =
            scope.spawn(move || (0..200_000u32).filter(|n| ring.push(&[(n % 251) as u8; 24])).count());
        let mut count = 0;
        let mut buffer = Vec::new();
        loop {
            // Asked before the drain, so this round has everything that was written until then.
            let finished = writer.is_finished();
            buffer.clear();
            assert!(ring.drain(&mut buffer).is_some());
            for record in buffer.chunks(24) {
                assert!(record.iter().all(|&b| b == record[0]));
                count += 1;
            }
            if finished {
                break;
            }
        }
        assert_eq!(writer.join().unwrap(), count);
        count
    });
    assert!(total > 0);
}

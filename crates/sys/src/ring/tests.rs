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

/// A record of `words` words that contains its number.
fn numbered(number: u64, words: usize) -> Vec<u8> {
    let head = number << 8 | words as u64;
    std::iter::repeat_n(head, words).flat_map(u64::to_le_bytes).collect()
}

/// The numbers of such records, which must be whole.
fn numbers(mut bytes: &[u8]) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(head) = bytes.first_chunk().copied().map(u64::from_le_bytes) {
        let (record, rest) = bytes.split_at((head & 0xff) as usize * 8);
        assert!(record.chunks(8).all(|word| word == head.to_le_bytes()), "torn: {record:?}");
        all.push(head >> 8);
        bytes = rest;
    }
    all
}

#[test]
fn a_full_ring_keeps_the_newest() {
    for longest in [1, 3, 64] {
        let ring = ring();
        let (mut next, mut seen) = (0, 0);
        for round in 0..3 {
            // Several times around, and another part of it each time.
            for _ in 0..(4 + round) * RING_BYTES / (longest * 8) {
                assert!(ring.push(&numbered(next, next as usize % longest + 1)));
                next += 1;
            }
            let mut read = Vec::new();
            ring.drain(&mut read);
            // All but the eighth that was discarded last, and the one that it begins in.
            assert!(read.len() >= RING_BYTES - 2 * LONGEST, "{}", read.len());
            let newest = numbers(&read);
            assert_eq!(newest, (next - newest.len() as u64..next).collect::<Vec<_>>());
            seen += newest.len() as u64;
            assert_eq!(seen + ring.dropped.load(Ordering::Relaxed), next);
        }
    }
}

#[test]
fn a_full_ring_under_a_reader_drops() {
    let ring = ring();
    for number in 0..(RING_BYTES / 8) as u64 {
        assert!(ring.push(&numbered(number, 1)));
    }
    let tail = ring.begin_draining().unwrap();
    assert!(ring.begin_draining().is_none() && ring.drain(&mut Vec::new()).is_none());
    assert!(!ring.push(&numbered(1, 1)));
    assert_eq!(ring.dropped.load(Ordering::Relaxed), 1);
    ring.end_draining(tail);
    assert!(ring.push(&numbered(2, 1)));
    assert_eq!(ring.dropped.load(Ordering::Relaxed), 1 + (LONGEST / 8) as u64);
}

#[test]
fn a_torn_first_record_costs_the_rest() {
    let ring = ring();
    for number in 0..(RING_BYTES / 8) as u64 {
        assert!(ring.push(&numbered(number, 1)));
    }
    // As after a write that a handler wrongly took for one that was left.
    ring.firsts[1].store(u64::MAX >> 1, Ordering::Relaxed);
    assert!(ring.push(&numbered(9, 1)));
    assert_eq!(ring.dropped.load(Ordering::Relaxed), (RING_BYTES / 8) as u64);
    let mut read = Vec::new();
    ring.drain(&mut read);
    assert_eq!(numbers(&read), [9]);
}

#[cfg(not(miri))] // Its frames lie in no order.
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
    let almost = u64::from((u32::MAX >> 1) - 40) << 32 | u64::from(u32::MAX - 400);
    ring.head.store(almost, Ordering::Relaxed);
    ring.tail.store(almost, Ordering::Relaxed);
    for _ in 0..100 {
        assert!(ring.push(&[0; 24]));
    }
    ring.state.store(ORPHANED, Ordering::Relaxed);
    assert!(ring.claim(ORPHANED, RingOwner { tid: 1, start: 1 }, &AtomicU32::new(0)));
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
fn a_slow_reader_sees_whole_records_in_order() {
    const WRITTEN: u64 = if cfg!(miri) { 20_000 } else { 1_000_000 };
    let ring = &ring();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for number in 0..WRITTEN {
                ring.push(&numbered(number, number as usize % 5 + 1));
            }
        });
        let (mut seen, mut last) = (0, None);
        let mut buffer = Vec::new();
        loop {
            // Asked before the drain, so this round has everything that was written until then.
            let finished = writer.is_finished();
            buffer.clear();
            assert!(ring.drain(&mut buffer).is_some());
            for number in numbers(&buffer) {
                assert!(last < Some(number));
                last = Some(number);
                seen += 1;
            }
            if finished {
                break;
            }
            // Slower than the writer, now and then.
            if seen % 3 == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(seen + ring.dropped.load(Ordering::Relaxed), WRITTEN);
        assert!(seen > 0);
    });
}

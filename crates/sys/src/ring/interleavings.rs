//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-sys --lib interleavings`.

use loom::sync::Arc;
use loom::thread::spawn;

use super::*;

fn explore(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// Reads a pool with an orphaned ring on another thread.
fn read(pool: &Arc<Pool>) -> loom::thread::JoinHandle<u64> {
    let pool = Arc::clone(pool);
    spawn(move || {
        let mut firsts = 0;
        pool.drain_each(&mut Vec::new(), |_, owner, bytes| {
            assert!(bytes.iter().all(|byte| u32::from(*byte) == owner.tid), "{owner:?} {bytes:?}");
            firsts += u64::from(owner.tid == 1);
        });
        firsts
    })
}

/// A thread, with what it remembers of the pool.
struct Writer(Claimed, RingOwner);

impl Writer {
    fn new(number: u32) -> Self {
        Self(Claimed::new(), RingOwner { tid: number, start: number.into() })
    }

    fn push(&self, pool: &Pool) -> bool {
        pool.push(&self.0, || self.1, &[self.1.tid as u8])
    }
}

#[test]
fn a_ring_that_is_given_back_is_found() {
    explore(|| {
        let pool = Arc::new(Pool::new());
        let (first, second) = (Writer::new(1), Writer::new(2));
        assert!(first.push(&pool));
        pool.drain_each(&mut Vec::new(), |_, _, _| ());
        let thread = {
            let pool = Arc::clone(&pool);
            spawn(move || pool.release(&first.0))
        };
        let _is_free_already = second.push(&pool);
        thread.join().unwrap();
        assert!(second.push(&pool));
    });
}

#[test]
fn a_ring_that_a_reader_empties_is_found() {
    explore(|| {
        let pool = Arc::new(Pool::new());
        let (first, second) = (Writer::new(1), Writer::new(2));
        assert!(first.push(&pool));
        pool.release(&first.0);
        let reader = read(&pool);
        let homeless = u64::from(!second.push(&pool));
        let firsts = reader.join().unwrap();
        assert!(second.push(&pool));
        assert_eq!(pool.dropped(), homeless + 1 - firsts, "the first record is read or dropped");
    });
}

#[test]
fn a_ring_that_is_put_back_is_found() {
    explore(|| {
        let pool = Arc::new(Pool::new());
        let (first, second, third) = (Writer::new(1), Writer::new(2), Writer::new(3));
        assert!(first.push(&pool));
        pool.release(&first.0);
        let reader = read(&pool);
        let thread = {
            let pool = Arc::clone(&pool);
            spawn(move || second.push(&pool))
        };
        let has_ring = third.push(&pool);
        let _firsts = reader.join().unwrap();
        // Of the two one has the ring, or finds it.
        assert!(thread.join().unwrap() || has_ring || third.push(&pool));
    });
}

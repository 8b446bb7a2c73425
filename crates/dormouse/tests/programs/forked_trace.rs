//! A service that is traced forks: each child traces itself, sees its own records alone, and waits
//! for nobody. No test harness: the process forks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FORKS: usize = 150;

static STOP: AtomicBool = AtomicBool::new(false);

fn hit(n: u64) {
    dormouse::probe!("hub.hit", n);
}

/// The work of a child; it was forked while others of its parent's threads were reading and writing
/// records.
fn child(parents: &mut dormouse::Trace) {
    let mut own = dormouse::trace("hub.*").unwrap();
    (0..3).for_each(hit);
    let (mut seen, mut of_parents) = (0, 0);
    own.poll(|_, _, _| seen += 1);
    // The one that it has inherited is no trace of this process's.
    parents.poll(|_, _, _| of_parents += 1);
    assert_eq!((seen, of_parents, parents.dropped().trace), (3, 0, 0));
}

pub(crate) fn main() {
    // Has something in its queue at each fork.
    let mut slow = dormouse::trace("hub.*").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut trace = dormouse::trace("hub.*").unwrap();
            while !STOP.load(Ordering::Relaxed) {
                trace.poll(|_, _, _| {});
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut n = 0;
                while !STOP.load(Ordering::Relaxed) {
                    (n..n + 64).for_each(hit);
                    n += 64;
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
        }
        for n in 0..FORKS {
            let status = dormouse_testkit::fork(|| child(&mut slow));
            assert!(status.success(), "child {n}: {status}");
        }
        STOP.store(true, Ordering::Relaxed);
    });
    let mut seen = 0;
    slow.poll(|_, _, _| seen += 1);
    assert!(seen > 0, "the parent's goes on");
    println!("1 passed, 0 failed");
}

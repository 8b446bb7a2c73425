//! Dormouse's threads begin in any child of a fork.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use dormouse_sys::signals;
use dormouse_testkit::{fork, in_child, stress_rounds};

fn begin_a_thread() {
    let (tell, told) = mpsc::channel();
    signals::spawn("ours", 256 * 1024, move || tell.send(()).unwrap()).unwrap();
    told.recv().unwrap();
}

#[test]
fn threads_begin_in_children_of_busy_parents() {
    in_child(|| {
        let is_over = &AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        thread::spawn(|| ()).join().unwrap();
                    }
                });
            }
            let ended = (0..stress_rounds(200, 20_000)).all(|_| fork(begin_a_thread).success());
            is_over.store(true, Ordering::Relaxed);
            assert!(ended, "in a child no thread has begun");
        });
    });
}

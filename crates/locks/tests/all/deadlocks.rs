//! Threads and tasks that wait for one another for good.

use std::sync::Barrier;
use std::thread;

use dormouse_locks::{Holds, LockTimes, Mutex, lock_cycles};
use dormouse_testkit::{eventually, in_child};

use crate::support::be;

#[test]
fn a_deadlock_of_two_has_its_lines() {
    static LOCKS: [Mutex<u8>; 2] = [const { Mutex::new(0) }; 2];
    static BOTH: Barrier = Barrier::new(2);
    in_child(|| {
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        assert!(lock_cycles().is_empty());
        for own in 0..2 {
            // They never end; the process does.
            thread::spawn(move || {
                be(own as u64 + 1, own as u32 + 1);
                let _own = LOCKS[own].lock();
                BOTH.wait();
                let _other = LOCKS[1 - own].lock();
            });
        }
        eventually(|| !lock_cycles().is_empty());
        let found = lock_cycles();
        assert_eq!(found.len(), 1);
        let numbers = |cycle: &[dormouse_locks::Blocked]| {
            cycle.iter().map(|blocked| (blocked.waiter.number, blocked.holder.number)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&found[0]), numbers(&lock_cycles()[0]), "it is there at a second look");
        let mut tasks: Vec<_> = found[0].iter().map(|it| (it.waiter.task, it.holder.task)).collect();
        tasks.sort_unstable();
        assert_eq!(tasks, [(1, 2), (2, 1)]);
        for blocked in &found[0] {
            assert!(blocked.waiter.place.line > blocked.holder.place.line);
            assert!(blocked.waiter.for_ns.is_some());
        }
    });
}

#[test]
fn tasks_that_await_one_another_are_a_deadlock() {
    static LOCKS: [dormouse_locks::tokio::Mutex<u8>; 2] =
        [const { dormouse_locks::tokio::Mutex::const_new(0) }; 2];
    in_child(|| {
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for own in 0..2 {
                tokio::spawn(as_task(own as u64 + 1, async move {
                    let _own = LOCKS[own].lock().await;
                    tokio::task::yield_now().await;
                    let _other = LOCKS[1 - own].lock().await;
                }));
            }
            while lock_cycles().is_empty() {
                tokio::task::yield_now().await;
            }
            assert_eq!(lock_cycles()[0].len(), 2);
        });
    });
}

/// Each poll of the future is in that task.
async fn as_task(task: u64, future: impl Future<Output = ()>) {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        be(task, task as u32);
        let polled = future.as_mut().poll(context);
        be(0, 0);
        polled
    })
    .await;
}

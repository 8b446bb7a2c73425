//! Programs that task dumps have broken (tokio#8391, tokio#8434) do the same with everything on:
//! times, places, the account, the recorder, and scans for long polls.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use dormouse::waits::{Placing, Waiting};
use dormouse::{Event, Group, recorder};
use dormouse_testkit::in_child;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::yield_now;

/// Runs `program` as a task of a group, with three workers, in a process of its own.
fn watched<F: Future<Output = ()> + Send + 'static>(program: fn(Group) -> F) {
    in_child(|| {
        let group = Group::new("watched");
        let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
        let (_waiting, _placing) = (Waiting::start().unwrap(), Placing::start().unwrap());
        let recorder = recorder::start("dormouse.*", 1 << 20).unwrap();
        let _long_polls = dormouse::long_polls(Duration::from_millis(2)).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
        runtime.block_on(async { tokio::spawn(group.instrument(program(group))).await.unwrap() });
        let mut polls = 0;
        recorder.each(|key, _, _| polls += u64::from(key.name() == "dormouse.poll")).unwrap();
        assert!(polls > 0 && group.read_waits().polls.count() > 0);
    });
}

/// Children of one set wait for each other's locks, so a wake that is lost or goes to another child
/// leaves all of them waiting.
#[test]
fn children_hand_locks_to_each_other() {
    watched(|group| async move {
        let (lock, permits) = (Arc::new(Mutex::new(0)), Arc::new(Semaphore::new(2)));
        let mut children: FuturesUnordered<_> = (0..30)
            .map(|_| {
                let (lock, permits) = (Arc::clone(&lock), Arc::clone(&permits));
                group.instrument(async move {
                    for _ in 0..10 {
                        let _permit = permits.acquire().await.unwrap();
                        let mut count = lock.lock().await;
                        yield_now().await;
                        *count += 1;
                    }
                })
            })
            .collect();
        while children.next().await.is_some() {}
        assert_eq!(*lock.lock().await, 300);
    });
}

/// A future wakes itself in each poll, and is woken in the midst of it by others.
#[test]
fn a_future_wakes_itself() {
    watched(|_| {
        let mut polls = 0;
        poll_fn(move |cx| {
            polls += 1;
            if polls == 1000 {
                return Poll::Ready(());
            }
            let waker = cx.waker();
            match polls % 3 {
                0 => waker.wake_by_ref(),
                1 => Waker::clone(waker).wake(),
                _ => std::thread::scope(|scope| _ = scope.spawn(|| waker.wake_by_ref())),
            }
            Poll::Pending
        })
    });
}

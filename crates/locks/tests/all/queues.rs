//! Queues for what others hand out.

use std::future::Future;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::thread;

use dormouse_locks::{Holds, LockGuard, LockHolder, LockTimes, PermitQueue};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use crate::support::{be, holders, rows, tasks, waiters};

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A pool in the style of others: a semaphore of its own.
struct Pool(Semaphore);

impl Pool {
    async fn get(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.0.acquire().await
    }
}

#[track_caller]
fn take<'a>(
    from: &'static PermitQueue,
    pool: &'a Pool,
) -> impl Future<Output = Result<LockGuard<SemaphorePermit<'a>>, AcquireError>> {
    from.take(pool.get())
}

#[test]
fn connections_show_who_has_them_and_who_waits() {
    static CONNECTIONS: PermitQueue = PermitQueue::new("connections");
    let _times = LockTimes::start(Holds::All).unwrap();
    let pool = Pool(Semaphore::new(1));
    be(1, 1);
    let (taken, line) = (take(&CONNECTIONS, &pool), Location::caller().line());
    let Poll::Ready(Ok(connection)) = poll(pin!(taken)) else { panic!("there is one") };
    let [holder] = &holders(&CONNECTIONS)[..] else { panic!("one has it") };
    assert_eq!((holder.task, &*holder.place.name, holder.place.kind.name()), (1, "connections", "permit"));
    assert!((line - 1..=line).contains(&holder.place.line), "{holder:?}");
    {
        be(2, 2);
        let mut waiting = pin!(take(&CONNECTIONS, &pool));
        assert!(poll(waiting.as_mut()).is_pending());
        assert_eq!(waiters(&CONNECTIONS).iter().map(|user| user.task).collect::<Vec<_>>(), [2]);
        let mut dropped = Box::pin(take(&CONNECTIONS, &pool));
        assert!(poll(dropped.as_mut()).is_pending());
        drop(dropped);
        drop(connection);
        let Poll::Ready(Ok(_connection)) = poll(waiting) else { panic!("there is one again") };
        assert_eq!((tasks(&CONNECTIONS), waiters(&CONNECTIONS).len()), (vec![2], 0));
    }
    assert!(holders(&CONNECTIONS).is_empty());
    let waited = &rows(2)[..];
    let sum = |of: fn(&dormouse_locks::LockRow) -> u64| waited.iter().map(of).sum::<u64>();
    assert_eq!((sum(|row| row.waits.count()), sum(|row| row.given_up)), (2, 1), "{waited:?}");
    assert!(waited.iter().any(|row| row.held_by.iter().any(|(by, _)| *by == LockHolder::Group(1))));
    pool.0.close();
    assert!(matches!(poll(pin!(take(&CONNECTIONS, &pool))), Poll::Ready(Err(_))));
    assert!(holders(&CONNECTIONS).is_empty() && waiters(&CONNECTIONS).is_empty());
}

#[test]
fn nobody_is_blamed_for_what_nobody_has() {
    static EMPTY: PermitQueue = PermitQueue::new("connections that are still opened");
    let _times = LockTimes::start(Holds::All).unwrap();
    let pool = Pool(Semaphore::new(0));
    be(11, 11);
    let mut waiting = pin!(take(&EMPTY, &pool));
    assert!(poll(waiting.as_mut()).is_pending());
    pool.0.add_permits(1);
    assert!(poll(waiting).is_ready());
    let by: Vec<_> = rows(11)[0].held_by.iter().map(|(by, _)| *by).collect();
    assert_eq!(by, [LockHolder::Unknown], "and not before anybody looked");
}

#[test]
fn work_waits_until_it_begins_on_its_thread() {
    static THREADS: PermitQueue = PermitQueue::new("threads");
    let _times = LockTimes::start(Holds::All).unwrap();
    be(21, 21);
    let (work, given_up) = (THREADS.enter(), THREADS.enter());
    assert_eq!((waiters(&THREADS).len(), holders(&THREADS).len()), (2, 0));
    drop(given_up);
    let has_it = thread::spawn(move || {
        be(22, 21);
        let _thread = work.begin();
        (tasks(&THREADS), waiters(&THREADS).len())
    });
    assert_eq!(has_it.join().unwrap(), (vec![22], 0));
    assert!(holders(&THREADS).is_empty());
    let rows = rows(21);
    assert_eq!(rows.iter().map(|row| row.waits.count()).sum::<u64>(), 2, "by any thread: {rows:?}");
    assert_eq!(rows.iter().map(|row| row.given_up).sum::<u64>(), 1);
}

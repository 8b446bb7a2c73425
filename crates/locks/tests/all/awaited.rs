//! Locks whose guards live over `.await`.

use std::cell::Cell;
use std::future::Future;
use std::mem::forget;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use dormouse_locks::tokio::{Mutex, RwLock, Semaphore};
use dormouse_locks::{Holds, LockHolder, LockTimes, Mutex as ThreadMutex, lock_waiters};
use dormouse_testkit::eventually;

use crate::support::{address, be, holders, rows, tasks, waiters};

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_guard_goes_to_another_thread() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let lock = Mutex::new(1);
    be(1, 1);
    let Poll::Ready(guard) = poll(pin!(lock.lock())) else { panic!("it is free") };
    assert_eq!(tasks(&lock), [1]);
    {
        let mut waiting = pin!(lock.lock());
        be(2, 2);
        assert!(poll(waiting.as_mut()).is_pending());
        assert_eq!(waiters(&lock)[0].task, 2);
        assert!(lock.try_lock().is_err());
        thread::scope(|scope| scope.spawn(move || drop(guard)).join().unwrap());
        assert!(holders(&lock).is_empty());
        let Poll::Ready(mut guard) = poll(waiting) else { panic!("it is free again") };
        *guard += 1;
        assert_eq!(tasks(&lock), [2]);
    }
    assert!(tasks(&lock).is_empty() && waiters(&lock).is_empty());
    let rows_of_two = rows(2);
    let waited = rows_of_two.iter().find(|row| row.waits.count() > 0).expect("one line has waited");
    assert_eq!((waited.waits.count(), waited.held_by[0].0), (1, LockHolder::Group(1)));
    assert_eq!(rows(1)[0].holds.count(), 1, "counted where the guard was dropped");
}

#[test]
fn a_dropped_wait_was_given_up() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let lock = RwLock::new(1);
    be(11, 11);
    let reader = lock.try_read().unwrap();
    be(12, 12);
    {
        let mut writing = pin!(lock.write());
        assert!(poll(writing.as_mut()).is_pending());
        assert_eq!(waiters(&lock).len(), 1);
    }
    assert!(waiters(&lock).is_empty());
    assert_eq!((rows(12)[0].given_up, rows(12)[0].waits.count(), rows(12)[0].acquisitions), (1, 1, 0));
    drop(reader);
    assert!(lock.try_write().is_ok());
}

#[test]
fn permits_show_who_has_them() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let pots = Arc::new(Semaphore::new(3));
    be(21, 21);
    let (Poll::Ready(Ok(two)), line) = (poll(pin!(pots.acquire_many(2))), line!()) else { panic!("three") };
    let Poll::Ready(Ok(owned)) = poll(pin!(pots.clone().acquire_owned())) else { panic!("one is left") };
    assert_eq!((pots.available_permits(), two.num_permits()), (0, 2));
    let mut waiting = pin!(pots.acquire());
    be(22, 22);
    assert!(poll(waiting.as_mut()).is_pending());
    assert!(pots.try_acquire().is_err());
    let held = holders(&*pots);
    assert_eq!(held.iter().map(|user| user.task).collect::<Vec<_>>(), [21, 21]);
    assert!(held.iter().any(|user| user.place.line == line && user.place.kind.name() == "permit"));
    assert_eq!(waiters(&*pots)[0].group, 22);
    drop(owned);
    assert!(poll(waiting).is_ready());
    two.forget();
    assert!(holders(&*pots).is_empty());
    pots.close();
    assert!(matches!(poll(pin!(pots.acquire())), Poll::Ready(Err(_))));
    assert!(waiters(&*pots).is_empty());
}

#[test]
fn owned_guards_keep_their_lock() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let lock = Arc::new(Mutex::new(String::from("tea")));
    be(31, 31);
    let Poll::Ready(guard) = poll(pin!(Arc::clone(&lock).lock_owned())) else { panic!("it is free") };
    assert!(Arc::clone(&lock).try_lock_owned().is_err());
    assert_eq!((tasks(&*lock), guard.as_str()), (vec![31], "tea"));
    drop(guard);
    assert!(tasks(&*lock).is_empty());
    assert_eq!(*lock.blocking_lock(), "tea");
}

#[test]
fn several_permits_are_one_hold() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let pots = Arc::new(Semaphore::new(5));
    be(24, 24);
    let two = pots.try_acquire_many(2).unwrap();
    let Poll::Ready(Ok(owned)) = poll(pin!(Arc::clone(&pots).acquire_many_owned(2))) else { panic!("three") };
    assert_eq!((tasks(&*pots), owned.num_permits()), (vec![24, 24], 2));
    assert!(pots.try_acquire_many(2).is_err() && Arc::clone(&pots).try_acquire_many_owned(2).is_err());
    be(25, 25);
    {
        let mut waiting = pin!(Arc::clone(&pots).acquire_many_owned(3));
        assert!(poll(waiting.as_mut()).is_pending());
        assert_eq!(waiters(&*pots)[0].task, 25);
        drop(two);
        let Poll::Ready(Ok(three)) = poll(waiting) else { panic!("three are free") };
        assert_eq!(tasks(&*pots), [24, 25]);
        drop((three, owned));
    }
    let all = Arc::clone(&pots).try_acquire_many_owned(5).unwrap();
    assert_eq!((tasks(&*pots), all.num_permits()), (vec![25], 5));
    drop(all);
    assert!(holders(&*pots).is_empty());
}

#[test]
fn owned_readers_and_writers_are_shown() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let lock = Arc::new(RwLock::with_max_readers(1, 2));
    let kinds = || holders(&*lock).iter().map(|user| (user.place.kind.name(), user.task)).collect::<Vec<_>>();
    be(33, 33);
    let Poll::Ready(reader) = poll(pin!(Arc::clone(&lock).read_owned())) else { panic!("it is free") };
    assert_eq!((kinds(), *reader), (vec![("read", 33)], 1));
    assert!(Arc::clone(&lock).try_write_owned().is_err());
    let mut writing = pin!(Arc::clone(&lock).write_owned());
    be(34, 34);
    assert!(poll(writing.as_mut()).is_pending());
    assert_eq!(waiters(&*lock)[0].task, 34);
    drop(reader);
    let Poll::Ready(mut writer) = poll(writing) else { panic!("it is free again") };
    *writer += 1;
    assert_eq!(kinds(), [("write", 34)]);
    assert!(Arc::clone(&lock).try_read_owned().is_err());
    let (reader, line) = (writer.downgrade(), line!());
    assert_eq!((kinds(), holders(&*lock)[0].place.line), (vec![("read", 34)], line));
    let another = Arc::clone(&lock).try_read_owned().unwrap();
    assert_eq!((kinds().len(), *another, lock.try_read().is_err()), (2, 2, true), "two at most");
    drop((reader, another));
    assert_eq!(kinds(), []);
    let reader = lock.try_write().unwrap().downgrade();
    assert_eq!((kinds(), lock.try_read().is_ok()), (vec![("read", 34)], true));
    drop(reader);
    assert_eq!(kinds(), []);
}

#[test]
fn threads_block_for_locks_of_tasks() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let (lock, shared) = (Arc::new(Mutex::new(())), RwLock::new(()));
    let blocks = |task: u64, address: usize, guard: &dyn Fn(), take: &(dyn Fn() + Sync)| {
        thread::scope(|scope| {
            let waiter = scope.spawn(move || {
                be(task, task as u32);
                take();
            });
            let waits = || lock_waiters().iter().any(|user| (user.address, user.task) == (address, task));
            eventually(waits);
            guard();
            waiter.join().unwrap();
        });
        assert_eq!((rows(task as u32)[0].waits.count(), rows(task as u32)[0].acquisitions), (1, 1));
    };
    be(36, 36);
    let guard = Cell::new(Some(lock.try_lock().unwrap()));
    blocks(37, address(&*lock), &|| drop(guard.take()), &|| {
        let _guard = Arc::clone(&lock).blocking_lock_owned();
        assert_eq!(tasks(&*lock), [37]);
    });
    let guard = Cell::new(Some(shared.try_read().unwrap()));
    blocks(38, address(&shared), &|| drop(guard.take()), &|| {
        let _guard = shared.blocking_write();
        assert_eq!(tasks(&shared), [38]);
    });
    let guard = Cell::new(Some(shared.try_write().unwrap()));
    blocks(39, address(&shared), &|| drop(guard.take()), &|| {
        let _guard = shared.blocking_read();
        assert_eq!(tasks(&shared), [39]);
    });
}

#[test]
fn a_task_that_only_locks_leaves_others_turns() {
    async fn leaves_turns(take: impl AsyncFn()) {
        let other = tokio::spawn(async {});
        // tokio lets a task do some hundred things in one poll.
        for _ in 0..10_000 {
            take().await;
            if other.is_finished() {
                return;
            }
        }
        panic!("no other task had a turn");
    }
    let _times = LockTimes::start(Holds::Sampled).unwrap();
    let (lock, shared, pots) = (Mutex::new(()), RwLock::new(()), Arc::new(Semaphore::new(1)));
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        leaves_turns(async || drop(lock.lock().await)).await;
        leaves_turns(async || drop(shared.read().await)).await;
        leaves_turns(async || drop(shared.write().await)).await;
        leaves_turns(async || drop(pots.acquire().await)).await;
        leaves_turns(async || drop(Arc::clone(&pots).acquire_owned().await)).await;
    });
}

#[test]
fn a_closed_semaphore_gives_up_waits() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let pots = Arc::new(Semaphore::new(0));
    be(41, 41);
    {
        let mut waiting = pin!(pots.acquire());
        assert!(poll(waiting.as_mut()).is_pending());
        pots.close();
        assert!(matches!(poll(waiting), Poll::Ready(Err(_))));
        assert!(matches!(poll(pin!(Arc::clone(&pots).acquire_owned())), Poll::Ready(Err(_))));
    }
    assert!(holders(&*pots).is_empty());
    let rows = rows(41);
    let counts = rows.iter().map(|row| (row.acquisitions, row.waits.count(), row.given_up));
    assert_eq!(counts.collect::<Vec<_>>(), [(0, 1, 1); 2], "{rows:?}");
}

#[test]
fn a_task_blames_no_thread_for_its_wait() {
    /// One lock after the other at one address.
    #[repr(C)]
    enum Place {
        Thread(ThreadMutex<[u64; 2]>),
        Task(Semaphore),
    }
    let _times = LockTimes::start(Holds::All).unwrap();
    be(51, 51);
    let mut place = Box::new(Place::Thread(ThreadMutex::new([0; 2])));
    let Place::Thread(before) = &*place else { unreachable!() };
    forget(before.lock().unwrap());
    let at = address(before);
    *place = Place::Task(Semaphore::new(0));
    let Place::Task(pots) = &*place else { unreachable!() };
    assert_eq!(address(pots), at);
    be(52, 52);
    let mut waiting = pin!(pots.acquire());
    assert!(poll(waiting.as_mut()).is_pending());
    pots.add_permits(1);
    assert!(poll(waiting).is_ready());
    assert_eq!(rows(52)[0].held_by[0].0, LockHolder::Unknown);
}

//! Programs do the same with their futures wrapped: combinators, runtimes, and programs that task
//! dumps have broken.

use crate::support;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use dormouse_waits::{Placing, Waiting};
use futures_util::future::{join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use support::timed;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex as AsyncMutex, Notify, Semaphore, mpsc, oneshot};
use tokio::task::{JoinSet, LocalSet, yield_now};

/// Runs `program` on a runtime of one thread, and of three, as a task with times and places.
fn run<F: Future<Output = ()> + Send + 'static>(program: impl Fn() -> F) {
    let (_waiting, _placing) = (Waiting::start().unwrap(), Placing::start().unwrap());
    for threads in [0, 3] {
        let runtime = runtime(threads);
        runtime.block_on(async { tokio::spawn(timed(program())).await.unwrap() });
    }
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = match threads {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 0 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().unwrap()
}

#[test]
fn an_unordered_set_wakes_each_child() {
    run(|| async {
        let (senders, mut children): (Vec<_>, FuturesUnordered<_>) = (0..50_usize)
            .map(|n| {
                let (sender, receiver) = oneshot::channel();
                (sender, timed(async move { (n, receiver.await.unwrap()) }))
            })
            .unzip();
        let sending = tokio::spawn(timed(async {
            for (n, sender) in senders.into_iter().enumerate().rev() {
                sender.send(n * 2).unwrap();
                yield_now().await;
            }
        }));
        let mut sum = 0;
        while let Some((n, sent)) = children.next().await {
            assert_eq!(sent, n * 2);
            sum += sent;
        }
        assert_eq!(sum, 50 * 49);
        sending.await.unwrap();
    });
}

#[test]
fn select_and_join_end_as_they_should() {
    run(|| async {
        let (sender, mut receiver) = mpsc::channel(1);
        let asked = Arc::new(Notify::new());
        let other = Arc::clone(&asked);
        let task = tokio::spawn(timed(async move {
            for n in 0..100 {
                other.notified().await;
                sender.send(n).await.unwrap();
            }
        }));
        for n in 0..100 {
            asked.notify_one();
            tokio::select! {
                biased;
                () = timed(std::future::pending()) => unreachable!(),
                got = timed(receiver.recv()) => assert_eq!(got, Some(n)),
            }
        }
        task.await.unwrap();
        let one = timed(async { yield_now().await });
        let other = timed(tokio::time::sleep(Duration::from_millis(1)));
        tokio::join!(one, other);
        select(timed(std::future::pending::<()>()), timed(yield_now())).await;
        let all = join_all((0..40).map(|n| timed(async move { twice(n).await }))).await;
        assert_eq!(all.iter().sum::<u32>(), 2 * 780);
    });
}

async fn twice(n: u32) -> u32 {
    yield_now().await;
    tokio::time::sleep(Duration::from_micros(u64::from(n))).await;
    2 * n
}

#[test]
fn local_tasks_run_to_their_ends() {
    let _waiting = Waiting::start().unwrap();
    let done = std::rc::Rc::new(std::cell::Cell::new(0));
    LocalSet::new().block_on(&runtime(0), async {
        let tasks: Vec<_> = (0..20)
            .map(|n| {
                let done = done.clone();
                tokio::task::spawn_local(timed(async move {
                    twice(n).await;
                    done.set(done.get() + 1);
                }))
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(done.get(), 20);
}

/// The case of tokio#8434: children of one set wait for each other's locks, so a wake that is lost
/// or goes to another child leaves all of them waiting.
#[test]
fn children_hand_locks_to_each_other() {
    run(|| async {
        let lock = Arc::new(AsyncMutex::new(0));
        let permits = Arc::new(Semaphore::new(2));
        let mut children: FuturesUnordered<_> = (0..30)
            .map(|_| {
                let (lock, permits) = (Arc::clone(&lock), Arc::clone(&permits));
                timed(async move {
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

/// The case of tokio#8391: a future that wakes itself in each poll, and one that is woken in the
/// midst of it by others.
#[test]
fn a_future_wakes_itself() {
    run(|| async {
        let mut polls = 0;
        timed(poll_fn(move |cx| {
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
        }))
        .await;
    });
}

#[test]
fn aborted_tasks_go() {
    let _waiting = Waiting::start().unwrap();
    let flag = Arc::new(());
    runtime(3).block_on(async {
        let mut set = JoinSet::new();
        for _ in 0..100 {
            let flag = Arc::clone(&flag);
            set.spawn(timed(async move {
                std::future::pending::<()>().await;
                drop(flag);
            }));
        }
        yield_now().await;
        set.shutdown().await;
    });
    assert_eq!(Arc::strong_count(&flag), 1);
}

/// A runtime whose tasks live as long as their wakers.
#[derive(Default)]
struct Frugal {
    queue: Mutex<VecDeque<Arc<FrugalTask>>>,
}

struct FrugalTask {
    runtime: Weak<Frugal>,
    future: Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Wake for FrugalTask {
    fn wake(self: Arc<Self>) {
        let Some(runtime) = self.runtime.upgrade() else { return };
        runtime.queue.lock().unwrap().push_back(self);
    }
}

impl Frugal {
    fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        let (runtime, future) = (Arc::downgrade(self), Mutex::new(Box::pin(future) as _));
        self.queue.lock().unwrap().push_back(Arc::new(FrugalTask { runtime, future }));
    }

    fn run(&self) {
        loop {
            let Some(task) = self.queue.lock().unwrap().pop_front() else { return };
            let waker = Waker::from(Arc::clone(&task));
            let _ = task.future.lock().unwrap().as_mut().poll(&mut Context::from_waker(&waker));
        }
    }
}

struct Ends(Arc<AtomicUsize>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_task_goes_with_its_last_waker() {
    let _waiting = Waiting::start().unwrap();
    let runtime = Arc::<Frugal>::default();
    let (ends, held) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<Waker>>>::default());
    let (inside, places) = (Ends(Arc::clone(&ends)), Arc::clone(&held));
    runtime.spawn(timed(async move {
        let _inside = inside;
        poll_fn::<(), _>(|cx| {
            places.lock().unwrap().extend([cx.waker().clone(), cx.waker().clone()]);
            Poll::Pending
        })
        .await;
    }));
    runtime.run();
    let mut wakers = std::mem::take(&mut *held.lock().unwrap());
    wakers.pop();
    assert_eq!(ends.load(Ordering::SeqCst), 0, "one is left");
    wakers[0].wake_by_ref();
    drop(wakers);
    runtime.run();
    let wakers = std::mem::take(&mut *held.lock().unwrap());
    assert_eq!((wakers.len(), ends.load(Ordering::SeqCst)), (2, 0), "the wake ran it once more");
    drop(wakers);
    assert_eq!(ends.load(Ordering::SeqCst), 1);
}

#[test]
fn a_task_without_wakers_goes_at_once() {
    let _waiting = Waiting::start().unwrap();
    let runtime = Arc::<Frugal>::default();
    let (ends, ran) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let (inside, flag) = (Ends(Arc::clone(&ends)), Arc::clone(&ran));
    runtime.spawn(timed(async move {
        let _inside = inside;
        flag.store(true, Ordering::SeqCst);
        std::future::pending::<()>().await;
    }));
    runtime.run();
    assert!(ran.load(Ordering::SeqCst));
    assert_eq!(ends.load(Ordering::SeqCst), 1, "nobody can wake it");
}

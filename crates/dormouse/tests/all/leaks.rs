//! Tasks that leak: the patterns in which tasks of Go's services do (`GoBench`), as tokio has them,
//! beside patterns that do not. A proof must be true, and each leak must be in one of the two
//! lists.
#![cfg(all(target_os = "linux", feature = "hyper"))]

use std::collections::BTreeMap;
use std::future::{Future, pending, poll_fn};
use std::mem::forget;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Lock};
use std::task::{Poll, Waker};
use std::time::Duration;

use dormouse::tokio::spawn;
use dormouse::{Group, Waiting};
use dormouse_testkit::in_child;
use dormouse_waits::{Site, TaskState, growth, living, spawn_sites};
use tokio::sync::{Barrier, Mutex, Notify, OnceCell, RwLock, Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::task::yield_now;

/// Looks, with tasks of each pattern before each of them.
const ROUNDS: usize = 9;

/// Things that a service keeps by mistake.
type Kept = Vec<Box<dyn std::any::Any>>;
/// A pattern: its name, whether its tasks are proved to be lost, and the work of a round.
type Pattern = (&'static str, bool, fn(&mut Kept));

/// A future that waits, and whose waker goes where the test has it.
fn waits_with(keep: impl Fn(Waker) + Send + 'static) -> impl Future<Output = ()> + Send {
    let mut is_first = true;
    poll_fn(move |cx| {
        if !std::mem::take(&mut is_first) {
            return Poll::Ready(());
        }
        keep(cx.waker().clone());
        Poll::Pending
    })
}

const LEAKS: &[Pattern] = &[
    ("a receiver whose sender is forgotten", false, |_| {
        let (sender, mut receiver) = mpsc::channel::<u8>(1);
        forget(sender);
        spawn(async move { receiver.recv().await });
    }),
    ("a receiver whose sender is in a registry", false, |kept| {
        let (sender, mut receiver) = mpsc::unbounded_channel::<u8>();
        kept.push(Box::new(sender));
        spawn(async move { receiver.recv().await });
    }),
    ("a reply that is never sent", false, |kept| {
        let (reply, answer) = oneshot::channel::<u8>();
        kept.push(Box::new(reply));
        spawn(answer);
    }),
    ("the owner of both ends", false, |_| {
        spawn(async {
            let (sender, mut receiver) = mpsc::channel::<u8>(1);
            receiver.recv().await;
            drop(sender);
        });
    }),
    ("a sender to a full channel that nobody reads", false, |kept| {
        let (sender, receiver) = mpsc::channel(1);
        kept.push(Box::new(receiver));
        spawn(async move {
            let _ = sender.send(1).await;
            let _ = sender.send(2).await;
        });
    }),
    ("a notice that nobody gives", false, |_| {
        spawn(async { Notify::new().notified().await });
    }),
    ("a notice that was given too early", false, |_| {
        let notify = Arc::new(Notify::new());
        notify.notify_waiters();
        spawn(async move { notify.notified().await });
    }),
    ("a permit that is forgotten", false, |_| {
        let permits = Arc::new(Semaphore::new(1));
        permits.try_acquire().unwrap().forget();
        spawn(async move { drop(permits.acquire().await) });
    }),
    ("a lock that its owner takes twice", false, |_| {
        spawn(async {
            let lock = Mutex::new(());
            let _first = lock.lock().await;
            let _second = lock.lock().await;
        });
    }),
    ("a reader that becomes a writer", false, |_| {
        spawn(async {
            let lock = RwLock::new(());
            let _read = lock.read().await;
            let _write = lock.write().await;
        });
    }),
    ("two locks in two orders", false, |_| {
        let locks = [(); 2].map(|()| Arc::new(Mutex::new(())));
        for (first, second) in [(0, 1), (1, 0)] {
            let (first, second) = (Arc::clone(&locks[first]), Arc::clone(&locks[second]));
            spawn(async move {
                let _first = first.lock_owned().await;
                yield_now().await;
                let _second = second.lock_owned().await;
            });
        }
    }),
    ("a task that joins itself", false, |_| {
        let (hand, taken) = oneshot::channel::<tokio::task::JoinHandle<()>>();
        let own = spawn(async { taken.await.unwrap().await.unwrap() });
        hand.send(own).unwrap();
    }),
    ("two tasks that join each other", false, |_| {
        let (hand, taken) = oneshot::channel::<tokio::task::JoinHandle<()>>();
        let one = spawn(async { taken.await.unwrap().await.unwrap() });
        hand.send(spawn(async { one.await.unwrap() })).unwrap();
    }),
    ("a barrier that is short of one", false, |_| {
        spawn(async { _ = Barrier::new(2).wait().await });
    }),
    ("a watcher that is its own sender", false, |_| {
        spawn(async {
            let (sender, mut receiver) = watch::channel(0);
            let _ = receiver.changed().await;
            drop(sender);
        });
    }),
    ("a listener that is its own speaker", false, |_| {
        spawn(async {
            let (sender, mut receiver) = broadcast::channel::<u8>(1);
            let _ = receiver.recv().await;
            drop(sender);
        });
    }),
    ("a value that needs itself to begin", false, |_| {
        spawn(async {
            let cell = OnceCell::new();
            cell.get_or_init(|| async { *Box::pin(cell.get_or_init(|| async { 1 })).await }).await;
        });
    }),
    ("a day's sleep in place of a second's", false, |_| {
        spawn(tokio::time::sleep(Duration::from_secs(86_400)));
    }),
    ("a server to which nobody connects", false, |_| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        spawn(async move { drop(listener.accept().await) });
    }),
    ("branches that are never ready", true, |_| {
        spawn(async {
            tokio::select! {
                () = pending() => {}
                () = pending() => {}
            }
        });
    }),
    ("a future that takes no waker", true, |_| {
        spawn(poll_fn(|_| Poll::<()>::Pending));
    }),
    ("a queue that drops its waiters", true, |_| {
        let queue = Arc::new(Lock::new(Vec::new()));
        let own = Arc::clone(&queue);
        spawn(waits_with(move |waker| own.lock().unwrap().push(waker)));
        spawn(async move { queue.lock().unwrap().clear() });
    }),
    ("two waiters where there is room for one", false, |kept| {
        let place = Arc::new(Lock::new(None));
        for _ in 0..2 {
            let place = Arc::clone(&place);
            spawn(waits_with(move |waker| *place.lock().unwrap() = Some(waker)));
        }
        kept.push(Box::new(place));
    }),
];

const SOUND: &[Pattern] = &[
    ("a task that ends at once", false, |_| {
        spawn(async {});
    }),
    ("a task that ends after some polls", false, |_| {
        spawn(async {
            for _ in 0..5 {
                yield_now().await;
            }
        });
    }),
    ("connections that end", false, |_| {
        use hyper::rt::Executor as _;
        dormouse::hyper::Executor::group(Group::new("upstream")).execute(async {});
    }),
    ("a pool that is begun once", false, |kept| {
        static BEGUN: AtomicBool = AtomicBool::new(false);
        if !BEGUN.swap(true, Ordering::Relaxed) {
            let permits = Arc::new(Semaphore::new(0));
            for _ in 0..4 {
                let permits = Arc::clone(&permits);
                spawn(async move { drop(permits.acquire().await) });
            }
            kept.push(Box::new(permits));
        }
    }),
    ("an actor and its requests", false, |_| {
        let (ask, mut asked) = mpsc::channel::<oneshot::Sender<u8>>(1);
        spawn(async move {
            while let Some(reply) = asked.recv().await {
                let _ = reply.send(7);
            }
        });
        spawn(async move {
            for _ in 0..3 {
                let (reply, answer) = oneshot::channel();
                ask.send(reply).await.unwrap();
                assert_eq!(answer.await.unwrap(), 7);
            }
        });
    }),
    ("a burst, and its end", false, |_| {
        static ROUND: AtomicUsize = AtomicUsize::new(0);
        static END: Semaphore = Semaphore::const_new(0);
        match ROUND.fetch_add(1, Ordering::Relaxed) {
            round @ 0..6 => {
                for _ in 0..round * 4 {
                    spawn(async { END.acquire().await.unwrap().forget() });
                }
            }
            _ => END.add_permits(60),
        }
    }),
    ("the last three of many", false, |_| {
        static LAST: Lock<Vec<tokio::task::JoinHandle<()>>> = Lock::new(Vec::new());
        let mut last = LAST.lock().unwrap();
        last.push(spawn(async { Notify::new().notified().await }));
        if last.len() > 3 {
            last.remove(0).abort();
        }
    }),
    ("a part whose parent goes on", false, |_| {
        static PARENT: AtomicBool = AtomicBool::new(false);
        if !PARENT.swap(true, Ordering::Relaxed) {
            spawn(async {
                let part = dormouse::inherit(pending::<()>());
                tokio::select! {
                    () = part => {}
                    () = tokio::time::sleep(Duration::from_secs(86_400)) => {}
                }
            });
        }
    }),
    ("a wait inside a task of another's", false, |kept| {
        static BEGUN: AtomicBool = AtomicBool::new(false);
        if !BEGUN.swap(true, Ordering::Relaxed) {
            let (sender, receiver) = oneshot::channel::<()>();
            kept.push(Box::new(sender));
            let inner = Group::new("inner").instrument(pending::<()>());
            tokio::spawn(async move {
                tokio::select! {
                    () = inner => {}
                    _ = receiver => {}
                }
            });
        }
    }),
];

/// Runs everything that can run.
async fn settle() {
    let mut quiet = 0;
    for _ in 0..1000 {
        yield_now().await;
        // A task that yields is not seen as runnable before its thread's next turn.
        quiet = if living().all(|task| task.state != TaskState::Runnable) { quiet + 1 } else { 0 };
        if quiet == 10 {
            return;
        }
    }
    panic!("tasks go on and on");
}

fn changes() -> BTreeMap<Site, i64> {
    spawn_sites().map(|of| (of.site, of.change)).collect()
}

/// The findings about a pattern's tasks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    proven: usize,
    is_suspected: bool,
}

fn found() -> BTreeMap<&'static str, Found> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _waiting = Waiting::start().unwrap();
    let work = async {
        let mut kept = Kept::new();
        let mut sites: BTreeMap<Site, &str> = BTreeMap::new();
        let mut looks: BTreeMap<Site, Vec<i64>> = BTreeMap::new();
        for _ in 0..ROUNDS {
            for (name, _, begin) in LEAKS.iter().chain(SOUND) {
                let before = changes();
                begin(&mut kept);
                let has_spawned = |(site, change): &(Site, i64)| before.get(site).unwrap_or(&0) != change;
                sites.extend(changes().into_iter().filter(has_spawned).map(|(site, _)| (site, *name)));
            }
            settle().await;
            for (site, change) in changes() {
                looks.entry(site).or_default().push(change);
            }
        }
        let mut found: BTreeMap<&str, Found> =
            LEAKS.iter().chain(SOUND).map(|(name, ..)| (*name, Found::default())).collect();
        let mut strangers = Found::default();
        for task in living().filter(|task| task.is_unwakeable) {
            sites.get(&task.site).and_then(|name| found.get_mut(name)).unwrap_or(&mut strangers).proven += 1;
        }
        assert_eq!(strangers, Found::default());
        for (site, looks) in looks {
            let is_suspected = growth(&looks).is_some();
            found.get_mut(sites[&site]).unwrap().is_suspected |= is_suspected;
        }
        found
    };
    // The root is in the group while it spawns, and no task of it.
    let group = Group::new("leaks");
    runtime.block_on(group.instrument(work))
}

#[test]
fn leaks_are_found_and_sound_tasks_are_not() {
    in_child(|| {
        let found = found();
        let leaks = |is: fn(&Found) -> bool| LEAKS.iter().filter(|(name, ..)| is(&found[name])).count();
        println!(
            "{} patterns of leaks: {} proved, {} suspected, {} in neither list; {} sound ones",
            LEAKS.len(),
            leaks(|of| of.proven > 0),
            leaks(|of| of.is_suspected),
            leaks(|of| *of == Found::default()),
            SOUND.len()
        );
        for (name, is_proved, _) in LEAKS {
            assert!(found[name].is_suspected, "{name}: {:?}", found[name]);
            if *is_proved {
                assert_eq!(found[name].proven, ROUNDS, "{name}");
            }
        }
        for (name, ..) in SOUND {
            assert_eq!(found[name], Found::default(), "{name}");
        }
        // Of two waiters one has lost its waker; all others may be woken, for all that is known.
        let proven: Vec<_> = LEAKS.iter().filter(|(name, ..)| found[name].proven > 0).collect();
        assert_eq!(proven.len(), 4, "{found:?}");
    });
}

#[test]
fn no_task_is_given_up_that_goes_on() {
    in_child(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let _waiting = Waiting::start().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let work = Group::new("they go on").instrument(async {
            let pairs: Vec<_> = (0..4)
                .map(|_| {
                    // Each wake takes the only waker along, and is by another task.
                    let (there, mut come) = mpsc::channel::<oneshot::Sender<u64>>(1);
                    spawn(async move {
                        let mut n = 0;
                        while let Some(reply) = come.recv().await {
                            n += 1;
                            let _ = reply.send(n);
                        }
                    });
                    spawn(async move {
                        for n in 1..=20_000 {
                            let (reply, answer) = oneshot::channel();
                            there.send(reply).await.unwrap();
                            assert_eq!(answer.await.unwrap(), n);
                        }
                    })
                })
                .collect();
            for pair in pairs {
                pair.await.unwrap();
            }
        });
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                let (mut looks, mut waiting) = (0_u64, 0_u64);
                while !is_over.load(Ordering::Relaxed) {
                    for task in living() {
                        assert!(!task.is_unwakeable, "{task:?}");
                        waiting += u64::from(task.state == TaskState::Awaiting && task.site != Site::NONE);
                        looks += 1;
                    }
                }
                (looks, waiting)
            });
            runtime.block_on(work);
            is_over.store(true, Ordering::Relaxed);
            let (looks, waiting) = looker.join().unwrap();
            assert!(looks > 0 && waiting > 0, "{looks} {waiting}");
        });
    });
}

#[test]
fn a_task_is_lost_with_its_last_waker() {
    in_child(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let unwakeable = || living().filter(|task| task.is_unwakeable).count();
        let group = Group::new("lost");
        let begun = async {
            let task = spawn(pending::<()>());
            task.abort_handle()
        };
        let before = group.scope(|| runtime.block_on(group.instrument(begun)));
        let _waiting = Waiting::start().unwrap();
        let held = Arc::new(Lock::new(Vec::new()));
        let own = Arc::clone(&held);
        runtime.block_on(group.instrument(async move {
            spawn(waits_with(move |waker| own.lock().unwrap().extend([waker.clone(), waker])));
            settle().await;
        }));
        assert_eq!(unwakeable(), 0, "one has two wakers, the other began before times were taken");
        held.lock().unwrap().pop();
        assert_eq!(unwakeable(), 0, "one waker is left");
        // On another thread: it is dropped, not woken.
        let last = held.lock().unwrap().pop();
        std::thread::spawn(move || drop(last)).join().unwrap();
        assert_eq!(unwakeable(), 1);
        before.abort();
    });
}

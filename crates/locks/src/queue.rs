//! Queues in which requests wait for what others hand out: the connections of a pool, the threads
//! for blocking work.
//!
//! Such a pool has permits of its own, which nobody can wrap. A [`PermitQueue`] stands beside it,
//! and notes each wait for a permit and each permit that is held, with its task, its line and its
//! time.

use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::pin;
use std::ptr;
use std::task::Poll;

use crate::face::LockGuard;
use crate::kind::{LockKind, LockName, LockType};
use crate::leave::Held;
use crate::note::{Lock, Taker, Wait};
use crate::run::are_noted;

/// A queue for what a pool hands out. It shows the tasks that wait, and those that have something
/// of the pool's, by the line that took it: as permits, with the queue's name.
///
/// ```
/// use dormouse_locks::PermitQueue;
///
/// /// In front of the pool of connections.
/// static CONNECTIONS: PermitQueue = PermitQueue::new("connections");
///
/// async fn orders(pool: &Pool) -> Result<usize, Closed> {
///     let connection = CONNECTIONS.take(pool.get()).await?;
///     Ok(connection.len())
/// }
/// # struct Pool;
/// # #[derive(Debug)]
/// # struct Closed;
/// # impl Pool {
/// #     async fn get(&self) -> Result<Box<str>, Closed> {
/// #         Ok("a".into())
/// #     }
/// # }
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # assert_eq!(runtime.block_on(orders(&Pool)).unwrap(), 1);
/// ```
///
/// While nobody asks, it costs a sleeping instruction.
#[derive(Debug)]
pub struct PermitQueue {
    of: LockType,
}

impl PermitQueue {
    /// A queue with a name for those who read it.
    pub const fn new(name: &'static str) -> Self {
        Self { of: LockType { kind: LockKind::AsyncPermit, name: LockName::Word(name) } }
    }

    fn lock(&'static self) -> Lock {
        Lock { address: ptr::from_ref(self).addr(), of: &self.of }
    }

    /// Awaits what a pool hands out. The task has it until the guard is dropped.
    ///
    /// If the future is not ready at its first poll, the task waits from then on. So the wait
    /// contains all that the pool does, such as opening a connection.
    ///
    /// # Errors
    ///
    /// The error of the pool. The wait was given up then.
    #[track_caller]
    pub fn take<T, E>(
        &'static self,
        from: impl Future<Output = Result<T, E>>,
    ) -> impl Future<Output = Result<LockGuard<T>, E>> {
        let (lock, site) = (self.lock(), Location::caller());
        async move {
            let mut from = pin!(from);
            let taker = if are_noted() { Taker::begin(lock, site) } else { None };
            let Some(taker) = taker else {
                return from.await.map(|inner| LockGuard::new(inner, Held::NONE, ()));
            };
            let first = poll_fn(|context| Poll::Ready(from.as_mut().poll(context))).await;
            if let Poll::Ready(result) = first {
                return result.map(|inner| LockGuard::new(inner, taker.taken(lock), ()));
            }
            let waiting = taker.wait_in_queue(lock);
            let inner = from.await?;
            let held = taken_after_wait(lock, site);
            waiting.end();
            Ok(LockGuard::new(inner, held, ()))
        }
    }

    /// Work that is about to be handed to the pool: it waits from now on, until it begins.
    #[track_caller]
    pub fn enter(&'static self) -> QueuedWork {
        let (lock, site) = (self.lock(), Location::caller());
        let taker = if are_noted() { Taker::begin(lock, site) } else { None };
        QueuedWork(taker.map(|taker| (taker.wait_in_queue(lock), lock, site)))
    }
}

/// Another thread may poll the task by now, and another group may be current.
fn taken_after_wait(lock: Lock, site: &'static Location<'static>) -> Held {
    Taker::begin(lock, site).map_or(Held::NONE, |taker| taker.taken_after_wait(lock))
}

/// Work that waits in a [`PermitQueue`]. If it is dropped before it begins, its wait was given up.
#[derive(Debug)]
#[must_use = "the work waits as long as it lives"]
pub struct QueuedWork(Option<(Wait, Lock, &'static Location<'static>)>);

impl QueuedWork {
    /// The work begins, on the calling thread, and has its place in the pool until the guard is
    /// dropped.
    pub fn begin(self) -> LockGuard<()> {
        let held = self.0.map_or(Held::NONE, |(waiting, lock, site)| {
            let held = taken_after_wait(lock, site);
            waiting.end();
            held
        });
        LockGuard::new((), held, ())
    }
}

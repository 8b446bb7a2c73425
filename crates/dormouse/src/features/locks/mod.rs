//! Locks that show who holds them, who waits for them, since when, and at which line.
//!
//! They have the faces of std's locks: change `use std::sync::Mutex` to
//! `use dormouse::sync::Mutex`. With the feature `locks` there are those of `parking_lot`, with
//! `tokio` those of tokio, whose guards live over `.await`. None is larger than the lock
//! underneath, and while nobody asks, to take one costs a sleeping instruction more.
//!
//! A [`PermitQueue`] stands in front of what others hand out, such as the connections of a pool,
//! and shows the tasks that wait and those that have one: `CONNECTIONS.take(pool.get()).await?`.
//! The threads for blocking work are shown like that if the work begins by
//! `dormouse::tokio::spawn_blocking`.
//!
//! Locks are noted while a client asks for them (`dormouse locks`), while a [`LockTimes`] lives, or
//! from [`init`](crate::init) on with `DORMOUSE_LOCKS=1`. Then it is counted for each line that
//! takes locks, and each group, how often it did, how long it waited and for whom, and how long it
//! held them.
//!
//! ```
//! use dormouse::Group;
//! use dormouse::sync::{Holds, LockTimes, Mutex, lock_holders, read_locks};
//!
//! let index = Mutex::new(vec![7]);
//! let _times = LockTimes::start(Holds::Sampled)?;
//! let route = Group::new("GET /blend");
//! route.scope(|| {
//!     let (_index, line) = (index.lock().unwrap(), line!());
//!     let holder = lock_holders().into_iter().find(|holder| holder.group == route.id());
//!     assert_eq!(holder.map(|holder| holder.place.line), Some(line));
//! });
//! let row = read_locks().into_iter().find(|row| row.group == route.id());
//! assert_eq!(row.map(|row| row.acquisitions), Some(1));
//! # Ok::<(), dormouse::keys::Error>(())
//! ```

mod stacks;
pub(crate) mod verb;

#[cfg(feature = "locks")]
pub use dormouse_locks::parking_lot;
#[cfg(feature = "tokio")]
pub use dormouse_locks::tokio;
pub use dormouse_locks::{
    Blocked, Condvar, Holds, LockDurations, LockGuard, LockHolder, LockKind, LockPlace, LockResult, LockRow,
    LockTimes, LockUser, LongestWait, Mutex, MutexGuard, Once, OnceState, PermitQueue, PoisonError,
    QueuedWork, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit, TryLockError,
    TryLockResult, WaitTimeoutResult, is_on, lock_cycles, lock_holders, lock_holders_at, lock_waiters,
    read_locks,
};

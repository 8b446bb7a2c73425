//! rayon's functions, and parallel iterators, in the group that is current where they are called.
//!
//! While a worker of rayon's waits for a part of its work, it does any other work of the pool. So a
//! group that is merely *current* around a wait pays for strangers, and a part that another worker
//! takes is charged to no group. Here each part enters the group by itself, and a worker is in no
//! group while it waits.
//!
//! ```
//! use dormouse::Group;
//! use dormouse::rayon::InGroup as _;
//! use rayon::prelude::*;
//!
//! let report = Group::new("report");
//! let sum: u64 = report.scope(|| (0..1000_u64).into_par_iter().map(|n| n * n).in_group().sum());
//! let (left, right) = report.scope(|| dormouse::rayon::join(Group::current, Group::current));
//! assert_eq!((left, right), (Some(report), Some(report)));
//! # assert_eq!(sum, 332_833_500);
//! ```
//!
//! Plain functions of rayon's that are called *inside* of a part wait in its group, and are charged
//! with what their worker does meanwhile: use these all the way down. For libraries that cannot be
//! changed, a pool can have a group of its own:
//!
//! ```
//! let group = dormouse::Group::new("images");
//! let pool = rayon::ThreadPoolBuilder::new()
//!     .spawn_handler(|thread| group.spawn_thread(move || thread.run()).map(drop))
//!     .build()?;
//! # pool.install(|| assert_eq!(dormouse::Group::current(), Some(group)));
//! # Ok::<(), rayon::ThreadPoolBuildError>(())
//! ```
//!
//! Where no group is current these are rayon's own functions.
//!
//! # Cost
//!
//! Each part is a task of the group, begun and ended, with a switch at both ends; and so is each
//! wait of a worker.

mod iter;

use ::rayon::{ThreadPool, current_thread_index};

use super::inherit::{Carried, carry, inherit_fn};
use super::outside::in_no_group;

pub use self::iter::{Grouped, InGroup};

/// [`rayon::join`](::rayon::join()), both of whose closures are in the current group.
///
/// ```
/// use dormouse::{Group, rayon::join};
///
/// fn sum(part: &[u64]) -> u64 {
///     if part.len() < 100 {
///         return part.iter().sum();
///     }
///     let (left, right) = part.split_at(part.len() / 2);
///     let (left, right) = join(|| sum(left), || sum(right));
///     left + right
/// }
/// assert_eq!(Group::new("report").scope(|| sum(&[1; 1000])), 1000);
/// ```
#[track_caller]
pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA + Send,
    B: FnOnce() -> RB + Send,
    RA: Send,
    RB: Send,
{
    let carried = carried();
    waits(|| ::rayon::join(|| carried.run(a), || carried.run(b)))
}

/// [`rayon::spawn`](::rayon::spawn()) in the current group.
///
/// ```
/// use dormouse::{Group, rayon::spawn};
///
/// let (sender, receiver) = std::sync::mpsc::channel();
/// let report = Group::new("report");
/// report.scope(|| spawn(move || sender.send(Group::current()).unwrap()));
/// assert_eq!(receiver.recv(), Ok(Some(report)));
/// ```
#[track_caller]
pub fn spawn<F: FnOnce() + Send + 'static>(f: F) {
    ::rayon::spawn(inherit_fn(f));
}

/// [`ThreadPool::install`], whose closure is in the current group.
///
/// ```
/// use dormouse::{Group, rayon::install};
///
/// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
/// let report = Group::new("report");
/// assert_eq!(report.scope(|| install(&pool, Group::current)), Some(report));
/// # Ok::<(), rayon::ThreadPoolBuildError>(())
/// ```
#[track_caller]
pub fn install<F, T>(pool: &ThreadPool, f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let carried = carried();
    waits(|| pool.install(|| carried.run(f)))
}

/// [`rayon::Scope`](::rayon::Scope), whose closures are in the group that is current at their
/// spawn; see [`scope`].
///
/// ```
/// use dormouse::{Group, rayon::{PoolScope, scope}};
///
/// fn parts(scope: PoolScope<'_, '_>) {
///     scope.spawn(|_| assert_eq!(Group::current(), Some(Group::new("report"))));
/// }
/// Group::new("report").scope(|| scope(parts));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct PoolScope<'a, 'scope>(&'a ::rayon::Scope<'scope>);

impl<'scope> PoolScope<'_, 'scope> {
    /// Spawns a closure in the scope and in the current group.
    #[track_caller]
    pub fn spawn<F>(self, f: F)
    where
        F: FnOnce(PoolScope<'_, 'scope>) + Send + 'scope,
    {
        let carried = carried();
        self.0.spawn(move |scope| carried.run(|| f(PoolScope(scope))));
    }
}

/// [`rayon::scope`](::rayon::scope()), whose closure is in the current group; what that spawns is
/// in the group that is current there.
///
/// ```
/// use dormouse::{Group, rayon::scope};
///
/// let (mut left, mut right) = ([3, 1, 2], [9, 7, 8]);
/// Group::new("sort").scope(|| {
///     scope(|scope| {
///         scope.spawn(|_| left.sort_unstable()); // charged to `sort`, too
///         right.sort_unstable();
///     });
/// });
/// assert_eq!((left, right), ([1, 2, 3], [7, 8, 9]));
/// ```
#[track_caller]
pub fn scope<'scope, F, T>(f: F) -> T
where
    F: FnOnce(PoolScope<'_, 'scope>) -> T + Send,
    T: Send,
{
    let carried = carried();
    waits(|| ::rayon::scope(|scope| carried.run(|| f(PoolScope(scope)))))
}

/// The present group. A worker that is in none is not counted for it: the call that gave it the
/// work has been.
#[track_caller]
fn carried() -> Carried {
    if current_thread_index().is_some() { Carried::here() } else { carry() }
}

/// Runs what may wait for work of the pool: on a worker in no group. Other threads just sleep, and
/// stay in their poll, so that a long one is seen.
fn waits<T>(f: impl FnOnce() -> T) -> T {
    let is_charged = current_thread_index().is_some() && dormouse_events::current_task() != 0;
    if is_charged { in_no_group(f) } else { f() }
}

//! `std::thread` with threads that inherit the group that is current where they are spawned.
//!
//! The thread is a task of that group from its beginning to its end. Outside of any group these are
//! std's own functions. [`Group::spawn_thread`](crate::Group::spawn_thread) is for a thread that
//! *is* the group.
//!
//! ```
//! use dormouse::{Group, thread};
//!
//! let group = Group::new("housekeeping").scope(|| {
//!     thread::scope(|scope| scope.spawn(|| Group::current()).join().unwrap())
//! });
//! assert_eq!(group, Some(Group::new("housekeeping")));
//! ```

use std::io;
use std::thread::{JoinHandle, ScopedJoinHandle};

use super::inherit::inherit_fn;

/// [`std::thread::spawn`] in the current group.
///
/// ```
/// use dormouse::{Group, thread};
///
/// let import = Group::new("import");
/// let worker = import.scope(|| thread::spawn(Group::current));
/// assert_eq!(worker.join().unwrap(), Some(import));
/// ```
///
/// # Panics
///
/// Panics as std's does, if the system has no more threads.
#[track_caller]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    std::thread::spawn(inherit_fn(f))
}

/// [`std::thread::Builder`], whose threads are in the group that is current at their spawn.
///
/// ```
/// use dormouse::thread::Builder;
///
/// let worker = Builder::new().name("importer".to_owned()).spawn(|| { /* … */ })?;
/// worker.join().unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing happens until spawned"]
pub struct Builder(std::thread::Builder);

impl Builder {
    /// A builder for a thread without a name, with the default stack size.
    #[expect(clippy::new_without_default, reason = "as std has it")]
    pub fn new() -> Self {
        Self(std::thread::Builder::new())
    }

    /// Names the thread. The name must not contain a NUL byte.
    pub fn name(self, name: String) -> Self {
        Self(self.0.name(name))
    }

    /// Sets the size of the thread's stack in bytes.
    pub fn stack_size(self, size: usize) -> Self {
        Self(self.0.stack_size(size))
    }

    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The error of std's function, if the system has no more threads.
    #[track_caller]
    pub fn spawn<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.0.spawn(inherit_fn(f))
    }

    /// Starts the thread in a scope.
    ///
    /// # Errors
    ///
    /// See [`Builder::spawn`].
    #[track_caller]
    pub fn spawn_scoped<'scope, 'env, F, T>(
        self,
        scope: Scope<'scope, 'env>,
        f: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.0.spawn_scoped(scope.0, inherit_fn(f))
    }
}

/// [`std::thread::Scope`], whose threads are in the group that is current at their spawn; see
/// [`scope`].
///
/// ```
/// use dormouse::{Group, thread};
///
/// let (mut left, mut right) = ([3, 1, 2], [9, 7, 8]);
/// Group::new("sort").scope(|| {
///     thread::scope(|scope| {
///         scope.spawn(|| left.sort_unstable()); // charged to `sort`, too
///         right.sort_unstable();
///     });
/// });
/// assert_eq!((left, right), ([1, 2, 3], [7, 8, 9]));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Scope<'scope, 'env: 'scope>(&'scope std::thread::Scope<'scope, 'env>);

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread in the scope and in the current group.
    ///
    /// # Panics
    ///
    /// Panics as std's does, if the system has no more threads.
    #[track_caller]
    pub fn spawn<F, T>(self, f: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.0.spawn(inherit_fn(f))
    }
}

/// [`std::thread::scope`]: threads that may borrow, and have ended when it returns.
///
/// ```
/// use dormouse::{Group, thread};
///
/// let (mut left, mut right) = ([3, 1, 2], [9, 7, 8]);
/// Group::new("sort").scope(|| {
///     thread::scope(|scope| {
///         scope.spawn(|| left.sort_unstable()); // charged to `sort`, too
///         right.sort_unstable();
///     });
/// });
/// assert_eq!((left, right), ([1, 2, 3], [7, 8, 9]));
/// ```
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(Scope<'scope, 'env>) -> T,
{
    std::thread::scope(|scope| f(Scope(scope)))
}

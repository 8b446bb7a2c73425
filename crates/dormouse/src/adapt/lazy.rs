//! Runtimes that are declared all-instrumented: when a thread of theirs is lazy (see
//! [`dormouse_events::set_lazy`]).
//!
//! tokio starts its workers and the threads for blocking work in the same way, and closures of a
//! library's `spawn_blocking` are not visible here. Only a worker parks: so a thread becomes lazy
//! when it has first been idle, and a thread for blocking work never does. A current-thread runtime
//! calls its hooks on the thread of its `block_on`, and none when that returns: it is lazy only
//! within our [`block_on`].
//!
//! With tokio's unstable hooks around each poll, `hooks` distinguishes our tasks from others.

use ::tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use dormouse_events::{park, set_lazy};

use super::blocking::thread_stops;
use super::inherit::Inherited;

/// Declares that all work on the runtime is instrumented; see the [module](crate::tokio).
///
/// It sets `on_thread_park` and `on_thread_unpark`, of which tokio keeps one each. A program with
/// hooks of its own sets those instead, with [`thread_parks`] as the first thing in the first and
/// [`thread_unparks`] as the last in the second.
///
/// ```
/// use dormouse::tokio::{all_instrumented, block_on};
///
/// let runtime = all_instrumented(&mut tokio::runtime::Builder::new_current_thread()).build()?;
/// assert_eq!(block_on(&runtime, async { 2 + 2 }), 4);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn all_instrumented(builder: &mut Builder) -> &mut Builder {
    builder.on_thread_park(thread_parks).on_thread_unpark(thread_unparks)
}

/// Call this when a thread of a runtime is about to park that is
/// [all-instrumented](all_instrumented), or groups its
/// [blocking work](crate::tokio::group_blocking).
///
/// ```
/// use dormouse::tokio::{thread_parks, thread_unparks};
///
/// let mut builder = tokio::runtime::Builder::new_current_thread();
/// builder.on_thread_park(|| {
///     thread_parks();
///     // … the program's own hook
/// });
/// builder.on_thread_unpark(|| {
///     // … the program's own hook
///     thread_unparks();
/// });
/// ```
pub fn thread_parks() {
    // A thread that parks is a worker.
    thread_stops();
    park();
}

/// Call this when a thread of an [all-instrumented](all_instrumented) runtime has parked and is
/// back.
///
/// ```
/// use dormouse::tokio::{thread_parks, thread_unparks};
///
/// let mut builder = tokio::runtime::Builder::new_current_thread();
/// builder.on_thread_park(|| {
///     thread_parks();
///     // … the program's own hook
/// });
/// builder.on_thread_unpark(|| {
///     // … the program's own hook
///     thread_unparks();
/// });
/// ```
pub fn thread_unparks() {
    if Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() != RuntimeFlavor::CurrentThread) {
        set_lazy(true);
    }
}

/// `Runtime::block_on` for a runtime that is [`all_instrumented`]: meanwhile the thread is lazy if
/// it runs the tasks. The root future is charged to the group that is current here, or to none.
///
/// ```
/// use dormouse::tokio::{all_instrumented, block_on};
///
/// let runtime = all_instrumented(&mut tokio::runtime::Builder::new_current_thread()).build()?;
/// assert_eq!(block_on(&runtime, async { 2 + 2 }), 4);
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn block_on<F: Future>(runtime: &Runtime, root: F) -> F::Output {
    let root = Inherited::root(root);
    let _lazy = (runtime.handle().runtime_flavor() == RuntimeFlavor::CurrentThread).then(Lazy::begin);
    runtime.block_on(root)
}

/// Wraps a closure for `tokio::task::block_in_place` on a runtime that is [`all_instrumented`]:
/// `block_in_place(in_place(|| …))`. The thread may come back from there as a thread for blocking
/// work, so it is not lazy until it has been idle.
///
/// ```
/// use dormouse::tokio::in_place;
///
/// # async fn handler() -> usize {
/// tokio::task::block_in_place(in_place(|| { /* blocks this thread */ 7 }))
/// # }
/// ```
pub fn in_place<T>(f: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        set_lazy(false);
        f()
    }
}

/// The thread is lazy as long as it lives.
struct Lazy;

impl Lazy {
    fn begin() -> Self {
        set_lazy(true);
        Self
    }
}

impl Drop for Lazy {
    fn drop(&mut self) {
        set_lazy(false);
    }
}

//! Events, and the units that count them.
//!
//! A PMU can be asked, on a thread, how often its events have happened on that thread so far. It
//! has no notion of tasks: a caller that wants a task's share reads before and after, and
//! subtracts.
//!
//! Events of one PMU are read together, because one call often returns all of them: one `getrusage`
//! gives context switches and page faults.
//!
//! | PMU | events | of another thread |
//! |---|---|---|
//! | `clock` | task-clock | its clock, by the kernel |
//! | `software` | context-switches, page-faults, major-faults | `/proc/self/task` |
//! | `processor` | cpu-migrations, a lower bound | what it has noticed |
//! | `perf` | what the processor counts; cpu-migrations-exact | its descriptor |
//! | `alloc` | alloc-count, alloc-bytes, free-bytes, alloc-peak | its cells |
//! | `user` | the program's own | its cells |
//! | `breakpoint`, `arming` | hits | its cells |

pub mod alloc;
pub mod breakpoint;
mod cells;
mod clock;
#[cfg(any(test, feature = "counting"))]
mod counting;
mod event;
mod known;
mod patience;
pub mod perf;
mod sampling;
mod scale;
mod software;
mod usage;
pub mod user;

#[cfg(any(test, feature = "counting"))]
#[doc(hidden)]
pub use self::counting::CountingPmu;
pub(crate) use self::event::same;
pub use self::event::{Event, Pmu, Unit};
pub use self::known::{Availability, available, capability};
pub use self::scale::Times;

/// A thread begins to run tasks. From now on other threads find its cells, whether it has read them
/// yet or not, and its descriptors stay open until it departs.
pub(crate) fn arrive() {
    cells::shown(|_| ());
    perf::arrive();
}

/// In a fork child, which has none of its parent's countings.
pub(crate) fn after_fork() {
    breakpoint::forget();
}

/// The calling thread has ended its last task, and reads no counter any more.
pub(crate) fn depart() {
    perf::depart();
}

//! The stack of the tasks that a thread runs, and the switch from one to the next.
//!
//! Each file calls only those before it, from the bottom up: `token`, `changes`, `task`, `state`;
//! `stack`; `outside`, `shown`, `announced`; `charge`; `switch`; `aside`; `life`; `fast` and
//! `customize`; `api`.

mod announced;
mod api;
mod aside;
#[cfg(feature = "origin")]
mod changes;
#[cfg(not(feature = "origin"))]
#[path = "no_changes.rs"]
mod changes;
mod charge;
#[cfg(feature = "origin")]
mod customize;
mod fast;
mod life;
mod outside;
mod shown;
mod stack;
mod state;
mod switch;
mod task;
#[cfg(test)]
mod tests;
mod token;

pub use self::announced::{AnnouncedPolls, announced_polls};
pub use self::api::{
    Mark, TaskGuard, TaskNesting, current_context, current_task, enter, is_counting, is_lazy, leave, nesting,
    overflows, park, poll_begins, poll_ends, set_lazy, switch,
};
pub use self::aside::without_tasks;
pub use self::charge::Switched;
pub(crate) use self::life::{all_pending, charge_others};
pub use self::outside::{PollScanner, SeenPoll};
pub use self::task::{Task, TaskCounts};
pub use self::token::{Kind, MAX_DEPTH};

//! The per-thread block: the identity of a thread, its current task, and its end.
//!
//! A thread claims a block at its first use of dormouse and gives it back at its end. Each file
//! depends only on those before it: `around` (tasks in polls of others), `block` (the table),
//! `exit` (the end of a thread, the child of a fork, the first use), `record` (the thread's ring).
//!
//! # Async-signal-safety
//!
//! [`current`] is signal-safe once the process has claimed its first block; a thread's first claim
//! calls `pthread_setspecific`, which does not allocate for the first 32 keys of a process.

mod around;
mod block;
mod exit;
mod record;

pub use around::{TasksAround, find_tasks_around, tasks_around};
pub use block::{Current, MAX_THREADS, ThreadBlock, claims, find, live, refused, try_current};
pub use exit::{current, on_claim, on_thread_exit};
pub(crate) use record::{push, push_for_another, task_for_another};

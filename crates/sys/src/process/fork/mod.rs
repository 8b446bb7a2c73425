//! Forks: every lock of the library, and everything that is reset in a child, is in one table, in
//! one order.
//!
//! A child of a process with threads has one thread and the memory of all of them. A lock that
//! another thread held is held for ever in the child, and the value under it may be half changed.
//! So a fork takes all locks first, and releases them on both sides. State that must be reset in a
//! child (thread numbers, leases, sockets) is reset before the lock over it is free. But a child's
//! handlers may free no memory: state that owns some (holds, countings, traces) remains the
//! parent's until the first thread that takes its lock in the child drops it.
//!
//! Each copy of dormouse installs one set of handlers, before `main`, and the table contains what
//! they do: its entry for a phase is a [`Mutex`], a [`Reset`], or a [`Stage`] with functions of its
//! own. Handlers before a fork run from the last installed to the first, the others from the first
//! to the last. So handlers that a host installs in `main` or later find all our locks free, before
//! the fork and after it, in parent and child; and the locks that they take are taken before ours,
//! as by a thread that calls us. Handlers that a host installs earlier (in a constructor that runs
//! before ours) run while the fork has the locks: there our functions return an error for calls
//! from inside a fork, and wait for nothing.
//!
//! # Locking
//!
//! 1. A [`Phase`] is a lock's place in the order: a thread that holds a lock may take those after
//!    it, never one before it. A debug build checks that in [`Mutex::lock`].
//! 2. A thread that holds a lock before [`Phase::Patch`] must not take the patch lock. Each copy's
//!    handler goes through the phases by itself, so a fork that has the patch lock by one copy's
//!    handler waits for all earlier locks of the next copy.
//!
//! # Async-signal-safety
//!
//! Code that runs in a child does no more than a signal handler may. A signal handler may itself
//! fork, while its thread holds any of the locks or is in the middle of these handlers; then parent
//! and child each go on with the interrupted code.
//!
//! # References
//!
//! `pthread_atfork(3)`, `signal-safety(7)`.

mod mutex;
mod stages;

pub use mutex::{Condvar, Mutex, MutexGuard};
pub use stages::{Phase, Reset, Side, Stage, is_forking};

//! The seam between a process's allocator and those who sample its allocations.
//!
//! The wrapper of the allocator lies in one crate and the profiler in another, and neither knows
//! the other. Both know this: the wrapper is a [`Heap`], the profiler is its [`Listener`], and a
//! crate above both brings them together.
//!
//! # The sample
//!
//! Each byte that is allocated is picked with the odds of one in `period`, each by itself; an
//! allocation is told of once if any of its bytes is. So one of `size` bytes is told of with odds
//! of `1 - exp(-size / period)`, and stands for the inverse of that many of its kind: sums of such
//! weights are right on average, whatever the sizes are.

use std::fmt::Debug;

/// An allocation of the sample.
#[derive(Debug, Clone, Copy)]
pub struct Allocation {
    /// Its address.
    pub place: usize,
    /// Its bytes.
    pub size: usize,
    /// The period by which it was picked.
    pub period: u64,
    /// The frame pointer of the code that asked for it, and its stack pointer: for
    /// [`stack::walk`](crate::stack::walk).
    pub frame: usize,
    /// See `frame`.
    pub stack: usize,
}

/// Told of allocations, on the thread that allocates, inside of its call to the allocator: must not
/// allocate, wait, unwind, or touch thread-local storage that is set up at its first use; may
/// change `errno`. A thread is never told of anything while it is in `allocated`.
#[derive(Debug)]
pub struct Listener {
    /// An allocation of the sample has been made; its place is known to no one else yet.
    pub allocated: fn(&Allocation),
    /// A place is about to be given back, of the sample or not. Only while
    /// [`Heap::watch_frees`] is held.
    pub freed: fn(usize),
}

/// Held as long as something is told of.
pub trait Told: Debug + Send + Sync {}

/// An allocator that can tell of a sample of its allocations, and is asleep until somebody asks.
pub trait Heap: Debug + Sync {
    /// The reason why it has nothing to tell: the process does not allocate by it.
    fn why_not(&self) -> Option<String>;

    /// Has `listener` told of the sample until the answer is dropped. One listener: a second takes
    /// the place of the first. It may be told of an allocation a moment after the end.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be woken.
    fn sample(&self, listener: &'static Listener) -> Result<Box<dyn Told>, String>;

    /// Sets the bytes between two picks, on average; at least 1. Threads follow at their next
    /// allocation.
    fn set_period(&self, bytes: u64);

    /// Has the listener told of all frees until the answer is dropped. An allocation that is made
    /// after the return is not freed unheard.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be woken.
    fn watch_frees(&self) -> Result<Box<dyn Told>, String>;
}

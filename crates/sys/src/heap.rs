//! The interface between a process's allocator and samplers of its allocations.
//!
//! The wrapper of the allocator lies in one crate and the profiler in another, and neither depends
//! on the other. Both depend on this: the wrapper is a [`Heap`], the profiler is its [`Listener`],
//! and a crate above both connects them.
//!
//! # The sample
//!
//! Each allocated byte is picked with a probability of one in `period`, independently of the
//! others; an allocation is reported once if any of its bytes is picked. So an allocation of `size`
//! bytes is reported with probability `1 - exp(-size / period)`, and its weight is the inverse of
//! that: sums of weights are right on average, whatever the sizes are.

use std::fmt::Debug;

use crate::stack::CallFrame;

/// An allocation in the sample.
#[derive(Debug, Clone, Copy)]
pub struct Allocation {
    /// The address of the allocation.
    pub place: usize,
    /// The size of the allocation in bytes.
    pub size: usize,
    /// The sampling period with which the allocation was picked.
    pub period: u64,
    /// The registers of the code that called the allocator.
    pub from: CallFrame,
}

/// Functions that are called for allocations on the thread that allocates, inside of its call to
/// the allocator. They must not allocate, wait, unwind, or touch thread-local storage that is set
/// up at its first use; they may change `errno`. While a thread is in `allocated`, its allocations
/// are not reported.
#[derive(Debug)]
pub struct Listener {
    /// Called for an allocation in the sample, before the allocator returns its address.
    pub allocated: fn(&Allocation),
    /// Called before memory is freed, whether that is in the sample or not. Only while
    /// [`Heap::watch_frees`] is held.
    pub freed: fn(usize),
}

/// A subscription: a listener is called while this is held.
pub trait Subscription: Debug + Send + Sync {}

/// An allocator that can report a sample of its allocations. It does nothing extra until a listener
/// is set.
pub trait Heap: Debug + Sync {
    /// The reason why it cannot report anything: the process does not use it for its allocations.
    fn why_not(&self) -> Option<String>;

    /// Has `listener` called for the sample until the result is dropped. There is one listener: a
    /// second replaces the first. It may be called for an allocation a moment after the end.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be woken.
    fn sample(&self, listener: &'static Listener) -> Result<Box<dyn Subscription>, String>;

    /// Sets the bytes between two picks, on average; at least 1. Threads follow at their next
    /// allocation.
    fn set_period(&self, bytes: u64);

    /// Has the listener called for all frees until the result is dropped. No free of an allocation
    /// made after this returns is missed.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be woken.
    fn watch_frees(&self) -> Result<Box<dyn Subscription>, String>;
}

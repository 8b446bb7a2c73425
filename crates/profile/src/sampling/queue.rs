//! A queue of records of samples on their way from handlers to the sampler. Each kind has its own.
//!
//! CPU timers tick while their thread runs, so all threads together leave no more records per
//! second than processors have ticks. One bounded queue of fixed cells for the whole process is
//! therefore enough for any number of threads. A record that finds it full is dropped and counted,
//! and its CPU time is in the thread's next one. (Other kinds report what they lose.)
//!
//! A position that was taken is always filled, because signals are blocked, so no other handler can
//! interrupt this one and leave it. (But a filter of system calls may end a thread there. Then
//! later records are lost, and the next profile gets another queue.) A queue is mapped once and
//! stays, because a handler may come late.
//!
//! # Safety
//!
//! The unsafe code follows the pointer to the queue of a kind, which stays.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use dormouse_sys::process::identity;
use dormouse_sys::sync;

use super::walk::Frames;

/// A sample as a handler leaves it; `T` is the part that depends on its kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<T> {
    pub(super) of_kind: T,
    /// `CLOCK_MONOTONIC` at the last tick.
    pub(super) at_ns: u64,
    pub(super) group: u32,
    pub(super) frames: Frames,
}

/// A queue of samples.
pub(super) type Queue<T> = sync::Queue<Record<T>>;

/// The queue of a kind, which is mapped when the kind is first needed.
#[derive(Debug)]
pub(super) struct QueueOf<T> {
    queue: AtomicPtr<Queue<T>>,
    /// The process that has mapped it. A child of a fork maps its own: its parent's may contain a
    /// record that will never be finished.
    process: AtomicU64,
}

impl<T: Copy> QueueOf<T> {
    pub(super) const fn new() -> Self {
        Self { queue: AtomicPtr::new(ptr::null_mut()), process: AtomicU64::new(0) }
    }

    /// The queue, if there is one. Signal-safe.
    pub(super) fn get(&self) -> Option<&'static Queue<T>> {
        // SAFETY: null, or of a static's lifetime. Acquire: pairs with the store in `begin`.
        unsafe { self.queue.load(Ordering::Acquire).as_ref() }
    }

    /// The process's queue, empty of what came late for profiles that have ended. One that is not
    /// whole stays mapped beside the next one: a handler may be in it. The sampler alone calls it.
    pub(super) fn begin(&self, records: usize) -> io::Result<&'static Queue<T>> {
        let process = identity::id();
        let is_own = self.process.load(Ordering::Relaxed) == process;
        if let Some(queue) = self.get().filter(|queue| is_own && queue.is_whole()) {
            return Ok(queue);
        }
        let queue = Box::leak(Box::new(Queue::map(records)?));
        self.process.store(process, Ordering::Relaxed);
        // Release: pairs with the load in `get`.
        self.queue.store(ptr::from_ref(queue).cast_mut(), Ordering::Release);
        Ok(queue)
    }
}

//! The stack of one thread, read by another one.

use crate::sampling::StackSource;
use crate::thread_stack::{NoStack, ThreadStack};

/// Reads the stacks of threads of this process, one after the other, on a thread that may wait for
/// them.
#[derive(Debug)]
pub struct StackReader(StackSource);

impl StackReader {
    /// Prepares what reading stacks requires.
    ///
    /// # Errors
    ///
    /// [`NoStack::Refused`] without `/proc`, and on other systems and processors.
    ///
    /// # Cost
    ///
    /// Reads the list of mappings.
    pub fn new() -> Result<Self, NoStack> {
        StackSource::new().map(Self)
    }

    /// The stack of a thread of this process other than the caller.
    ///
    /// # Errors
    ///
    /// See [`NoStack`].
    ///
    /// # Cost
    ///
    /// Some ten to some hundred microseconds for a thread that sleeps. For one that runs, the
    /// caller waits until it enters the kernel's next tick, at most 40 ms.
    pub fn read(&mut self, tid: u32) -> Result<ThreadStack, NoStack> {
        self.0.read(tid, true)
    }

    /// The stack of a thread if it sleeps: it gets no signal.
    ///
    /// # Errors
    ///
    /// [`NoStack::Runs`] if it does not sleep within 40 ms, and as [`StackReader::read`].
    ///
    /// # Cost
    ///
    /// As [`StackReader::read`].
    pub fn read_asleep(&mut self, tid: u32) -> Result<ThreadStack, NoStack> {
        self.0.read(tid, false)
    }
}

//! A keeper: a thread that does what no thread of the host should, while there is something to do.
//!
//! It starts with the first errand, and ends when there is no errand and its [`Duty`] is empty. It
//! has a table of descriptors of its own, so the host can neither close nor inherit what it opens,
//! and blocks all signals but the synchronous ones. It sleeps until there is an errand, an end, or
//! the time of the next step.
//!
//! | state | event | next |
//! |---|---|---|
//! | no thread | an errand | begun |
//! | begun | it has a table | there |
//! | begun | it gets no table | no thread; its askers are told |
//! | there | no errand, and an empty duty | no thread |
//! | there | a panic, or a filter that kills the thread | no thread; its askers are told, and its duty is over |
//! | any | a fork, in the child | no thread |
//!
//! Threads that ask wait, so errands are short. An asker that a signal handler has interrupted,
//! which forked, is told so in the child.
//!
//! # Locking
//!
//! The keeper's lock, of the [`Phase`] that it was given, is held for moments: no system call is
//! made under it but those of the allocator. A fork waits for it. In the child it holds the
//! parent's errands: the first thread that takes the lock there leaves them alone.
//!
//! # Async-signal-safety
//!
//! [`Keeper::wake`] is signal-safe: an addition, and a system call if the keeper sleeps.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::thread::futex;

use crate::descriptors::leave_the_hosts_table;
use crate::process::fork::{Mutex, MutexGuard, Phase};
use crate::process::{identity, threads};
use crate::{memory, signals};

/// How long an asker waits before it looks whether the keeper lives.
const PATIENCE: Duration = Duration::from_secs(1);

/// The memory that an errand and the start of the thread take on the asker's side, amply.
const ASKING: usize = 16 * 1024;

/// What a keeper does. All of it is the keeper's thread's own; other threads send errands. A new
/// one has nothing to do.
pub trait Duty: Default + 'static {
    /// What [`Keeper::end`] names a thing by.
    type Id: Send;

    /// Whether there is nothing to do: then the thread ends.
    fn is_empty(&self) -> bool;

    /// Does the work that is due, and gives the time until the next step.
    fn step(&mut self) -> Duration;

    /// Ends what an errand has begun. It may be gone already, with a thread that was killed.
    fn end(&mut self, id: Self::Id);
}

/// Why a keeper did not do an errand.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// A signal handler over its thread's use of the keeper, or the middle of a fork.
    #[error("called in the middle of itself, or of a fork")]
    Reentrant,
    /// The process of the asker was forked while it waited.
    #[error("the process has forked meanwhile")]
    Forked,
    /// There is no memory for the errand.
    #[error("there is no memory")]
    NoMemory,
    /// The thread could not begin.
    #[error("no thread: {0}")]
    Thread(io::Error),
    /// The thread got no table of descriptors.
    #[error("no table of descriptors: {0}")]
    Table(io::Error),
    /// The thread was killed, as by a filter of system calls.
    #[error("its thread was killed")]
    Killed,
    /// The thread has ended in the middle of the errand.
    #[error("its thread has ended")]
    Ended,
}

/// Why the last errands were left alone.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    NoMemory,
    /// By an error number.
    Table(i32),
}

/// Work for the thread.
type Errand<D> = Box<dyn FnOnce(&mut D) + Send>;

/// The state that threads share with the keeper's.
struct Shared<D: Duty> {
    /// The process that the rest belongs to.
    process: u64,
    /// Whether the thread is there, or about to be.
    is_there: bool,
    /// Its id, once it has begun; 0 before.
    tid: u32,
    refusal: Option<Refusal>,
    errands: VecDeque<Errand<D>>,
    /// It has room for all that has begun, so that an end allocates nothing.
    ended: Vec<D::Id>,
    /// How much has begun, and how many errands are to begin something.
    begun: usize,
}

impl<D: Duty> Shared<D> {
    const fn new(process: u64) -> Self {
        Self {
            process,
            is_there: false,
            tid: 0,
            refusal: None,
            errands: VecDeque::new(),
            ended: Vec::new(),
            begun: 0,
        }
    }
}

impl<D: Duty> std::fmt::Debug for Shared<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("is_there", &self.is_there).finish_non_exhaustive()
    }
}

/// A thread that is there while its [`Duty`] is not empty. A static.
#[derive(Debug)]
pub struct Keeper<D: Duty> {
    name: &'static str,
    stack: usize,
    step_bytes: usize,
    shared: Mutex<Shared<D>>,
    /// Moves with each wake: the thread sleeps on it.
    wakes: AtomicU32,
    /// Whether the thread sleeps, or is about to.
    sleeps: AtomicBool,
}

impl<D: Duty> Keeper<D> {
    /// One without a thread. `name` and `stack` are the thread's; without `step_bytes` of memory it
    /// refuses errands and leaves out steps.
    pub const fn new(phase: Phase, name: &'static str, stack: usize, step_bytes: usize) -> Self {
        Self {
            name,
            stack,
            step_bytes,
            shared: Mutex::new(phase, Shared::new(0)),
            wakes: AtomicU32::new(0),
            sleeps: AtomicBool::new(false),
        }
    }

    /// Begins a thing, by an errand as in [`Keeper::ask`]. If it does, [`Keeper::end`] is called
    /// later.
    ///
    /// # Errors
    ///
    /// As [`Keeper::ask`]'s. The errand's own is the inner one.
    pub fn begin<T: Send + 'static, E: Send + 'static>(
        &'static self,
        errand: impl FnOnce(&mut D) -> Result<T, E> + Send + 'static,
    ) -> Result<Result<T, E>, KeeperError> {
        let mut shared = self.lock()?;
        let room = shared.begun + 1;
        shared.ended.try_reserve(room).map_err(|_| KeeperError::NoMemory)?;
        shared.begun = room;
        drop(shared);
        let begun = self.ask(errand);
        if !matches!(begun, Ok(Ok(_))) {
            self.forget_one(&mut self.lock()?);
        }
        begun
    }

    /// Ends a thing that has begun. It does not wait, and allocates nothing.
    pub fn end(&'static self, id: D::Id) {
        let Ok(mut shared) = self.lock() else { return };
        self.forget_one(&mut shared);
        if shared.is_there {
            shared.ended.push(id);
        }
        drop(shared);
        self.wake();
    }

    /// Has the thread run an errand, and waits for its answer. Starts the thread if there is none.
    ///
    /// # Errors
    ///
    /// Those of [`KeeperError`].
    pub fn ask<T: Send + 'static>(
        &'static self,
        errand: impl FnOnce(&mut D) -> T + Send + 'static,
    ) -> Result<T, KeeperError> {
        if !memory::is_there(ASKING) {
            return Err(KeeperError::NoMemory);
        }
        let (tell, told) = mpsc::sync_channel(1);
        let process = identity::id();
        let mut shared = self.lock()?;
        shared.errands.push_back(Box::new(move |duty| _ = tell.send(errand(duty))));
        let is_there = std::mem::replace(&mut shared.is_there, true);
        if !is_there {
            shared.tid = 0;
            shared.refusal = None;
        }
        drop(shared);
        if is_there {
            self.wake();
        } else if let Err(error) = signals::spawn(self.name, self.stack, || self.run()) {
            // Not under the lock: its beginning is waited for, and a fork by another thread must
            // not wait for that.
            self.give_up(0);
            return Err(KeeperError::Thread(error));
        }
        loop {
            match told.recv_timeout(PATIENCE) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(match self.lock()?.refusal {
                        Some(Refusal::NoMemory) => KeeperError::NoMemory,
                        Some(Refusal::Table(code)) => KeeperError::Table(io::Error::from_raw_os_error(code)),
                        None => KeeperError::Ended,
                    });
                }
                Err(RecvTimeoutError::Timeout) if identity::id() != process => {
                    return Err(KeeperError::Forked);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let tid = self.lock()?.tid;
            if tid != 0 && !threads::is_alive(tid) {
                self.give_up(tid);
                return Err(KeeperError::Killed);
            }
        }
    }

    /// Has the thread do a step now.
    pub fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        // SeqCst, as both accesses in `sleep`: one side sees the other's.
        if self.sleeps.load(Ordering::SeqCst) {
            let _ = futex::wake(&self.wakes, futex::Flags::PRIVATE, 1);
        }
    }

    fn lock(&'static self) -> Result<MutexGuard<Shared<D>>, KeeperError> {
        let mut shared = self.shared.lock().map_err(|_| KeeperError::Reentrant)?;
        let process = identity::id();
        if shared.process != process {
            // The askers' channels have locks inside, which the parent's threads may have had.
            std::mem::forget(std::mem::replace(&mut *shared, Shared::new(process)));
        }
        Ok(shared)
    }

    /// One thing less that will end. In a child of a fork there may be none.
    fn forget_one(&self, shared: &mut MutexGuard<Shared<D>>) {
        shared.begun = shared.begun.saturating_sub(1);
    }

    /// The thread with this id is not there, or will end: its errands are nobody's.
    fn give_up(&'static self, tid: u32) {
        let Ok(mut shared) = self.lock() else { return };
        if shared.tid != tid {
            return;
        }
        shared.is_there = false;
        shared.ended.clear();
        let errands = std::mem::take(&mut shared.errands);
        drop(shared);
        // Their askers are told by the end of their channels.
        drop(errands);
    }

    fn run(&'static self) {
        let until_end = UntilEnd(self);
        {
            // First of all: a filter may end this thread for its first system call, and an asker
            // finds that by the thread's id.
            let Ok(mut shared) = self.lock() else { return };
            shared.tid = identity::tid();
        }
        if let Err(error) = leave_the_hosts_table() {
            let Ok(mut shared) = self.lock() else { return };
            shared.refusal = Some(Refusal::Table(error.raw_os_error().unwrap_or_default()));
            return;
        }
        let mut duty = D::default();
        loop {
            let seen = self.wakes.load(Ordering::SeqCst);
            let has_memory = memory::is_there(self.step_bytes);
            let Ok(mut shared) = self.lock() else { return };
            while let Some(id) = shared.ended.pop() {
                drop(shared);
                duty.end(id);
                let Ok(again) = self.lock() else { return };
                shared = again;
            }
            let errands = std::mem::take(&mut shared.errands);
            if errands.is_empty() && duty.is_empty() {
                // Under the lock: the next errand starts another thread.
                shared.is_there = false;
                drop(shared);
                std::mem::forget(until_end);
                return;
            }
            shared.refusal = (!has_memory).then_some(Refusal::NoMemory);
            drop(shared);
            let is_asked = !errands.is_empty();
            let mut next = PATIENCE;
            if has_memory {
                for errand in errands {
                    errand(&mut duty);
                }
                next = duty.step();
            } else {
                // Their askers are told by the end of their channels.
                drop(errands);
            }
            if !is_asked {
                self.sleep(seen, next);
            }
        }
    }

    /// Sleeps until there was a wake since `seen`, or for so long. The thread alone calls it.
    fn sleep(&self, seen: u32, at_most: Duration) {
        // SeqCst: see `wake`.
        self.sleeps.store(true, Ordering::SeqCst);
        if self.wakes.load(Ordering::SeqCst) == seen {
            let timeout = at_most.try_into().ok();
            // Over, interrupted or woken: the thread looks again.
            let _ = futex::wait(&self.wakes, futex::Flags::PRIVATE, seen, timeout.as_ref());
        }
        self.sleeps.store(false, Ordering::SeqCst);
    }
}

/// Says so if the thread ends by a panic, too.
struct UntilEnd<D: Duty>(&'static Keeper<D>);

impl<D: Duty> Drop for UntilEnd<D> {
    fn drop(&mut self) {
        self.0.give_up(identity::tid());
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests;

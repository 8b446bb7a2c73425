//! A keeper: a thread that does what no host thread should, and that exists only while there is
//! something to do.
//!
//! It starts with the first errand, and ends when there is no errand and its [`Duty`] is empty. It
//! has a descriptor table of its own, so the host can neither close nor inherit what it opens. From
//! the host it borrows the standard error, for the message of an abort. It blocks all signals but
//! the synchronous ones, and sleeps until there is an errand, an end, or the time of the next step.
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
//! Callers wait for their errands, so errands are short. If a signal handler interrupts a waiting
//! caller and forks, the caller in the child gets an error.
//!
//! # Locking
//!
//! The keeper's lock, of the [`Phase`] that it was given, is held for moments: no system call is
//! made under it but those of the allocator. A fork waits for it. In the child it contains the
//! parent's errands: the first thread that takes the lock there drops them.
//!
//! # Async-signal-safety
//!
//! [`Keeper::wake`] is signal-safe: an addition, and a system call if the keeper sleeps.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::futex;
use rustix::io::Errno;

use crate::descriptors::LentStderr;
use crate::environment;
use crate::memory::{self, Step};
use crate::process::fork::{Mutex, MutexGuard, Phase};
use crate::process::{identity, threads};
use crate::signals;
use crate::sync::{NoAnswer, answer};

/// How long an asker waits before it looks whether the keeper lives.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a caller waits for earlier work of the thread, such as access to a disk.
const LONGEST: Duration = Duration::from_secs(10);

/// The memory that an errand and the start of the thread take on the asker's side, amply.
const ASKING: usize = 16 * 1024;

/// The work of a keeper. Only the keeper's thread accesses it; other threads send errands. A
/// default value has nothing to do.
pub trait Duty: Default + 'static {
    /// The name of a thing that [`Keeper::end`] ends.
    type Id: Send;

    /// Whether there is nothing to do: then the thread ends.
    fn is_empty(&self) -> bool;

    /// Does the work that is due, and gives the time until the next step ([`Duration::MAX`]: none).
    fn step(&mut self) -> Duration;

    /// Takes the place of [`Duty::step`] where there is no memory for that: what must not wait, and
    /// allocates nothing.
    fn step_without_memory(&mut self) {}

    /// Ends what an errand has begun. It may be gone already, with a thread that was killed.
    fn end(&mut self, id: Self::Id);
}

/// Why a keeper has not done an errand.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// The environment has turned dormouse off.
    #[error("{}", environment::OFF)]
    Off,
    /// The caller is a signal handler that interrupted its thread's use of the keeper, or is in the
    /// middle of a fork.
    #[error("called in the middle of itself, or of a fork")]
    Reentrant,
    /// The caller's process was forked while it waited, and this is the child.
    #[error("the process has forked meanwhile")]
    Forked,
    /// There is no memory for the errand.
    #[error("there is no memory")]
    NoMemory,
    /// The thread could not be started.
    #[error("no thread: {0}")]
    Thread(io::Error),
    /// The thread could not get a descriptor table of its own.
    #[error("no table of descriptors (close_range): {0}")]
    Table(io::Error),
    /// The thread was killed, for example by a filter of system calls.
    #[error("its thread was killed")]
    Killed,
    /// The thread is busy with something else, for example with a disk that does not respond.
    #[error("it is busy: try again")]
    Busy,
    /// The thread ended in the middle of the errand.
    #[error("its thread has ended")]
    Ended,
}

/// Why an errand is left alone.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    NoMemory,
    /// The thread could not get a descriptor table; the error number.
    Table(i32),
}

/// A step of the thread: it gets the duties, or the reason why there is no step.
type Errand<D> = Box<dyn FnOnce(Result<&mut D, Refusal>) + Send>;

/// Work for the thread, done in the order in which it was left.
enum Work<D: Duty> {
    Errand(Errand<D>),
    End(D::Id),
}

/// The state that threads share with the keeper's.
struct Shared<D: Duty> {
    /// The process that the rest belongs to.
    process: u64,
    /// Whether the thread is there, or about to be.
    is_there: bool,
    /// Its id; 0 until it has begun.
    tid: u32,
    /// It has room for the ends of all that has begun, so that an end allocates nothing.
    work: VecDeque<Work<D>>,
    /// How much has begun, and how many errands are to begin something.
    begun: usize,
}

impl<D: Duty> Shared<D> {
    const fn new(process: u64) -> Self {
        Self { process, is_there: false, tid: 0, work: VecDeque::new(), begun: 0 }
    }

    /// Makes room for one thing more, and for the ends.
    fn make_room(&mut self) -> Result<(), KeeperError> {
        self.work.try_reserve(self.begun + 1).map_err(|_| KeeperError::NoMemory)
    }
}

impl<D: Duty> std::fmt::Debug for Shared<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("is_there", &self.is_there).finish_non_exhaustive()
    }
}

/// A thread that exists while its [`Duty`] is not empty. Must be a static.
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
    /// A keeper without a thread yet. `name` and `stack` are for the thread; when fewer than
    /// `step_bytes` of memory are free, it refuses errands and skips steps.
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

    /// Begins an activity by an errand as in [`Keeper::ask`]. If the errand succeeds,
    /// [`Keeper::end`] must be called later.
    ///
    /// # Errors
    ///
    /// Those of [`Keeper::ask`]; the inner error is the errand's own.
    pub fn begin<T: Send + 'static, E: Send + 'static>(
        &'static self,
        errand: impl FnOnce(&mut D) -> Result<T, E> + Send + 'static,
    ) -> Result<Result<T, E>, KeeperError> {
        self.make_room_for_one()?;
        let begun = self.ask(errand);
        if !matches!(begun, Ok(Ok(_))) {
            forget_one(&mut self.lock()?);
        }
        begun
    }

    /// Begins an activity as [`Keeper::begin`] does, by an errand that cannot fail, and does not
    /// wait for it.
    ///
    /// # Errors
    ///
    /// A [`KeeperError`] that is known at once.
    pub fn begin_later(
        &'static self,
        errand: impl FnOnce(&mut D) + Send + 'static,
    ) -> Result<(), KeeperError> {
        self.make_room_for_one()?;
        let left = self.leave(Box::new(|duty| _ = duty.map(errand)));
        if left.is_err() {
            forget_one(&mut self.lock()?);
        }
        left
    }

    /// Ends an activity that was begun. Does not wait, and allocates nothing.
    pub fn end(&'static self, id: D::Id) {
        let Ok(mut shared) = self.lock() else { return };
        forget_one(&mut shared);
        if shared.is_there {
            shared.work.push_back(Work::End(id));
        }
        drop(shared);
        self.wake();
    }

    /// Has the thread run an errand, and waits for its result. Starts the thread if there is none.
    ///
    /// # Errors
    ///
    /// A [`KeeperError`]; [`KeeperError::Busy`] after ten seconds.
    pub fn ask<T: Send + 'static>(
        &'static self,
        errand: impl FnOnce(&mut D) -> T + Send + 'static,
    ) -> Result<T, KeeperError> {
        self.ask_until(LONGEST, false, errand)
    }

    /// Does what [`Keeper::ask`] does, for an errand that only looks: after `longest`, checked once
    /// a second, it gives up. An errand that has not begun is not run then, and the answer of one
    /// that has is dropped: it may be looking at a disk that does not answer.
    ///
    /// # Errors
    ///
    /// See [`Keeper::ask`].
    pub fn ask_for<T: Send + 'static>(
        &'static self,
        longest: Duration,
        errand: impl FnOnce(&mut D) -> T + Send + 'static,
    ) -> Result<T, KeeperError> {
        self.ask_until(longest, true, errand)
    }

    fn ask_until<T: Send + 'static>(
        &'static self,
        longest: Duration,
        leaves_begun: bool,
        errand: impl FnOnce(&mut D) -> T + Send + 'static,
    ) -> Result<T, KeeperError> {
        if !memory::is_there(ASKING) {
            return Err(KeeperError::NoMemory);
        }
        let (answerer, asker) = answer();
        let (process, begun) = (identity::id(), Instant::now());
        // One side takes the errand: the thread that runs it, or its asker, who waits no more.
        let taken = Arc::new(AtomicBool::new(false));
        let by_thread = Arc::clone(&taken);
        self.leave(Box::new(move |duty| {
            if !by_thread.swap(true, Ordering::Relaxed) {
                answerer.give(duty.map(errand));
            }
        }))?;
        loop {
            match asker.wait(PATIENCE.min(longest)) {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(Refusal::NoMemory)) => return Err(KeeperError::NoMemory),
                Ok(Err(Refusal::Table(code))) => {
                    return Err(KeeperError::Table(io::Error::from_raw_os_error(code)));
                }
                Err(NoAnswer::Gone) => return Err(KeeperError::Ended),
                Err(NoAnswer::NotYet) if identity::id() != process => {
                    return Err(KeeperError::Forked);
                }
                Err(NoAnswer::NotYet) => {}
            }
            let tid = self.lock()?.tid;
            if tid != 0 && !threads::is_alive(tid) {
                self.give_up(tid);
                return Err(KeeperError::Killed);
            }
            if begun.elapsed() >= longest && (!taken.swap(true, Ordering::Relaxed) || leaves_begun) {
                return Err(KeeperError::Busy);
            }
        }
    }

    /// Whether the thread exists or is about to. Detects that the thread was killed.
    pub fn is_there(&'static self) -> bool {
        let Ok(shared) = self.lock() else { return true };
        let (is_there, tid) = (shared.is_there, shared.tid);
        drop(shared);
        let is_killed = is_there && tid != 0 && !threads::is_alive(tid);
        if is_killed {
            self.give_up(tid);
        }
        is_there && !is_killed
    }

    /// Makes the thread do a step now.
    pub fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        // SeqCst, as both accesses in `sleep`: one side sees the other's.
        if self.sleeps.load(Ordering::SeqCst) {
            futex::wake(&self.wakes, 1);
        }
    }

    /// Leaves an errand, and starts the thread if there is none.
    fn leave(&'static self, errand: Errand<D>) -> Result<(), KeeperError> {
        if environment::is_off() {
            return Err(KeeperError::Off);
        }
        if !memory::is_there(ASKING) {
            return Err(KeeperError::NoMemory);
        }
        let mut shared = self.lock()?;
        shared.make_room()?;
        shared.work.push_back(Work::Errand(errand));
        let is_there = std::mem::replace(&mut shared.is_there, true);
        if !is_there {
            shared.tid = 0;
        }
        drop(shared);
        if is_there {
            self.wake();
            return Ok(());
        }
        // Not under the lock: its beginning is waited for, and a fork by another thread must not
        // wait for that.
        signals::spawn(self.name, self.stack, || self.run()).map_err(|error| {
            self.give_up(0);
            KeeperError::Thread(error)
        })
    }

    fn make_room_for_one(&'static self) -> Result<(), KeeperError> {
        let mut shared = self.lock()?;
        shared.make_room()?;
        shared.begun += 1;
        Ok(())
    }

    fn lock(&'static self) -> Result<MutexGuard<Shared<D>>, KeeperError> {
        let mut shared = self.shared.lock().map_err(|_| KeeperError::Reentrant)?;
        let process = identity::id();
        if shared.process != process {
            // Answers have locks inside, which the parent's threads may have had.
            std::mem::forget(std::mem::replace(&mut *shared, Shared::new(process)));
        }
        Ok(shared)
    }

    /// Marks the thread `tid`, which is gone or about to end, as gone, and drops its errands: their
    /// callers find that there will be no answer.
    fn give_up(&'static self, tid: u32) {
        drop(self.take_all(tid));
    }

    /// Marks the thread `tid` as gone. Returns its work, for a place without the lock.
    fn take_all(&'static self, tid: u32) -> VecDeque<Work<D>> {
        let Ok(mut shared) = self.lock() else { return VecDeque::new() };
        if shared.tid != tid {
            return VecDeque::new();
        }
        shared.is_there = false;
        std::mem::take(&mut shared.work)
    }

    fn run(&'static self) {
        let until_end = UntilEnd(self);
        {
            // First of all: a filter may end this thread for its first system call, and an asker
            // finds that by the thread's id.
            let Ok(mut shared) = self.lock() else { return };
            shared.tid = identity::tid();
        }
        let mut stderr = match LentStderr::leave_the_rest() {
            Ok(stderr) => stderr,
            Err(error) => {
                let refusal = Refusal::Table(error.raw_os_error().unwrap_or_default());
                for work in self.take_all(identity::tid()) {
                    if let Work::Errand(errand) = work {
                        errand(Err(refusal));
                    }
                }
                return;
            }
        };
        let mut duty = D::default();
        loop {
            let seen = self.wakes.load(Ordering::SeqCst);
            let step = Step::begin();
            let has_memory = memory::is_there(self.step_bytes);
            loop {
                let Ok(mut shared) = self.lock() else { return };
                let Some(work) = shared.work.pop_front() else {
                    if duty.is_empty() {
                        // Under the lock: the next errand starts another thread.
                        shared.is_there = false;
                        drop(shared);
                        std::mem::forget(until_end);
                        return;
                    }
                    break;
                };
                drop(shared);
                match work {
                    Work::End(id) => duty.end(id),
                    Work::Errand(errand) if has_memory => errand(Ok(&mut duty)),
                    Work::Errand(errand) => errand(Err(Refusal::NoMemory)),
                }
            }
            let next = if has_memory {
                duty.step()
            } else {
                duty.step_without_memory();
                PATIENCE
            };
            drop(step);
            if !duty.is_empty() {
                stderr.sleep(next, |at_most| self.sleep(seen, at_most));
            }
        }
    }

    /// Sleeps until a wake comes after `seen`, or for `at_most`. Returns whether all of that time
    /// is over. Only the keeper's own thread calls it.
    fn sleep(&self, seen: u32, at_most: Duration) -> bool {
        let mut is_over = false;
        // SeqCst: see `wake`.
        self.sleeps.store(true, Ordering::SeqCst);
        if self.wakes.load(Ordering::SeqCst) == seen {
            let timeout = at_most.try_into().ok();
            // Interrupted or woken: the thread looks again.
            let waited = futex::wait(&self.wakes, seen, timeout.as_ref());
            is_over = waited == Err(Errno::TIMEDOUT);
        }
        self.sleeps.store(false, Ordering::SeqCst);
        is_over
    }
}

/// One thing less that will end. In a child of a fork there may be none.
fn forget_one<D: Duty>(shared: &mut MutexGuard<Shared<D>>) {
    shared.begun = shared.begun.saturating_sub(1);
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

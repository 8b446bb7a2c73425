//! The keeper of profiles: the thread `dormouse-profile`, which does the [`Duty`], because no
//! thread of the host should.
//!
//! It starts with the first profile and ends with the last. It has a table of descriptors of its
//! own, so the host can neither close nor inherit what it opens, and blocks all signals but the
//! synchronous ones. It sleeps until there is an errand, or the next look at the queue is due.
//!
//! # Locking
//!
//! [`SHARED`], of [`Phase::Profiles`], is held for moments: no system call is made under it but
//! those of the allocator. A fork waits for it. In the child it holds the parent's errands: the
//! first thread that takes the lock there leaves them alone.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use dormouse_sys::descriptors::leave_the_hosts_table;
use dormouse_sys::process::fork::{Mutex, MutexGuard, Phase};
use dormouse_sys::process::{identity, threads};
use dormouse_sys::{memory, signals};
use rustix::thread::futex;

use super::duty::Duty;
use crate::Error;
use crate::profile::ProfileKind;

/// The thread reads lists of `/proc`, and stacks into tables.
const STACK: usize = 256 * 1024;

/// How long an asker waits before it looks whether the keeper lives.
const PATIENCE: Duration = Duration::from_secs(1);

/// The memory that a step may take, beside that of the tables, which ask by themselves.
const STEP: usize = 512 * 1024;

/// Work for the keeper.
type Errand = Box<dyn FnOnce(&mut Duty) + Send>;

/// The state that threads share with the keeper.
#[derive(Default)]
struct Shared {
    /// The process that the rest belongs to.
    process: u64,
    /// Whether the thread is there, or about to be.
    has_keeper: bool,
    /// Its id, once it has begun; 0 before.
    tid: u32,
    /// The reason why the last one ended at once, or left the last errands alone.
    refused: Option<Cow<'static, str>>,
    errands: VecDeque<Errand>,
    /// The profiles that are over. It has room for all that there are, so that the end of one
    /// allocates nothing.
    ended: Vec<(ProfileKind, u64)>,
    /// How many profiles there are, and how many errands that begin one.
    profiles: usize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("has_keeper", &self.has_keeper).finish_non_exhaustive()
    }
}

static SHARED: Mutex<Shared> = Mutex::new(
    Phase::Profiles,
    Shared {
        process: 0,
        has_keeper: false,
        tid: 0,
        refused: None,
        errands: VecDeque::new(),
        ended: Vec::new(),
        profiles: 0,
    },
);

/// Moves with each errand: the keeper sleeps on it.
static ERRANDS: AtomicU32 = AtomicU32::new(0);

fn lock() -> Result<MutexGuard<Shared>, Error> {
    let mut shared = SHARED
        .lock()
        .map_err(|_| Error::Unavailable("called in the middle of itself, or of a fork".into()))?;
    let process = identity::id();
    if shared.process != process {
        let parents = std::mem::take(&mut *shared);
        shared.process = process;
        // The askers' channels have locks inside, which the parent's threads may have had.
        std::mem::forget(parents.errands);
    }
    Ok(shared)
}

/// Begins a profile, by an errand as in [`ask`]. If it does, [`end`] is called later.
pub(super) fn begin(
    errand: impl FnOnce(&mut Duty) -> Result<(), Error> + Send + 'static,
) -> Result<Result<(), Error>, Error> {
    let mut shared = lock()?;
    shared.profiles += 1;
    let room = shared.profiles;
    shared.ended.reserve(room);
    drop(shared);
    let begun = ask(errand);
    if !matches!(begun, Ok(Ok(()))) {
        // In a child of a fork there are none.
        let mut shared = lock()?;
        shared.profiles = shared.profiles.saturating_sub(1);
    }
    begun
}

/// Ends a profile. It does not wait, and allocates nothing.
pub(super) fn end(kind: ProfileKind, number: u64) {
    let Ok(mut shared) = lock() else { return };
    shared.profiles = shared.profiles.saturating_sub(1);
    if shared.has_keeper {
        shared.ended.push((kind, number));
    }
    drop(shared);
    wake();
}

fn wake() {
    ERRANDS.fetch_add(1, Ordering::Relaxed);
    let _ = futex::wake(&ERRANDS, futex::Flags::PRIVATE, 1);
}

/// Has the keeper run an errand, and waits for its answer. Starts one if there is none.
pub(super) fn ask<T: Send + 'static>(
    errand: impl FnOnce(&mut Duty) -> T + Send + 'static,
) -> Result<T, Error> {
    let (tell, told) = mpsc::sync_channel(1);
    let process = identity::id();
    let mut shared = lock()?;
    shared.errands.push_back(Box::new(move |duty| _ = tell.send(errand(duty))));
    let is_there = std::mem::replace(&mut shared.has_keeper, true);
    if !is_there {
        shared.tid = 0;
        shared.refused = None;
    }
    drop(shared);
    if is_there {
        wake();
    } else if let Err(error) = signals::spawn("dormouse-profile", STACK, run) {
        give_up(0);
        return Err(Error::Unavailable(format!("no thread for the sampler: {error}")));
    }
    loop {
        match told.recv_timeout(PATIENCE) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => {
                let why = lock()?.refused.clone();
                let why = why.unwrap_or(Cow::Borrowed("the sampler has ended"));
                return Err(Error::Unavailable(why.into_owned()));
            }
            Err(RecvTimeoutError::Timeout) if identity::id() != process => {
                return Err(Error::Unavailable("the process has forked meanwhile".into()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let tid = lock()?.tid;
        if tid != 0 && !threads::is_alive(tid) {
            give_up(tid);
            return Err(Error::Unavailable("the sampler was killed".into()));
        }
    }
}

/// The thread with this id is not there, or will end: its errands are nobody's.
fn give_up(tid: u32) {
    let Ok(mut shared) = lock() else { return };
    if shared.tid != tid {
        return;
    }
    shared.has_keeper = false;
    shared.ended.clear();
    let errands = std::mem::take(&mut shared.errands);
    drop(shared);
    // Their askers are told by the end of their channels.
    drop(errands);
}

/// Says so if the thread ends by a panic, too.
struct UntilEnd;

impl Drop for UntilEnd {
    fn drop(&mut self) {
        give_up(identity::tid());
    }
}

fn run() {
    let until_end = UntilEnd;
    {
        // First of all: a filter may end this thread for its first system call, and who waits for
        // an answer finds that by the thread's id.
        let Ok(mut shared) = lock() else { return };
        shared.tid = identity::tid();
    }
    let prepared = leave_the_hosts_table()
        .map_err(|error| Error::Unavailable(format!("no table of descriptors for the sampler: {error}")));
    let Ok(mut shared) = lock() else { return };
    shared.refused = prepared.as_ref().err().map(|error| error.to_string().into());
    drop(shared);
    if prepared.is_err() {
        return;
    }
    let mut duty = Duty::default();
    loop {
        let seen = ERRANDS.load(Ordering::Relaxed);
        let has_memory = memory::is_there(STEP);
        let Ok(mut shared) = lock() else { return };
        while let Some((kind, number)) = shared.ended.pop() {
            drop(shared);
            duty.end(kind, number);
            let Ok(again) = lock() else { return };
            shared = again;
        }
        let errands = std::mem::take(&mut shared.errands);
        if errands.is_empty() && duty.is_empty() {
            // Under the lock: the next errand starts another thread.
            shared.has_keeper = false;
            drop(shared);
            std::mem::forget(until_end);
            return;
        }
        shared.refused = (!has_memory).then_some(Cow::Borrowed("there is no memory"));
        drop(shared);
        let is_asked = !errands.is_empty();
        let mut next = PATIENCE;
        if has_memory {
            for errand in errands {
                errand(&mut duty);
            }
            next = duty.step();
        } else {
            // Their askers are told by the end of their channels. Samples wait in their queues.
            drop(errands);
        }
        if !is_asked {
            let timeout = next.try_into().ok();
            // Over, interrupted or woken: it looks again.
            let _ = futex::wait(&ERRANDS, futex::Flags::PRIVATE, seen, timeout.as_ref());
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a thread that ends in the midst")]
mod tests {
    use dormouse_testkit::{eventually, in_child, spin_for};

    use super::*;
    use crate::options::Options;

    fn timers() -> usize {
        let timers = std::fs::read_to_string("/proc/self/timers").unwrap_or_default();
        timers.lines().filter(|line| line.starts_with("ID: ")).count()
    }

    fn start(number: u64) -> Result<Result<(), Error>, Error> {
        begin(move |duty| duty.start(number, &Options { hz: 250, ..Options::default() }))
    }

    #[test]
    fn a_killed_keeper_leaves_no_timer() {
        in_child(|| {
            if !std::path::Path::new("/proc/self/timers").exists() {
                return dormouse_testkit::skip("no /proc/self/timers");
            }
            start(1).unwrap().unwrap();
            let count = timers();
            assert!(count > 0);
            // SAFETY: ends the keeper's thread alone, as a filter would.
            let killed = ask(|_| unsafe { libc::syscall(libc::SYS_exit, 0) });
            assert!(killed.is_err(), "{killed:?}");
            let late = ask(|duty| duty.read(ProfileKind::Cpu, 1)).unwrap();
            assert!(late.is_err(), "{late:?}");
            end(ProfileKind::Cpu, 1);
            start(2).unwrap().unwrap();
            assert_eq!(timers(), count);
            eventually(|| {
                spin_for(Duration::from_millis(10));
                ask(|duty| duty.read(ProfileKind::Cpu, 2)).unwrap().unwrap().coverage.samples > 0
            });
            end(ProfileKind::Cpu, 2);
            eventually(|| timers() == 0);
        });
    }
}

//! The keeper: the thread that arms and disarms, because a handler must not, and no thread of the
//! host should.
//!
//! It starts with the first watch and ends with the last. It has a table of descriptors of its own,
//! so the host can neither close nor inherit those of watches, and has all its own numbers left; a
//! child of a fork has none of them, and keeps no register of its parent's taken. It blocks all
//! signals but the synchronous ones. It sleeps until there is an errand, an alarm of a watch, or
//! the end of a rest or a turn.
//!
//! Threads that arm, close or ask wait for it: its errands are short, but for arming a thousand
//! threads. If it has ended by a fault, or a filter has killed it, its descriptors are closed, all
//! watches are over, and askers are told so. An asker that a signal handler has interrupted, which
//! forked, is told so in the child.
//!
//! # Locking
//!
//! [`SHARED`], of [`Phase::Watches`], is held for moments: no system call is made under it but
//! those of the allocator. It is also the lock of the table of entries (`entry.rs`). A fork waits
//! for it. The child's handler ends all entries, and frees nothing; the first thread that takes the
//! lock in the child drops what was its parent's.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use dormouse_sys::descriptors::LentStderr;
use dormouse_sys::process::fork::{Mutex, MutexGuard, Phase};
use dormouse_sys::process::{identity, threads};
use dormouse_sys::signals;

use super::duty::Duty;
use super::entry;
use super::holders::Holders;
use super::sched;
use super::wake;
use crate::Error;

/// The thread makes system calls, and reads lines of `/proc`.
const STACK: usize = 256 * 1024;

/// How long an asker waits before it looks whether the keeper lives.
const PATIENCE: Duration = Duration::from_secs(1);

/// Work for the keeper.
type Errand = Box<dyn FnOnce(&mut Duty) + Send>;

/// The state that threads share with the keeper.
pub(super) struct Shared {
    /// The forks behind the process that the rest belongs to.
    forks: u32,
    /// Whether the thread is there, or about to be.
    has_keeper: bool,
    /// Its id, once it has begun; 0 before.
    tid: u32,
    /// The reason why the last one got no table.
    refused: Option<i32>,
    errands: VecDeque<Errand>,
    pub(super) holders: Holders,
}

impl Shared {
    const fn new(forks: u32) -> Self {
        Self {
            forks,
            has_keeper: false,
            tid: 0,
            refused: None,
            errands: VecDeque::new(),
            holders: Holders::new(),
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("has_keeper", &self.has_keeper).finish_non_exhaustive()
    }
}

static SHARED: Mutex<Shared> = Mutex::with_child(Phase::Watches, Shared::new(0), |_| entry::end_all());

/// Takes the lock of watches.
pub(super) fn lock() -> Result<MutexGuard<Shared>, Error> {
    let mut shared = SHARED.lock().map_err(|_| Error::Reentrant)?;
    let forks = identity::forks();
    if shared.forks != forks {
        let parents = std::mem::replace(&mut *shared, Shared::new(forks));
        // The askers' channels have locks inside, which the parent's threads may have had.
        std::mem::forget(parents.errands);
    }
    Ok(shared)
}

/// Leaves an errand, and starts the keeper if there is none.
pub(super) fn send(errand: impl FnOnce(&mut Duty) + Send + 'static) -> Result<(), Error> {
    let mut shared = lock()?;
    shared.errands.push_back(Box::new(errand));
    let is_there = std::mem::replace(&mut shared.has_keeper, true);
    if !is_there {
        shared.tid = 0;
        shared.refused = None;
    }
    drop(shared);
    if is_there {
        wake::wake();
        return Ok(());
    }
    // Its beginning is waited for, and a fork by another thread must not wait for that.
    signals::spawn("dormouse-watch", STACK, run).map_err(|error| {
        end(0);
        Error::Keeper(error)
    })
}

/// Has the keeper run an errand, and waits for its answer.
pub(super) fn ask<T: Send + 'static>(
    errand: impl FnOnce(&mut Duty) -> T + Send + 'static,
) -> Result<T, Error> {
    let (tell, told) = mpsc::sync_channel(1);
    let process = identity::id();
    send(move |duty| _ = tell.send(errand(duty)))?;
    let ended = |why| Err(Error::Keeper(io::Error::other(why)));
    loop {
        match told.recv_timeout(PATIENCE) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => {
                let refused = lock()?.refused.map(io::Error::from_raw_os_error);
                return refused.map_or(ended("it has ended"), |error| Err(Error::Keeper(error)));
            }
            Err(RecvTimeoutError::Timeout) if identity::id() != process => return Err(Error::Reentrant),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let tid = lock()?.tid;
        if tid != 0 && !threads::is_alive(tid) {
            end(tid);
            return ended("it was killed");
        }
    }
}

/// The thread with this id is not there, or will end: its errands are nobody's.
fn end(tid: u32) {
    let Ok(mut shared) = lock() else { return };
    if shared.tid != tid {
        return;
    }
    shared.has_keeper = false;
    let errands = std::mem::take(&mut shared.errands);
    drop(shared);
    // Their askers are told by the end of their channels.
    drop(errands);
}

/// Says so if the thread ends by a panic, too.
struct UntilEnd;

impl Drop for UntilEnd {
    fn drop(&mut self) {
        end(identity::tid());
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
    let table = LentStderr::leave_the_rest();
    let Ok(mut shared) = lock() else { return };
    shared.refused = table.as_ref().err().map(|error| error.raw_os_error().unwrap_or(libc::EINVAL));
    drop(shared);
    let Ok(mut stderr) = table else { return };
    let mut duty = Duty::new();
    loop {
        let seen = wake::seen();
        let Ok(mut shared) = lock() else { return };
        let errands = std::mem::take(&mut shared.errands);
        if errands.is_empty() && duty.is_empty() {
            // Under the lock: the next errand starts another thread.
            shared.has_keeper = false;
            drop(shared);
            std::mem::forget(until_end);
            return;
        }
        drop(shared);
        let is_asked = !errands.is_empty();
        for errand in errands {
            errand(&mut duty);
        }
        duty.check_signal();
        let at_most = duty.step();
        for number in duty.take_over() {
            // A watch of a group goes out on its threads before its registers are free.
            let ending = lock().map(|_alone| sched::end(number));
            drop(ending);
            let registers = lock().map_or(0, |mut shared| {
                shared.holders.release(number);
                shared.holders.shared_registers()
            });
            duty.share(registers);
        }
        if !is_asked {
            stderr.sleep(at_most.unwrap_or(Duration::MAX), |at_most| wake::sleep(seen, at_most));
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a look at descriptors, and a thread that ends in the midst")]
mod tests {
    use std::fs;

    use dormouse_testkit::{eventually, fork, in_child};

    use super::*;

    fn keepers() -> usize {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name == "dormouse-watch\n").count()
    }

    #[test]
    fn errands_of_many_threads_are_answered() {
        in_child(|| {
            std::thread::scope(|scope| {
                for thread in 0..8 {
                    scope.spawn(move || {
                        for errand in 0..100 {
                            assert_eq!(ask(move |_| thread + errand).unwrap(), thread + errand);
                            // So that keepers end and begin meanwhile.
                            std::thread::yield_now();
                        }
                    });
                }
            });
            eventually(|| keepers() == 0);
        });
    }

    #[test]
    fn the_keeper_has_stderr_of_the_host_alone() {
        in_child(|| {
            // SAFETY: looks at numbers.
            let is_open = |number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
            assert!(is_open(2));
            // Its own standard streams: the host's standard error, and two that lead nowhere.
            assert_eq!(ask(move |_| (0..64).filter(|&number| is_open(number)).count()).unwrap(), 3);
        });
    }

    #[test]
    fn askers_outlive_a_keeper() {
        in_child(|| {
            std::panic::set_hook(Box::new(|_| {}));
            let failed = ask(|_| -> u32 { panic!() });
            assert!(matches!(failed, Err(Error::Keeper(_))), "{failed:?}");
            // SAFETY: ends the keeper's thread alone, as a filter would.
            let killed = ask(|_| unsafe { libc::syscall(libc::SYS_exit, 0) });
            assert!(matches!(killed, Err(Error::Keeper(_))), "{killed:?}");
            assert_eq!(ask(|_| 1).unwrap(), 1);
        });
    }

    #[test]
    fn a_child_has_a_keeper_of_its_own() {
        in_child(|| {
            let (begin, begun) = mpsc::channel();
            let (end, ended) = mpsc::channel::<()>();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    ask(move |_| {
                        begin.send(()).unwrap();
                        ended.recv().unwrap();
                    })
                });
                begun.recv().unwrap();
                let child = fork(|| {
                    assert_eq!(keepers(), 0);
                    assert_eq!(ask(|_| 1).unwrap(), 1);
                });
                assert!(child.success(), "{child}");
                end.send(()).unwrap();
            });
        });
    }
}

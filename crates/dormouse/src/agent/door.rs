//! A thread with a descriptor table of its own, which makes system calls for other threads.
//!
//! The numbers in the process's table belong to the host: it may close every number that it finds,
//! open others at them, and fork in between. Descriptors of the door are only in its own table
//! ([`dormouse_sys::descriptors`]).
//!
//! The thread runs one errand at a time: only system calls, and no code of the host's.
//!
//! # Invariants
//!
//! 1. An errand lives until the thread has run it: [`Door::ask`] returns only then.
//!
//! # Locking
//!
//! A caller holds `done` until its errand is done; no code of the host's runs meanwhile. A forked
//! child has no such thread and sends no errand to its parent's.
//!
//! # Safety
//!
//! The unsafe code is the errand's pointer (invariant 1).
#![allow(unsafe_code)]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use dormouse_sys::descriptors::leave_the_hosts_table;

/// It makes system calls.
const STACK: usize = 128 * 1024;

/// The thread. It ends when this is dropped, and closes what is open in its table.
#[derive(Debug)]
pub(super) struct Door {
    errands: SyncSender<Errand>,
    /// One message for each errand.
    done: Mutex<Receiver<()>>,
}

#[derive(Debug)]
struct Errand(*mut (dyn FnMut() + Send + 'static));

// SAFETY: what it points to is `Send`, and its asker leaves it alone until it is done (invariant
// 1).
unsafe impl Send for Errand {}

impl Door {
    /// Starts the thread; an error if it gets no table of its own.
    pub(super) fn open() -> io::Result<Self> {
        // With room for the one message that can be under way: a channel without allocates at each.
        let (errands, asked) = sync_channel::<Errand>(1);
        let (tell, done) = sync_channel(1);
        dormouse_sys::signals::spawn("dormouse-door", STACK, move || {
            for errand in asked {
                // SAFETY: its asker waits for the message below, and uses it no sooner (invariant
                // 1).
                let _ = catch_unwind(AssertUnwindSafe(|| unsafe { (*errand.0)() }));
                if tell.send(()).is_err() {
                    return;
                }
            }
        })?;
        let door = Self { errands, done: Mutex::new(done) };
        door.ask(leave_the_hosts_table)?;
        Ok(door)
    }

    /// Has the thread run `errand`, and waits for that.
    pub(super) fn ask<T: Send>(&self, errand: impl FnOnce() -> T + Send) -> T {
        let mut errand = Some(errand);
        let mut answer = None;
        let mut run = || answer = errand.take().map(|errand| errand());
        let run: *mut (dyn FnMut() + Send + '_) = &raw mut run;
        #[expect(clippy::transmute_ptr_to_ptr, reason = "a cast does not change the lifetime")]
        // SAFETY: only the lifetime changes, and `run` returns before this frame does (invariant
        // 1).
        let run: *mut (dyn FnMut() + Send + 'static) = unsafe { std::mem::transmute(run) };
        // One asker at a time.
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if self.errands.send(Errand(run)).is_ok() {
            // An error, too, means that the thread has ended and runs nothing.
            let _ = done.recv();
        }
        drop(done);
        // A panic in an errand goes on where it was asked for.
        answer.expect("an errand at the door panicked")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, RawFd};

    fn is_open(number: RawFd) -> bool {
        // SAFETY: looks at a number.
        unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
    }

    #[test]
    fn the_door_has_nothing_of_the_host_open() {
        let Ok(door) = Door::open() else { return dormouse_testkit::skip("no close_range") };
        let (reader, _writer) = io::pipe().unwrap();
        let number = reader.as_raw_fd();
        assert!(is_open(number));
        assert!(!door.ask(move || is_open(number)));
        // Its own standard streams, which lead nowhere.
        assert_eq!(door.ask(|| (0..64).filter(|&n| is_open(n)).count()), 3);
    }

    #[test]
    fn a_pipe_ends_though_the_door_exists() {
        let (mut reader, writer) = io::pipe().unwrap();
        let Ok(_door) = Door::open() else { return dormouse_testkit::skip("no close_range") };
        drop(writer);
        assert_eq!(io::Read::read(&mut reader, &mut [0]).unwrap(), 0);
    }

    #[test]
    fn errands_of_several_threads_take_turns() {
        let Ok(door) = Door::open() else { return dormouse_testkit::skip("no close_range") };
        let (mut count, door) = (0, &door);
        let shared = std::sync::atomic::AtomicPtr::new(&raw mut count);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        // SAFETY: the door's thread alone reads it.
                        door.ask(|| unsafe { *shared.load(std::sync::atomic::Ordering::Relaxed) += 1 });
                    }
                });
            }
        });
        assert_eq!(count, 4000);
    }

    #[test]
    fn a_panic_in_an_errand_reaches_its_asker() {
        let Ok(door) = Door::open() else { return dormouse_testkit::skip("no close_range") };
        let asked = catch_unwind(AssertUnwindSafe(|| door.ask(|| panic!("a test's"))));
        assert!(asked.is_err());
        assert_eq!(door.ask(|| 7), 7);
    }
}

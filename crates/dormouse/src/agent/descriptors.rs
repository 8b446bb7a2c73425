//! The agent's sockets, which neither the host nor a forked child can take over, and which are
//! never confused with the host's.
//!
//! They are open at the [`Door`], in a descriptor table of its own. Without a door (before Linux
//! 5.9, under a seccomp filter, without a thread) they are in the process's table, and the host may
//! close them and open files of its own at their numbers at any time. Then the agent checks before
//! each use of a number whether it still is the socket that was opened. A socket that is not is
//! lost, and its number is left alone. A change between check and use, within some hundred
//! nanoseconds, goes unnoticed.
//!
//! A forked child that kept the sockets would hold connections open after the agent has closed
//! them, and clients that connect to its parent's socket would wait after the parent has ended. So
//! it closes the sockets that it has inherited.
//!
//! # Locking
//!
//! `OPEN` is held from before a socket of the process's table is opened until it is entered, from
//! before it is taken out until it is closed, and across a fork. So in a child it has every such
//! socket. No thread waits under it: the sockets do not block.
//!
//! # Async-signal-safety
//!
//! A forked child only checks the identities of descriptors and closes them.
//!
//! # Safety
//!
//! The unsafe code is `ppoll`, `getsockopt` into a local structure, and borrowing and closing
//! descriptors that have just been checked to be ours.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use dormouse_sys::process::fork::{self, Phase};
use rustix::fs::fstat;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags};

use super::door::Door;

/// How many sockets the agent has open at once, at most.
pub(super) const MAX_SOCKETS: usize = 36;

/// The lowest number that is not a standard stream's.
const FIRST: RawFd = 3;

/// Where the agent's sockets are open.
#[derive(Debug)]
pub(super) struct Sockets {
    /// `None`: in the process's table.
    door: Option<Door>,
}

/// An open socket.
#[derive(Debug)]
pub(super) struct Socket {
    at: At,
    table: Arc<Sockets>,
}

/// The user and the process at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// 0 if it lives in another process namespace.
    pub(crate) pid: u32,
}

/// A descriptor's number, and the socket that was opened at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At {
    number: RawFd,
    device: u64,
    inode: u64,
}

type Open = [Option<At>; MAX_SOCKETS];

/// The sockets in the process's table.
static OPEN: fork::Mutex<Open> =
    fork::Mutex::with_child(Phase::Descriptors, [None; MAX_SOCKETS], close_in_child);

/// The parent's agent would use them, and its thread is not in this process.
fn close_in_child(open: &mut Open) {
    open.iter_mut().filter_map(Option::take).for_each(At::close);
}

impl At {
    fn of(socket: &OwnedFd) -> Result<Self, Errno> {
        let file = fstat(socket)?;
        Ok(Self { number: socket.as_raw_fd(), device: file.st_dev, inode: file.st_ino })
    }

    /// The socket, if it still is the one that was opened.
    fn find(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: whatever the number is now, it is only asked what it is; if it is closed, the
        // answer is an error.
        let found = unsafe { BorrowedFd::borrow_raw(self.number) };
        let is_it = fstat(found).is_ok_and(|f| (f.st_dev, f.st_ino) == (self.device, self.inode));
        is_it.then_some(found)
    }

    fn close(self) {
        if self.find().is_some() {
            // SAFETY: it is ours, and not used any more.
            unsafe { libc::close(self.number) };
        }
    }
}

impl Sockets {
    /// Opens a door for them, unless this process cannot have one.
    pub(super) fn new() -> Arc<Self> {
        // A filter might end the process for a call that it does not allow.
        let door = if dormouse_sys::perf::is_filtered() { None } else { Door::open().ok() };
        Arc::new(Self { door })
    }

    /// In the process's table.
    #[cfg(test)]
    pub(super) fn shared() -> Arc<Self> {
        Arc::new(Self { door: None })
    }

    /// Runs `calls` where the agent's numbers mean its sockets: system calls, and no code of the
    /// host's.
    pub(super) fn run<T: Send>(&self, calls: impl FnOnce() -> T + Send) -> T {
        match &self.door {
            Some(door) => door.ask(calls),
            None => calls(),
        }
    }

    /// Keeps what `open` opens; it must not wait.
    pub(super) fn keep(
        self: &Arc<Self>,
        open: impl FnOnce() -> Result<OwnedFd, Errno> + Send,
    ) -> Result<Socket, Errno> {
        let at = self.run(|| {
            // A thread in the middle of a fork opens none.
            let mut inherited = match self.door {
                Some(_) => None,
                None => Some(OPEN.lock().map_err(|_| Errno::DEADLK)?),
            };
            let socket = above_the_standard_ones(open()?)?;
            let at = At::of(&socket)?;
            if let Some(open) = &mut inherited {
                *open.iter_mut().find(|entry| entry.is_none()).ok_or(Errno::MFILE)? = Some(at);
            }
            // From here on it is closed by its number.
            let _ = socket.into_raw_fd();
            Ok(at)
        })?;
        Ok(Socket { at, table: Arc::clone(self) })
    }

    /// Waits until a descriptor is ready, or until `timeout` is over. (A number that has become the
    /// host's is only polled.)
    pub(super) fn poll(&self, polled: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<(), Errno> {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let ready = self.run(|| {
            let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: `polled` and `timeout` are there until it returns.
            let ready = unsafe {
                libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout, ptr::null())
            };
            if ready < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
        ready.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

/// The host would take a socket at a number below for its standard output.
fn above_the_standard_ones(socket: OwnedFd) -> Result<OwnedFd, Errno> {
    if socket.as_raw_fd() < FIRST { fcntl_dupfd_cloexec(&socket, FIRST) } else { Ok(socket) }
}

impl Socket {
    /// Where to wait for it.
    pub(super) fn number(&self) -> RawFd {
        self.at.number
    }

    /// The socket, for [`Sockets::run`]: an error if it is no longer ours.
    fn find(&self) -> Result<BorrowedFd<'_>, Errno> {
        match self.table.door {
            // SAFETY: open as long as `self` is; only this code uses the table.
            Some(_) => Ok(unsafe { BorrowedFd::borrow_raw(self.at.number) }),
            None => self.at.find().ok_or(Errno::BADF),
        }
    }

    /// Whether it is still the agent's.
    pub(super) fn is_ours(&self) -> bool {
        self.find().is_ok()
    }

    /// The next connection, and the peer at its other end.
    pub(super) fn accept(&self) -> Result<(Socket, Peer), Errno> {
        let mut peer = Err(Errno::BADF);
        let socket = self.table.keep(|| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let accepted = net::accept_with(self.find()?, flags)?;
            peer = peer_of(accepted.as_fd());
            Ok(accepted)
        })?;
        Ok((socket, peer?))
    }

    /// Reads what has come.
    pub(super) fn receive(&self, into: &mut [u8]) -> Result<usize, Errno> {
        self.table.run(|| net::recv(self.find()?, into, RecvFlags::DONTWAIT).map(|(read, _)| read))
    }

    /// Sends what it takes.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.table.run(|| net::send(self.find()?, bytes, flags))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.table.run(|| {
            if self.table.door.is_some() {
                // SAFETY: open in the door's table, and not used again.
                unsafe { libc::close(self.at.number) };
                return;
            }
            // Nothing is closed in the middle of a fork: the child has it in the list.
            let Ok(mut open) = OPEN.lock() else { return };
            if let Some(entry) = open.iter_mut().find(|entry| **entry == Some(self.at)) {
                *entry = None;
            }
            self.at.close();
        });
    }
}

fn peer_of(socket: BorrowedFd<'_>) -> Result<Peer, Errno> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option writes at most `length` bytes into `credentials`.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    match asked {
        0 => Ok(Peer { uid: credentials.uid, pid: credentials.pid.cast_unsigned() }),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

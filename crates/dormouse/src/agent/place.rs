//! The place of the socket, where other users cannot put one.
//!
//! It is a file in a directory of the user's own, closed to others, below directories that other
//! users cannot change: so a path leads to the same place a moment after the agent has checked it.
//! Where there is no such directory, the socket has an abstract name
//! (`@dormouse-<uid>/<pid>.<number>.sock` in `/proc/net/unix`), to which every user of the machine
//! may connect: the agent refuses other users, as it does everywhere. The number is a different one
//! each time, so that the name cannot be taken beforehand.
//!
//! # Safety
//!
//! `atexit` and `geteuid` have no preconditions; the handler only unlinks a file.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use dormouse_sys::directory::{CLOSED, of_runtime, own_uid, prepare};
use dormouse_sys::process::identity;
use dormouse_sys::{Capability, brief};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::InitError;
use super::descriptors::{Socket, Sockets};

/// The bytes of the directory's list that are read at a time.
const ROOM: usize = 4096;

/// From this age on, a socket without a listener counts as left behind.
const LEFT_BEHIND: Duration = Duration::from_secs(10);

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Where the agent listens.
#[derive(Debug)]
pub(crate) struct Place {
    /// The name as the kernel lists it.
    name: PathBuf,
    /// The file's inode, so that a later process's file is not taken for ours; 0 for an abstract
    /// name.
    inode: AtomicU64,
    /// Each better place, and why it would not do.
    refused: Vec<String>,
}

impl Place {
    /// Makes the directory and the socket.
    pub(super) fn open(sockets: &Arc<Sockets>) -> Result<(Self, Socket), InitError> {
        let mut refused = Vec::new();
        for (directory, origin) in of_runtime() {
            match listen_in(&directory, sockets) {
                Ok((name, inode, listener)) => {
                    let inode = AtomicU64::new(inode);
                    return Ok((Self { name, inode, refused }, listener));
                }
                Err(why) => refused.push(format!("{}{origin}: {why}", directory.display())),
            }
        }
        // Hashed with a number that the standard library draws.
        let number = RandomState::new().hash_one(0);
        let name = format!("dormouse-{}/{}.{number:016x}.sock", own_uid(), std::process::id());
        let path = PathBuf::from(format!("@{name}"));
        let listener = SocketAddrUnix::new_abstract_name(name.as_bytes())
            .and_then(|address| sockets.keep(|| bind(&address, None)));
        match listener {
            Ok(listener) => Ok((Self { name: path, inode: AtomicU64::new(0), refused }, listener)),
            Err(errno) => {
                refused.push(format!("{}: {}", path.display(), io::Error::from(errno)));
                Err(InitError::NoPlace { tried: refused })
            }
        }
    }

    /// The socket's name, as the kernel lists it.
    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// Why the socket is no file.
    pub(super) fn config_error(&self) -> Option<String> {
        let told = || format!("the agent listens on {}: {}", self.name.display(), self.refused.join("; "));
        (!self.is_file()).then(told)
    }

    /// A warning if the socket is in an unusual place.
    pub(crate) fn check(&self) -> Option<Capability> {
        let detail = self.config_error()?;
        let fix =
            "have DORMOUSE_RUNTIME_DIR name a directory that is there, and that this user alone can write to";
        Some(Capability::limited("agent.place", detail).with_fix(fix))
    }

    fn is_file(&self) -> bool {
        self.inode.load(Ordering::Relaxed) != 0
    }

    /// Whether a client that looks for the socket finds it.
    pub(super) fn is_there(&self) -> bool {
        let inode = self.inode.load(Ordering::Relaxed);
        !self.is_file() || fs::symlink_metadata(&self.name).is_ok_and(|m| m.ino() == inode)
    }

    /// Makes a new socket where the file was, unless another socket is there by now.
    pub(super) fn restore(&self, sockets: &Arc<Sockets>) -> Option<Socket> {
        let (_, inode, listener) = listen_in(self.name.parent()?, sockets).ok()?;
        self.inode.store(inode, Ordering::Relaxed);
        Some(listener)
    }

    /// Takes the socket file away, if it is still ours.
    pub(super) fn remove(&self) {
        if self.is_file() && self.is_there() {
            // Nothing to do about a failure: a stale file is swept by the next process.
            let _ = fs::remove_file(&self.name);
        }
    }
}

/// A socket in a directory: its name, the file's inode, the socket.
fn listen_in(directory: &Path, sockets: &Arc<Sockets>) -> Result<(PathBuf, u64, Socket), String> {
    let directory = prepare(directory, CLOSED)?;
    let name = directory.join(format!("{}.sock", std::process::id()));
    let fail = |errno: Errno| format!("cannot listen on {}: {}", name.display(), io::Error::from(errno));
    let address = SocketAddrUnix::new(&name).map_err(fail)?;
    let is_stale = sockets.run(|| {
        sweep(&directory, LEFT_BEHIND);
        is_stale(&name)
    });
    if is_stale {
        // A dead process had our number.
        fs::remove_file(&name).map_err(|error| error.to_string())?;
    }
    let listener = sockets.keep(|| bind(&address, Some(&name))).map_err(fail)?;
    let inode = fs::symlink_metadata(&name).map_err(|error| error.to_string())?.ino();
    Ok((name, inode, listener))
}

/// A listening socket whose file other users cannot use.
fn bind(address: &SocketAddrUnix, file: Option<&Path>) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let own = Mode::RUSR | Mode::WUSR;
    // The file is made with the socket's mode, as far as the host's umask has it. The directory
    // keeps others out in any case.
    let _ = fchmod(&socket, own);
    net::bind(&socket, address)?;
    if let Some(file) = file {
        rustix::fs::chmod(file, own)?;
    }
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Whether there is a socket file without a listener.
fn is_stale(socket: &Path) -> bool {
    // Not waited for: an agent with a full queue of connections is busy, not dead.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let asked = SocketAddrUnix::new(socket).and_then(|address| {
        let own = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        net::connect(&own, &address)
    });
    asked == Err(Errno::CONNREFUSED)
}

/// Removes the sockets of processes that could not clean up. A younger file may be a socket that is
/// bound, and on which its process is about to listen.
fn sweep(directory: &Path, older_than: Duration) {
    let mut names = Vec::new();
    if brief::list(directory, ROOM, |name| names.push(OsStr::from_bytes(name).to_owned())).is_err() {
        return;
    }
    for path in names.into_iter().map(|name| directory.join(name)) {
        let age = || fs::symlink_metadata(&path).ok()?.modified().ok()?.elapsed().ok();
        if path.extension().is_some_and(|e| e == "sock")
            && age().is_some_and(|age| age >= older_than)
            && is_stale(&path)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// The last agent's place, and its process by [`identity::id`]: a child in a PID namespace of its
/// own may have the parent's process id. Not under a lock, which a thread that ends the process,
/// or one that forks beside it, might have for ever; and never freed.
static AT_EXIT: AtomicPtr<(u64, Arc<Place>)> = AtomicPtr::new(ptr::null_mut());

/// Has the socket file removed when this process ends in order. (One that is killed leaves it for
/// [`sweep`].)
pub(super) fn remove_at_exit(place: &Arc<Place>) {
    let kept = Box::leak(Box::new((identity::id(), Arc::clone(place))));
    // Pairs with the load in `remove`.
    if AT_EXIT.swap(kept, Ordering::Release).is_null() {
        // SAFETY: a plain function of this object. A failure leaves the file for the next process
        // to sweep.
        unsafe { libc::atexit(remove) };
    }
}

extern "C" fn remove() {
    // Pairs with the swap in `remove_at_exit`. SAFETY: null, or leaked there.
    let kept = unsafe { AT_EXIT.load(Ordering::Acquire).as_ref() };
    if let Some((process, place)) = kept
        && *process == identity::id()
    {
        place.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert!(prepare(&open, CLOSED).unwrap_err().contains("open to others"));
        let file = base.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(prepare(&file, CLOSED).unwrap_err().contains("no directory"));
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert!(prepare(&link, CLOSED).unwrap_err().contains("no directory"));
        assert!(prepare(&base.path().join("missing/deep"), CLOSED).is_err());
    }

    #[test]
    fn others_can_change_no_directory_above() {
        let base = tempfile::tempdir().unwrap();
        let [above, place] = ["above", "above/between/place"].map(|name| base.path().join(name));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        let prepared = |mode| {
            fs::set_permissions(&above, Permissions::from_mode(mode)).unwrap();
            prepare(&place, CLOSED)
        };
        let why = prepared(0o777).unwrap_err();
        assert!(why.contains("others can change what is in"), "{why}");
        // In one that is sticky others cannot rename what is ours.
        prepared(0o1777).unwrap();
        if std::os::unix::fs::chown(&above, Some(65_533), None).is_err() {
            return dormouse_testkit::skip("this user can give no directory away");
        }
        for mode in [0o755, 0o1777] {
            let why = prepared(mode).unwrap_err();
            assert!(why.contains("of uid 65533"), "{why}");
        }
    }

    #[test]
    fn a_dead_process_with_our_number_gives_way() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().canonicalize().unwrap().join("dormouse");
        prepare(&directory, CLOSED).unwrap();
        let own = directory.join(format!("{}.sock", std::process::id()));
        // As process 1 of a container leaves it to the process 1 of the container's next run.
        drop(UnixListener::bind(&own).unwrap());
        let sockets = Sockets::new();
        let (name, inode, _listener) = listen_in(&directory, &sockets).unwrap();
        assert_eq!((name, inode), (own.clone(), fs::metadata(&own).unwrap().ino()));
        UnixStream::connect(&own).unwrap();
        // One that listens lives, in another process namespace: it keeps its place.
        let refused = listen_in(&directory, &sockets).map(drop).unwrap_err();
        assert!(refused.contains("cannot listen on") && own.exists(), "{refused}");
        UnixStream::connect(&own).unwrap();
    }

    #[test]
    fn stale_sockets_in_the_directory_are_swept() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("dormouse");
        prepare(&directory, CLOSED).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        let stale = directory.join("1.sock");
        drop(UnixListener::bind(&stale).unwrap());
        let live = directory.join("2.sock");
        let _listener = UnixListener::bind(&live).unwrap();
        sweep(&directory, LEFT_BEHIND);
        assert!(stale.exists(), "it may be about to listen");
        sweep(&directory, Duration::ZERO);
        assert!(!stale.exists());
        assert!(live.exists());
    }
}

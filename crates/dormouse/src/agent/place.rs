//! Where the socket lies, and that nobody else can put one there.
//!
//! # Safety
//!
//! `atexit` and `geteuid` have no preconditions; the handler only unlinks a file.
#![allow(unsafe_code)]

use std::env;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::InitError;
use super::descriptors::Kept;

/// The age from which on a socket that nobody listens on was left behind.
const LEFT_BEHIND: Duration = Duration::from_secs(10);

/// The agent's socket file.
#[derive(Debug)]
pub(crate) struct Place {
    socket: PathBuf,
    /// Of the file, so that a later process's is not taken for ours.
    inode: u64,
}

impl Place {
    /// Makes the directory and the socket.
    pub(super) fn open() -> Result<(Self, Kept<UnixListener>), InitError> {
        let mut tried = Vec::new();
        for directory in candidates() {
            match prepare(&directory) {
                Ok(()) => return Self::listen(&directory),
                Err(why) => tried.push(format!("{}: {why}", directory.display())),
            }
        }
        Err(InitError::NoDirectory { tried })
    }

    fn listen(directory: &Path) -> Result<(Self, Kept<UnixListener>), InitError> {
        sweep(directory, LEFT_BEHIND);
        let socket = directory.join(format!("{}.sock", std::process::id()));
        let fail = |source| InitError::Socket { path: socket.clone(), source };
        if is_stale(&socket) {
            // A dead process had our number.
            fs::remove_file(&socket).map_err(fail)?;
        }
        let listener = Kept::new(|| UnixListener::bind(&socket)).map_err(fail)?;
        // The directory keeps others out until this is done.
        fs::set_permissions(&socket, Permissions::from_mode(0o600)).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let inode = fs::symlink_metadata(&socket).map_err(fail)?.ino();
        Ok((Self { socket, inode }, listener))
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Takes the socket file away, if it is still ours.
    pub(super) fn remove(&self) {
        if fs::symlink_metadata(&self.socket).is_ok_and(|m| m.ino() == self.inode) {
            // Nothing to do about a failure: a stale file is swept by the next process.
            let _ = fs::remove_file(&self.socket);
        }
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Directories for the socket, the best first. One that was asked for by name is not replaced by another.
fn candidates() -> Vec<PathBuf> {
    let set = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    // Absolute, because that is how the command finds it in the kernel's list of sockets.
    if let Some(directory) = set("DORMOUSE_RUNTIME_DIR") {
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        return vec![directory.join("dormouse")];
    }
    let temporary = PathBuf::from(format!("/tmp/dormouse-{}", own_uid()));
    set("XDG_RUNTIME_DIR")
        .filter(|d| d.is_absolute())
        .map(|d| d.join("dormouse"))
        .into_iter()
        .chain([temporary])
        .collect()
}

/// Makes the directory, or sees that an existing one is the user's own and closed to others.
fn prepare(directory: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.to_string()),
    }
    // Not followed: in /tmp anybody could have put a link there.
    let found = fs::symlink_metadata(directory).map_err(|e| e.to_string())?;
    if !found.is_dir() {
        return Err("exists and is no directory".into());
    }
    if found.uid() != own_uid() {
        return Err(format!("belongs to uid {}, not to {}", found.uid(), own_uid()));
    }
    if found.mode() & 0o077 != 0 {
        return Err(format!("is open to others (mode {:o}, should be 700)", found.mode() & 0o777));
    }
    // A socket is made by whoever may write here; asked before the bind, so that another candidate has its
    // turn.
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).map_err(|e| e.to_string())
}

/// Whether a socket file is there that nobody listens on.
fn is_stale(socket: &Path) -> bool {
    // Not waited for: an agent with a full queue of connections is busy, not dead.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let asked = SocketAddrUnix::new(socket).and_then(|address| {
        let own = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        net::connect(&own, &address)
    });
    asked == Err(Errno::CONNREFUSED)
}

/// Takes away what processes have left behind that could not clean up. A younger file may be a socket that is
/// bound and not yet listened on.
fn sweep(directory: &Path, older_than: Duration) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        let age = || fs::symlink_metadata(&path).ok()?.modified().ok()?.elapsed().ok();
        if path.extension().is_some_and(|e| e == "sock")
            && age().is_some_and(|age| age >= older_than)
            && is_stale(&path)
        {
            let _ = fs::remove_file(path);
        }
    }
}

static AT_EXIT: Mutex<Option<(u32, Arc<Place>)>> = Mutex::new(None);

/// Has the socket file removed when this process ends in order. (One that is killed leaves it for [`sweep`].)
pub(super) fn remove_at_exit(place: &Arc<Place>) {
    let mut at_exit = AT_EXIT.lock().unwrap_or_else(PoisonError::into_inner);
    let first = at_exit.is_none();
    *at_exit = Some((std::process::id(), Arc::clone(place)));
    if first {
        // SAFETY: a plain function of this object. A failure leaves the file for the next process to sweep.
        unsafe { libc::atexit(remove) };
    }
}

extern "C" fn remove() {
    // Not waited for: a thread that ends the process inside `init` holds the lock.
    if let Ok(at_exit) = AT_EXIT.try_lock()
        && let Some((pid, place)) = &*at_exit
        && *pid == std::process::id()
    {
        place.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_open_to_others_or_no_directory_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert!(prepare(&open).unwrap_err().contains("open to others"));
        let file = base.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(prepare(&file).unwrap_err().contains("no directory"));
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert!(prepare(&link).unwrap_err().contains("no directory"));
        assert!(prepare(&base.path().join("missing/deep")).is_err());
    }

    #[test]
    fn a_new_directory_is_its_users_alone_and_stale_sockets_in_it_are_swept() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("dormouse");
        prepare(&directory).unwrap();
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

//! Connecting to a socket that another process bound, perhaps in another mount namespace.
//!
//! An abstract socket has its name in a network namespace, and can be reached only from inside of
//! it.
//!
//! The path is resolved inside the owner's root (`/proc/PID/root`) by `openat2` with
//! `RESOLVE_IN_ROOT`, so that an absolute link such as `/var/run` stays inside; if that root may
//! not be entered, in ours. The connection then goes through the opened directory's
//! `/proc/self/fd/N`, which also avoids the limit of 108 bytes on socket paths.
//!
//! # Safety
//!
//! The unsafe code is one `getsockopt`, for [`peer`].

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat, openat2};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::sockets::kernels_name;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Connects to the socket `path` of the process whose root directory is `root`.
///
/// Fails with `WouldBlock` if the listener's queue is full.
pub(crate) fn connect_to(root: &Path, path: &Path) -> io::Result<UnixStream> {
    if let Some(name) = kernels_name(path) {
        return connect_at(&SocketAddrUnix::new_abstract_name(name.as_bytes())?);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let directory = match directory_in(root, parent) {
        Ok(directory) => directory,
        // Not ours to enter, or not there: the process may still share our view of the file system.
        Err(_) => open(parent, DIRECTORY, Mode::empty())?,
    };
    let through: PathBuf = format!("/proc/self/fd/{}", directory.as_raw_fd()).into();
    connect_at(&SocketAddrUnix::new(through.join(name))?)
}

fn connect_at(address: &SocketAddrUnix) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, address)?;
    Ok(UnixStream::from(socket))
}

fn directory_in(root: &Path, path: &Path) -> rustix::io::Result<OwnedFd> {
    let root = open(root, DIRECTORY, Mode::empty())?;
    match openat2(&root, path, DIRECTORY, Mode::empty(), ResolveFlags::IN_ROOT) {
        // Before Linux 5.6, or filtered away: links are followed as they are.
        Err(Errno::NOSYS | Errno::PERM) => {
            let inside = path.strip_prefix("/").unwrap_or(path);
            openat(&root, inside, DIRECTORY, Mode::empty())
        }
        result => result,
    }
}

/// The process and the user that called `listen` on the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// `None` where it is not visible in our pid namespace.
    pub(crate) pid: Option<u32>,
    pub(crate) uid: u32,
}

/// The process and the user at the other end.
#[expect(
    unsafe_code,
    reason = "a typed process id cannot hold the 0 that the kernel writes for an invisible one"
)]
pub(crate) fn peer(stream: &UnixStream) -> io::Result<Peer> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` and `length` live across the call, and `length` is the size of `peer`, so the
    // kernel writes only into it; all bit patterns of a `ucred` are valid.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { pid: u32::try_from(peer.pid).ok().filter(|&pid| pid != 0), uid: peer.uid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_path_is_resolved_in_the_owners_root() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("real").join("x".repeat(90)).join("dormouse");
        std::fs::create_dir_all(&deep).unwrap();
        // An absolute link: seen from our root it leads nowhere.
        std::os::unix::fs::symlink(format!("/real/{}", "x".repeat(90)), root.path().join("run")).unwrap();
        let short = tempfile::tempdir().unwrap();
        let bound = short.path().join("1.sock");
        let _listener = UnixListener::bind(&bound).unwrap();
        std::fs::rename(&bound, deep.join("1.sock")).unwrap();

        let stream = connect_to(root.path(), Path::new("/run/dormouse/1.sock")).unwrap();
        assert_eq!(peer(&stream).unwrap().pid, Some(std::process::id()));
    }

    #[test]
    fn a_closed_root_falls_back_to_ours() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        connect_to(Path::new("/nonexistent"), &path).unwrap();
    }

    #[test]
    fn a_file_that_a_dead_process_left_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.sock");
        drop(UnixListener::bind(&path).unwrap());
        let error = connect_to(Path::new("/"), &path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_full_listener_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.sock");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _held = connect_to(Path::new("/"), &path).unwrap();
        let error = connect_to(Path::new("/"), &path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}

//! Opening files without side effects and without waiting, even if a name leads to something else.
//!
//! A name is chosen by others: it may lead to a pipe by now, to a terminal, or to a watchdog that
//! counts from the moment it is opened. So a name is first only looked up (`O_PATH` opens nothing),
//! then the *inode* that was found is examined, and it is opened through its descriptor if it is a
//! regular file that is not empty. The kernel's own files, whose reads may wait or have an effect,
//! have size 0.
//!
//! # References
//!
//! `open(2)` on `O_PATH`, `openat2(2)` on `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::elf::build_id;

/// Bytes of a build id: a shorter one is no sum of anything, a longer one none that linkers make.
const ID: std::ops::RangeInclusive<usize> = 8..=64;

/// The file that `path` leads to, through links too.
pub(super) fn regular(path: &Path) -> io::Result<File> {
    reopen(&look_up(path)?)
}

/// The file `name` below `root`, and nothing that a link or a `..` in it would lead to.
pub(super) fn regular_below(root: &Path, name: &Path) -> io::Result<File> {
    let name = name.strip_prefix("/").unwrap_or(name);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = openat2(look_up(root)?, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    reopen(&found.into())
}

/// The name of a file with debug information below a directory for it.
pub(super) fn name_by_id(id: &[u8]) -> Option<String> {
    let (first, rest) = id.split_first().filter(|_| ID.contains(&id.len()))?;
    Some(format!(".build-id/{first:02x}/{}.debug", hex(rest)))
}

/// The debug information of the object with that build id, from directories that are not the
/// object's to choose. A file of another id, which may stand there under that name, is passed over.
pub(super) fn by_id(debug_dirs: &[PathBuf], id: &[u8]) -> Option<File> {
    let names = [name_by_id(id)?, format!("{}/debuginfo", hex(id))];
    let paths = debug_dirs.iter().flat_map(|dir| names.iter().map(move |name| dir.join(name)));
    paths.filter_map(|path| regular(&path).ok()).find(|file| build_id(file).as_deref() == Some(id))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A path that leads to an open file, and to no other as long as it is open. The first thread may
/// have ended, so the path goes by the calling one.
pub(super) fn path_of(file: &File) -> PathBuf {
    format!("/proc/thread-self/fd/{}", file.as_raw_fd()).into()
}

/// Whether `name` is that of a file, and leads nowhere else.
pub(super) fn is_bare(name: &OsStr) -> bool {
    !matches!(name.as_bytes(), b"" | b"." | b"..") && !name.as_bytes().contains(&b'/')
}

fn look_up(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)
}

fn reopen(found: &File) -> io::Result<File> {
    let data = found.metadata()?;
    if !data.is_file() || data.len() == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file, or an empty one"));
    }
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path_of(found))
}

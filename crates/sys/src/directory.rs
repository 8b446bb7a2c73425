//! Directories that belong to the user alone: nobody else can put a file into one, or another
//! directory in its place.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::environment;

/// Others have no rights to the directory.
pub const CLOSED: u32 = 0o077;

/// Others may read the directory, but change nothing.
pub const READABLE: u32 = 0o022;

/// The number by which the kernel shows users who have none in the user namespace of the process.
pub const OVERFLOW: u32 = 65534;

/// Whether the kernel may show others by the number of this user: everybody who has none in the
/// process's user namespace. It may where that cannot be read. The namespace is looked up once, and
/// `init` does that before the process may shut itself in.
pub fn shares_its_number(uid: u32) -> bool {
    static IS_READ: AtomicBool = AtomicBool::new(false);
    static HAS_ALL: AtomicBool = AtomicBool::new(false);
    if !IS_READ.load(Ordering::Acquire) {
        let has_all = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
        let has_all = fs::read_to_string("/proc/self/uid_map").is_ok_and(has_all);
        HAS_ALL.store(has_all, Ordering::Relaxed);
        IS_READ.store(true, Ordering::Release);
    }
    uid == OVERFLOW && !HAS_ALL.load(Ordering::Relaxed)
}

/// The effective user id of this process.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Directories for files that live as long as a process, the best first, each with the variable
/// that names it. A directory that the user has set is not replaced by another.
pub fn of_runtime() -> Vec<(PathBuf, &'static str)> {
    let variables = environment::variables();
    // Absolute, because that is how the command finds a socket in the kernel's list.
    if let Some(directory) = variables.runtime_dir.as_ref().map(PathBuf::from) {
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        return vec![(directory.join("dormouse"), " (by DORMOUSE_RUNTIME_DIR)")];
    }
    let temporary = PathBuf::from(format!("/tmp/dormouse-{}", own_uid()));
    let given = variables.xdg_runtime_dir.as_ref().map(Path::new).filter(|d| d.is_absolute());
    given
        .map(|d| (d.join("dormouse"), " (by XDG_RUNTIME_DIR)"))
        .into_iter()
        .chain([(temporary, "")])
        .collect()
}

/// Creates the directory, or checks that an existing one belongs to the user, and that others have
/// none of the rights in `closed`. Returns the path without links: nobody else can change where it
/// leads.
pub fn prepare(directory: &Path, closed: u32) -> Result<PathBuf, String> {
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err("is no directory of that kind".into());
    };
    let parent = fs::canonicalize(parent).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{} does not exist", parent.display()),
        _ => format!("{}: {error}", parent.display()),
    })?;
    if parent.as_os_str().as_bytes().contains(&b'\n') {
        // One line is one socket in the kernel's list.
        return Err("has a line break in its name".into());
    }
    parent.ancestors().try_for_each(is_beyond_others)?;
    let directory = parent.join(name);
    match DirBuilder::new().mode(0o700).create(&directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.to_string()),
    }
    // Not followed: in /tmp anybody could have put a link there.
    let found = fs::symlink_metadata(&directory).map_err(|e| e.to_string())?;
    if !found.is_dir() {
        return Err("exists and is no directory".into());
    }
    if found.uid() != own_uid() {
        return Err(format!("belongs to uid {}, not to {}", found.uid(), own_uid()));
    }
    if shares_its_number(own_uid()) {
        return Err(format!("may belong to anybody outside of the user namespace: all have uid {OVERFLOW}"));
    }
    if found.mode() & closed != 0 {
        return Err(format!("is open to others (mode {:o}, should be 700)", found.mode() & 0o777));
    }
    // Asked before the bind, so that another candidate has its turn.
    rustix::fs::access(&directory, rustix::fs::Access::WRITE_OK).map_err(|e| e.to_string())?;
    Ok(directory)
}

/// Refuses a directory in which another user can rename files. (The owner of the root directory has
/// everything.)
fn is_beyond_others(directory: &Path) -> Result<(), String> {
    let look = |path: &Path| fs::symlink_metadata(path).map_err(|e| format!("{}: {e}", path.display()));
    let (found, root) = (look(directory)?, look(Path::new("/"))?);
    let is_known = [0, own_uid(), root.uid()].contains(&found.uid());
    let is_sticky = found.mode() & 0o1000 != 0;
    if is_known && (is_sticky || found.mode() & 0o022 == 0) {
        return Ok(());
    }
    let (path, uid, mode) = (directory.display(), found.uid(), found.mode() & 0o777);
    Err(format!("others can change what is in {path} (of uid {uid}, mode {mode:o})"))
}

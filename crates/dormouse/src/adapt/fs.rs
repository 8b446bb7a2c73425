//! `tokio::fs` in the current group: functions of a path, by `spawn_blocking` and `std::fs`.
//!
//! `tokio::fs` hands its work to tokio's own threads, in no group. Names and signatures are the
//! same as there. There is no `File` and no `read_dir`, which keep work in flight between two
//! calls: run std's in [`spawn_blocking`](crate::tokio::spawn_blocking), or give tokio's a name by
//! [`group_blocking`](crate::tokio::group_blocking).
//!
//! ```
//! use dormouse::Group;
//! use dormouse::tokio::fs;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! let length = Group::new("GET /file").instrument(async {
//!     fs::read("/proc/self/status").await.map(|bytes| bytes.len())
//! });
//! assert!(runtime.block_on(length)? > 0);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fs::{Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use ::tokio::task::spawn_blocking;

use super::inherit::inherit_fn_within;
use super::pool_queue::queued;

/// A panic of std's is an error, as in tokio.
async fn run<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(inherit_fn_within(queued(f))).await.map_err(io::Error::other)?
}

macro_rules! of_a_path {
    ($($name:ident -> $result:ty;)*) => {$(
        #[doc = concat!("[`std::fs::", stringify!($name), "`] on a thread for blocking work.")]
        ///
        /// # Errors
        ///
        /// The errors of std's function.
        pub async fn $name(path: impl AsRef<Path>) -> io::Result<$result> {
            let path = path.as_ref().to_owned();
            run(move || std::fs::$name(path)).await
        }
    )*};
}

macro_rules! of_two_paths {
    ($($name:ident -> $result:ty;)*) => {$(
        #[doc = concat!("[`std::fs::", stringify!($name), "`] on a thread for blocking work.")]
        ///
        /// # Errors
        ///
        /// The errors of std's function.
        pub async fn $name(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<$result> {
            let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
            run(move || std::fs::$name(from, to)).await
        }
    )*};
}

of_a_path! {
    canonicalize -> PathBuf;
    create_dir -> ();
    create_dir_all -> ();
    metadata -> Metadata;
    read -> Vec<u8>;
    read_link -> PathBuf;
    read_to_string -> String;
    remove_dir -> ();
    remove_dir_all -> ();
    remove_file -> ();
    symlink_metadata -> Metadata;
}

of_two_paths! {
    copy -> u64;
    hard_link -> ();
    rename -> ();
}

/// [`std::fs::exists`] on a thread for blocking work.
///
/// ```
/// use dormouse::tokio::fs;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// assert!(fs::try_exists("/proc/self").await?);
/// # std::io::Result::Ok(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// The errors of std's function.
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    let path = path.as_ref().to_owned();
    run(move || path.try_exists()).await
}

/// [`std::fs::set_permissions`] on a thread for blocking work.
///
/// ```
/// use dormouse::tokio::fs;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("tea");
/// # fs::write(&path, "").await?;
/// let mut permissions = fs::metadata(&path).await?.permissions();
/// permissions.set_readonly(true);
/// fs::set_permissions(&path, permissions).await?;
/// # std::io::Result::Ok(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// The errors of std's function.
pub async fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    run(move || std::fs::set_permissions(path, permissions)).await
}

/// [`std::fs::write`] on a thread for blocking work. The contents are copied.
///
/// ```
/// use dormouse::tokio::fs;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("tea");
/// fs::write(&path, "two cups").await?;
/// assert_eq!(fs::read(&path).await?, b"two cups");
/// # std::io::Result::Ok(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// The errors of std's function.
pub async fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let (path, contents) = (path.as_ref().to_owned(), contents.as_ref().to_owned());
    run(move || std::fs::write(path, contents)).await
}

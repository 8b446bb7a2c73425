//! Files that are open for a moment, in a table of descriptors that may be the host's.
//!
//! The host may close any number of its table at any time, also while a file of dormouse's is open
//! there, and open a file of its own at that number. std takes for granted that nobody does: a
//! `ReadDir` panics when its number is no longer open, and in debug builds each `File` then ends
//! the process. A [`BriefFile`] does neither. It closes its number only if that still is the file
//! that was opened. A change between this check and the close, within some hundred nanoseconds,
//! goes unnoticed.
//!
//! Reads have an offset. So they take nothing from a pipe or a socket that the host has opened at
//! the number, and leave its files where they are; what they return is not the wanted file's then,
//! or an error.
//!
//! # Safety
//!
//! The unsafe code borrows and closes a descriptor by its number, and is `getdents64` into a
//! buffer.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd as _, RawFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::io::{Errno, pread, retry_on_intr};

/// The first buffer for a file: those of threads fit.
const ROOM: usize = 4096;
/// A file that is as long is none of the kernel's: the host may have opened an endless one.
const MOST: usize = 16 << 20;

/// A file that is open for reading, for a moment.
#[derive(Debug)]
pub struct BriefFile {
    number: RawFd,
    device: u64,
    inode: u64,
}

impl BriefFile {
    /// Opens a file or a directory.
    ///
    /// # Errors
    ///
    /// An error of `openat` or `fstat`.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        // `openat`, which filters allow; rustix's `open` is another call.
        let number = openat(CWD, path.as_ref(), flags, Mode::empty())?.into_raw_fd();
        match fstat(borrow(number)) {
            Ok(seen) => Ok(Self { number, device: seen.st_dev, inode: seen.st_ino }),
            Err(error) => {
                close_refused(number, error);
                Err(error.into())
            }
        }
    }

    /// Reads from `offset` on; returns how much. 0: the file ends there.
    ///
    /// # Errors
    ///
    /// An error of `pread64`.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(retry_on_intr(|| pread(borrow(self.number), &mut *into, offset))?)
    }

    /// Reads the whole file.
    fn read_whole(&self) -> io::Result<Vec<u8>> {
        let (mut bytes, mut filled) = (Vec::new(), 0);
        loop {
            if filled == MOST {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if filled == bytes.len() {
                lengthen(&mut bytes, ROOM.max(2 * filled).min(MOST))?;
            }
            match self.read_at(&mut bytes[filled..], filled as u64)? {
                0 => break,
                length => filled += length,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

impl Drop for BriefFile {
    fn drop(&mut self) {
        match fstat(borrow(self.number)) {
            Ok(seen) if (seen.st_dev, seen.st_ino) == (self.device, self.inode) => close(self.number),
            Ok(_) => {}
            Err(error) => close_refused(self.number, error),
        }
    }
}

/// Closes a number that was opened a moment ago, after `fstat` of it failed: it is still open,
/// unless the error says that it is not.
fn close_refused(number: RawFd, error: Errno) {
    if error != Errno::BADF {
        close(number);
    }
}

fn close(number: RawFd) {
    // SAFETY: it was opened here, and is not used again.
    unsafe { libc::close(number) };
}

fn borrow(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: for one call, which only reads; if the number is closed by now, it is an error.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Reads a whole file.
///
/// # Errors
///
/// Those of [`BriefFile`]; `OutOfMemory` if there is no memory for the file; `InvalidData` if it is
/// as long as no file of the kernel's.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    BriefFile::open(path)?.read_whole()
}

/// Reads a whole file of text.
///
/// # Errors
///
/// Those of [`read`]; `InvalidData` if it is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Calls `take` with the name of each entry of a directory, `.` and `..` included. `room` bytes are
/// filled at a time. Returns whether one call of the kernel gave all entries.
///
/// # Errors
///
/// Those of [`BriefFile`], and of `getdents64`; `OutOfMemory` if there is no memory for `room`.
pub fn list(directory: impl AsRef<Path>, room: usize, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
    let directory = BriefFile::open(directory)?;
    let mut buffer = Vec::new();
    lengthen(&mut buffer, room)?;
    let mut calls = 0;
    loop {
        // SAFETY: the kernel writes into `buffer`, as far as it is long.
        let filled = unsafe {
            libc::syscall(libc::SYS_getdents64, directory.number, buffer.as_mut_ptr(), buffer.len())
        };
        match usize::try_from(filled) {
            Ok(0) => break,
            Ok(filled) => take_entries(&buffer[..filled], &mut take),
            Err(_) => return Err(io::Error::last_os_error()),
        }
        calls += 1;
    }
    Ok(calls <= 1)
}

fn lengthen(bytes: &mut Vec<u8>, to: usize) -> io::Result<()> {
    bytes.try_reserve_exact(to - bytes.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.resize(to, 0);
    Ok(())
}

/// `struct linux_dirent64`: number, offset, length, type, name.
fn take_entries(mut entries: &[u8], take: &mut impl FnMut(&[u8])) {
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    while let Some(length) = entries.get(LENGTH..LENGTH + 2) {
        let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
        let Some(entry) = entries.get(..length).filter(|entry| entry.len() > NAME) else { return };
        take(entry[NAME..].split(|&byte| byte == 0).next().unwrap_or_default());
        entries = &entries[length..];
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn files_of_any_length_are_read_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tea");
        for length in [0, 1, ROOM - 1, ROOM, ROOM + 1, 5 * ROOM] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            fs::write(&path, &bytes).unwrap();
            assert!(read(&path).unwrap() == bytes, "{length}");
        }
        assert_eq!(read(directory.path().join("no tea")).unwrap_err().kind(), io::ErrorKind::NotFound);
        // A file of the kernel's, which has no length.
        assert_eq!(read("/proc/self/cmdline").unwrap(), fs::read("/proc/self/cmdline").unwrap());
    }

    #[test]
    fn lists_have_all_names_in_any_room() {
        let directory = tempfile::tempdir().unwrap();
        let mut names: Vec<String> = (0..100).map(|n| format!("{n}.sock")).collect();
        for name in &names {
            fs::write(directory.path().join(name), "").unwrap();
        }
        names.extend([".".to_owned(), "..".to_owned()]);
        names.sort();
        for (room, at_once) in [(256, false), (1 << 16, true)] {
            let mut listed = Vec::new();
            let is_whole = list(directory.path(), room, |name| {
                listed.push(String::from_utf8(name.to_vec()).unwrap());
            });
            assert_eq!(is_whole.unwrap(), at_once, "{room}");
            listed.sort();
            assert_eq!(listed, names, "{room}");
        }
    }

    #[test]
    fn a_host_may_take_the_number() {
        dormouse_testkit::in_child(|| {
            let path = tempfile::NamedTempFile::new().unwrap();
            fs::write(path.path(), "the host's").unwrap();
            // The number is closed.
            let closed = BriefFile::open("/proc/self/status").unwrap();
            // SAFETY: nobody else uses it; that is the point.
            unsafe { libc::close(closed.number) };
            assert!(closed.read_at(&mut [0; 8], 0).is_err());
            drop(closed);
            // It is a file of the host's.
            let taken = BriefFile::open("/proc/self/status").unwrap();
            let own = fs::File::open(path.path()).unwrap();
            // SAFETY: as above; from here on it is the host's.
            let hosts = unsafe { libc::dup2(own.as_raw_fd(), taken.number) };
            assert_eq!(hosts, taken.number);
            drop(taken);
            let seen = fstat(borrow(hosts)).expect("it stays open");
            assert_eq!(seen.st_ino, fstat(&own).unwrap().st_ino);
        });
    }
    #[test]
    fn refused_checks_leave_no_file_open() {
        dormouse_testkit::in_child(|| {
            let count = || fs::read_dir("/proc/self/fd").unwrap().count();
            let before = count();
            let kept = BriefFile::open("/proc/self/status").unwrap();
            dormouse_testkit::Filter::refuse(&[libc::SYS_fstat]).install();
            for _ in 0..10 {
                let refused = read("/proc/self/status").unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
            }
            drop(kept);
            assert_eq!(count(), before);
        });
    }

    #[test]
    fn an_endless_file_ends_the_reading() {
        dormouse_testkit::in_child(|| {
            let endless = fs::File::open("/dev/zero").unwrap();
            let taken = BriefFile::open("/proc/self/status").unwrap();
            // SAFETY: nobody else uses the number; that is the point.
            unsafe { libc::dup2(endless.as_raw_fd(), taken.number) };
            assert_eq!(taken.read_whole().unwrap_err().kind(), io::ErrorKind::InvalidData);
        });
    }
}

//! The directory of a recorder's files, and the disk space that they may take.
//!
//! A file is written under a name that ends in `.part`, and renamed when it is complete, so that no
//! reader ever finds half a file. If the process is killed meanwhile, the part is left, and removed
//! when a later file is written.
//!
//! # Invariants
//!
//! 1. The directory belongs to the user, and other users cannot put files into it
//!    ([`crate::directory`]). It is opened once for each file, and everything happens below that
//!    descriptor, without following links.
//! 2. A file is ours if its name, its owner and its first bytes match; a part of ours may be empty.
//!    No other file is ever removed.
//! 3. The bytes of our files, including those that are being written, do not exceed the budget: the
//!    oldest is removed first. (If two processes write at once, neither sees the other's file
//!    grow.) A file that is larger than half of the budget is not written, so that there is always
//!    room for more than one. It has cost older files by then, so records and tasks, which take
//!    most of a file, end before: at three eighths of the budget.
//! 4. A part that may belong to another process is counted, and never removed: one that was changed
//!    in the last ten minutes, by the wall clock.

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dormouse_sys::directory::{READABLE, own_uid, prepare};
use dormouse_sys::environment;
use dormouse_sys::sync::OnceBox;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, renameat, unlinkat};

use dormouse_protocol::{FILE_MAGIC, is_file};

/// The default disk space for files.
pub(crate) const BUDGET: u64 = 64 * 1024 * 1024;

/// The endings of files, and of those that are being written.
const ENDING: &str = ".dormouse";
const PART: &str = ".dormouse.part";

/// From this age on a part is taken to be left behind: writing a file takes some seconds.
const LEFT_BEHIND: Duration = Duration::from_secs(600);

/// The most entries of the directory that are read.
const ENTRIES: usize = 64 * 1024;

/// The settings of the directory and its room, and the fault in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    pub(crate) directory: PathBuf,
    pub(crate) budget: u64,
    pub(crate) config_error: Option<String>,
}

impl StoreSettings {
    /// The settings of this process, as they were when first used: it may change its directory.
    pub(crate) fn own() -> &'static Self {
        static OWN: OnceBox<StoreSettings> = OnceBox::new();
        OWN.get_or_init(|| Box::new(Self::read()))
    }

    fn read() -> Self {
        let variables = environment::variables();
        let directory = variables.record_dir.as_ref().map(PathBuf::from);
        let directory = directory.map(|named| std::path::absolute(&named).unwrap_or(named));
        let directory = directory.unwrap_or_else(|| format!("/tmp/dormouse-{}", own_uid()).into());
        let disk = variables.record_disk.as_ref().map(|text| text.to_string_lossy().into_owned());
        let budget = disk.as_deref().map_or(Some(BUDGET), environment::bytes);
        let config_error = budget.is_none().then(|| {
            let text = disk.unwrap_or_default();
            format!("DORMOUSE_RECORD_DISK is {text:?}, and 64MiB is used: write a whole number and KiB, MiB or GiB")
        });
        Self { directory, budget: budget.unwrap_or(BUDGET), config_error }
    }
}

/// The directory, open.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    directory: OwnedFd,
    budget: u64,
}

/// A file of ours.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct OwnFile {
    changed: (i64, i64),
    name: CString,
    bytes: u64,
    /// Whether somebody may be writing it.
    is_part: bool,
}

impl Store {
    /// Opens the directory, and makes it if it is not there.
    pub(crate) fn open(settings: &StoreSettings) -> Result<Self, String> {
        let path = &settings.directory;
        let fail = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let path = prepare(path, READABLE).map_err(|why| fail(&why))?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory =
            openat(CWD, &path, flags, Mode::empty()).map_err(|errno| fail(&io::Error::from(errno)))?;
        Ok(Self { path, directory, budget: settings.budget })
    }

    /// The bytes that our files take.
    pub(crate) fn used(&self) -> io::Result<u64> {
        Ok(self.files()?.iter().map(|file| file.bytes).sum())
    }

    /// The bytes from which on a file takes no more records and tasks.
    pub(crate) fn nearly_full(&self) -> u64 {
        self.budget / 8 * 3
    }

    /// Begins a file.
    pub(crate) fn begin(self: Rc<Self>, name: &str) -> io::Result<PartFile> {
        let all = self.files()?;
        let taken = all.iter().map(|file| file.bytes).sum();
        let others: VecDeque<OwnFile> = all.into_iter().filter(|file| !file.is_part).collect();
        let (part, whole) = (format!("{name}{PART}"), format!("{name}{ENDING}"));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::WRONLY;
        let file = openat(&self.directory, &*part, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(PartFile {
            store: self,
            file: File::from(file),
            part,
            whole: Some(whole),
            others,
            taken,
            written: 0,
        })
    }

    /// Whether a file can be written, renamed and removed here.
    pub(crate) fn check(self: Rc<Self>, name: &str) -> io::Result<()> {
        let part = Rc::clone(&self).begin(name)?;
        renameat(&self.directory, &*part.part, &self.directory, &*part.part)?;
        Ok(())
    }

    /// Our files, the oldest first, without the parts that were left behind.
    fn files(&self) -> io::Result<Vec<OwnFile>> {
        let mut files = Vec::new();
        let mut dir = Dir::read_from(&self.directory)?;
        dir.rewind();
        for entry in dir.by_ref().take(ENTRIES) {
            let entry = entry?;
            let name = entry.file_name();
            let bytes = name.to_bytes();
            let is_part = bytes.ends_with(PART.as_bytes());
            let is_likely = is_part || bytes.ends_with(ENDING.as_bytes());
            if !is_likely || !matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown) {
                continue;
            }
            let Some(file) = self.own(name, is_part) else { continue };
            let changed = UNIX_EPOCH.checked_add(Duration::from_secs(file.changed.0.max(0).cast_unsigned()));
            let age = changed.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default();
            if is_part && age >= LEFT_BEHIND {
                let _ = unlinkat(&self.directory, name, AtFlags::empty());
                continue;
            }
            files.push(file);
        }
        files.sort();
        Ok(files)
    }

    /// The file of that name, if it is ours.
    fn own(&self, name: &std::ffi::CStr, is_part: bool) -> Option<OwnFile> {
        // Not waited for, should it be a pipe.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::RDONLY;
        let file = File::from(openat(&self.directory, name, flags, Mode::empty()).ok()?);
        let data = file.metadata().ok()?;
        // A part may have died before its first bytes.
        let is_ours = || {
            let mut magic = [0; FILE_MAGIC];
            is_part && data.len() == 0 || (&file).read_exact(&mut magic).is_ok() && is_file(&magic)
        };
        (data.is_file() && data.uid() == own_uid() && is_ours()).then(|| OwnFile {
            changed: (data.mtime(), data.mtime_nsec()),
            name: name.to_owned(),
            bytes: data.len(),
            is_part,
        })
    }
}

/// A file that is being written. Dropped before its end, it is gone.
#[derive(Debug)]
pub(crate) struct PartFile {
    store: Rc<Store>,
    file: File,
    part: String,
    /// `None`: it has its place.
    whole: Option<String>,
    others: VecDeque<OwnFile>,
    /// The bytes that the others take.
    taken: u64,
    written: u64,
}

impl PartFile {
    /// Whether the rest of the file needs what is left of its half of the budget.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.written > self.store.nearly_full()
    }

    /// Puts the file into its place; the path.
    pub(crate) fn finish(mut self) -> io::Result<PathBuf> {
        let Some(whole) = self.whole.take() else { return Err(io::ErrorKind::NotFound.into()) };
        let renamed = renameat(&self.store.directory, &*self.part, &self.store.directory, &*whole);
        if let Err(errno) = renamed {
            self.whole = Some(whole);
            return Err(errno.into());
        }
        Ok(self.store.path.join(whole))
    }

    /// Makes room for `more` bytes.
    fn make_room(&mut self, more: u64) -> io::Result<()> {
        let wanted = self.written + more;
        if wanted > self.store.budget / 2 {
            let budget = self.store.budget;
            let why = format!(
                "it is larger than half of the limit for all files ({budget} bytes, by DORMOUSE_RECORD_DISK)"
            );
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        while self.taken + wanted > self.store.budget {
            let Some(oldest) = self.others.pop_front() else {
                let why = "others are writing files, too, and there is no room (DORMOUSE_RECORD_DISK)";
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
            };
            // Another process may have been quicker.
            let _ = unlinkat(&self.store.directory, &*oldest.name, AtFlags::empty());
            self.taken = self.taken.saturating_sub(oldest.bytes);
        }
        Ok(())
    }
}

impl Write for PartFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.make_room(bytes.len() as u64)?;
        let written = self.file.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if self.whole.is_some() {
            let _ = unlinkat(self.store.directory.as_fd(), &*self.part, AtFlags::empty());
        }
    }
}

/// A name for a file that is begun at that time: program, process, and the time.
pub(crate) fn file_name(program: &str, at: SystemTime) -> String {
    let program = Path::new(program).file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let letters = program.chars().take(32);
    let program: String =
        letters.map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, ns) = (since.as_secs(), since.subsec_nanos());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let pid = std::process::id();
    format!("{program}-{pid}-{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{ns:09}Z")
}

/// Year, month and day of the day with that number since 1970, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Eras of 400 years have equally many days; years begin in March, so that leap days are last.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::{FileHead, FileWriter};

    use super::*;

    fn store(root: &tempfile::TempDir) -> Rc<Store> {
        let directory = root.path().join("files");
        Rc::new(Store::open(&StoreSettings { directory, budget: 1000, config_error: None }).unwrap())
    }

    #[test]
    fn a_file_takes_half_of_the_room() {
        let root = tempfile::tempdir().unwrap();
        let store = store(&root);
        let all = || std::fs::read_dir(&store.path).unwrap().count();
        let first = FileWriter::new(Rc::clone(&store).begin("first").unwrap(), &FileHead::default());
        let first = first.unwrap().finish().unwrap().finish().unwrap();
        let own = std::fs::metadata(&first).unwrap().len();
        assert!((1..500).contains(&own), "{own}");
        let mut large = Rc::clone(&store).begin("large").unwrap();
        large.write_all(&[0; 375]).unwrap();
        assert!(!large.is_nearly_full());
        large.write_all(&[0; 125]).unwrap();
        assert!(large.is_nearly_full() && first.exists(), "there is room for both");
        let why = large.write_all(&[0]).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::QuotaExceeded, "{why}");
        drop(large);
        assert_eq!(all(), 1, "no part is left");
    }

    #[test]
    fn parts_of_others_are_not_removed() {
        let root = tempfile::tempdir().unwrap();
        let store = store(&root);
        let ours = FileWriter::new(Vec::new(), &FileHead::default()).unwrap().finish().unwrap();
        let part = |name: &str| store.path.join(format!("{name}{PART}"));
        let contents = [("ours", &ours[..]), ("empty", b""), ("others", b"words of somebody's")];
        for (name, bytes) in contents {
            std::fs::write(part(name), bytes).unwrap();
            let old = SystemTime::now() - 2 * LEFT_BEHIND;
            File::options().write(true).open(part(name)).unwrap().set_modified(old).unwrap();
        }
        assert_eq!(store.used().unwrap(), 0);
        assert_eq!(contents.map(|(name, _)| part(name).exists()), [false, false, true]);
    }
}

//! Runs a program, and has the kernel record its page faults and those of all programs that it
//! starts, with the mappings as they change, into a file.
//!
//! The file is written as the records come, and gets its name at the end: it is whole or not there.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dormouse_sys::perf::Error;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::{Builder, TempPath};

use super::feed::Feed;
use super::story::{Counts, Story};
use super::trace::{FaultWriteError, FaultWriter, is_trace};

/// How often the buffers are read. A fault takes half a microsecond or more and 48 bytes: what
/// comes in that time fits.
const TICK: Duration = Duration::from_millis(20);

/// The result of a recording.
#[derive(Debug)]
pub struct Recorded {
    /// How the program ended.
    pub status: ExitStatus,
    /// The contents of the file.
    pub counts: Counts,
    /// Whether faults that the kernel takes on a process's behalf are in it.
    pub kernel_faults: bool,
}

/// The reason why nothing is recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The kernel does not record.
    #[error("cannot record page faults: {0}")]
    Kernel(#[from] Error),
    /// The program cannot be run.
    #[error("cannot run {program}: {source}")]
    Program {
        /// Its name.
        program: String,
        /// The reason.
        source: io::Error,
    },
    /// Another file is there.
    #[error("{} is no trace of page faults: it is not overwritten", path.display())]
    Another {
        /// Where the trace was to be.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    File {
        /// Where the trace was to be.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The kernel's records make no trace.
    #[error(transparent)]
    Trace(FaultWriteError),
}

/// Runs `command` to its end, and records its first `most` page faults into a new trace at `path`.
/// `stop` asks the program to end. An older trace at `path` is replaced, nothing else is.
///
/// # Errors
///
/// Where the kernel does not record, the program cannot be run, or the file cannot be written; then
/// there is no file.
pub fn record(
    command: &mut Command,
    path: &Path,
    most: u64,
    stop: &AtomicBool,
) -> Result<Recorded, RecordError> {
    // First: where nothing can be written, nothing is run.
    let mut file = TraceFile::create(path)?;
    let mut feed = Feed::of_children()?;
    let mut story = Story::up_to(most);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(source) => return Err(RecordError::Program { program, source }),
    };
    let mut room = true;
    let status = loop {
        let ended = child.try_wait();
        if room {
            feed.pass(|what| story.tell(what));
            room = file.put(&mut story)? && !story.is_full();
        }
        match ended {
            Ok(Some(status)) => break status,
            Ok(None) => std::thread::sleep(TICK),
            Err(source) => return Err(RecordError::Program { program, source }),
        }
        if stop.swap(false, Ordering::Relaxed) {
            // It is not waited for yet, so its number is its own.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        }
    };
    if room {
        feed.finish(|what| story.tell(what));
        file.put(&mut story)?;
    }
    file.finish()?;
    Ok(Recorded { status, counts: story.counts, kernel_faults: !feed.user_only })
}

/// A trace being written beside the place where it will be.
#[derive(Debug)]
struct TraceFile {
    path: PathBuf,
    beside: TempPath,
    writer: FaultWriter<BufWriter<File>>,
}

impl TraceFile {
    fn create(path: &Path) -> Result<Self, RecordError> {
        let fails = |source| RecordError::File { path: path.to_owned(), source };
        let is_another = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(fails(error)),
            Ok(there) if !there.is_file() => true,
            Ok(there) => there.len() > 0 && !File::open(path).and_then(is_trace).map_err(fails)?,
        };
        if is_another {
            return Err(RecordError::Another { path: path.to_owned() });
        }
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Written as a plain file: errors of a `NamedTempFile` name the file beside, which is ours.
        let file = Builder::new()
            .prefix(".dormouse-record-")
            .make_in(folder, |beside| File::options().write(true).create_new(true).open(beside))
            .map_err(fails)?;
        let (file, beside) = file.into_parts();
        Ok(Self { path: path.to_owned(), beside, writer: FaultWriter::new(BufWriter::new(file)) })
    }

    /// Adds the operations that `story` has; whether there is room for more.
    fn put(&mut self, story: &mut Story) -> Result<bool, RecordError> {
        for op in story.take() {
            match self.writer.put(&op) {
                Ok(()) => {}
                Err(FaultWriteError::Full) => return Ok(false),
                Err(FaultWriteError::Io(source)) => {
                    return Err(RecordError::File { path: self.path.clone(), source });
                }
                Err(error) => return Err(RecordError::Trace(error)),
            }
        }
        Ok(true)
    }

    /// Puts the whole trace in its place.
    fn finish(self) -> Result<(), RecordError> {
        let Self { path, beside, writer } = self;
        let written =
            writer.finish().and_then(|buffer| buffer.into_inner().map_err(io::IntoInnerError::into_error));
        let placed = written.and_then(|_| beside.persist(&path).map_err(|error| error.error));
        placed.map_err(|source| RecordError::File { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::{FaultOp, read};
    use super::*;

    fn message<T: std::fmt::Debug>(result: Result<T, RecordError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_trace_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.faults.gz");
        drop(TraceFile::create(&path).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        for ops in [&[FaultOp::Process { parent: None }][..], &[]] {
            let mut file = TraceFile::create(&path).unwrap();
            for op in ops {
                file.writer.put(op).unwrap();
            }
            file.finish().unwrap();
            assert_eq!(read(File::open(&path).unwrap()).unwrap(), ops, "over the one before");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn no_other_file_is_ever_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        fs::write(&path, "of somebody else").unwrap();
        for place in [&path, directory.path(), Path::new("/dev/null")] {
            assert!(message(TraceFile::create(place)).contains("no trace"));
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "of somebody else");
        fs::write(&path, "").unwrap();
        TraceFile::create(&path).unwrap().finish().unwrap();
    }

    #[test]
    fn an_unwritable_place_is_named() {
        for place in ["/proc/self/x", "/nowhere/x"] {
            let said = message(TraceFile::create(Path::new(place)));
            assert!(said.contains(place) && !said.contains(".dormouse-record"), "{said}");
        }
    }
}

//! The file that a trace goes to: whole or not at all, and never in the place of something else.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use dormouse_maps::faults::{self, FaultOp as Op, FaultWriteError as WriteError, FaultWriter as Writer};
use tempfile::TempPath;

use crate::exit::{Failure, Outcome};
use crate::new_file::cannot_write;

/// A trace being written beside the place where it will be.
#[derive(Debug)]
pub(super) struct TraceFile {
    path: PathBuf,
    beside: TempPath,
    writer: Writer<BufWriter<File>>,
}

impl TraceFile {
    /// Begins one that will be at `path`.
    pub(super) fn create(path: &Path) -> Outcome<Self> {
        refuse_another(path)?;
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Opened here, and written as a plain file, because the errors of a `NamedTempFile` name
        // our own file, which means nothing to the person.
        let (file, beside) = tempfile::Builder::new()
            .prefix(".dormouse-record-")
            .make_in(directory, |beside| File::options().write(true).create_new(true).open(beside))
            .map_err(|error| cannot_write(path, &error))?
            .into_parts();
        Ok(Self { path: path.to_owned(), beside, writer: Writer::new(BufWriter::new(file)) })
    }

    /// Adds `op`; whether there is room for more.
    pub(super) fn put(&mut self, op: &Op) -> Outcome<bool> {
        match self.writer.put(op) {
            Ok(()) => Ok(true),
            Err(WriteError::Full) => Ok(false),
            Err(WriteError::Io(error)) => Err(cannot_write(&self.path, &error)),
            Err(error) => Err(Failure::failed(format!("cannot record: {error}"))),
        }
    }

    /// Puts the whole trace in its place.
    pub(super) fn finish(self) -> Outcome<()> {
        let fails = |error: &io::Error| cannot_write(&self.path, error);
        let buffer = self.writer.finish().map_err(|error| fails(&error))?;
        drop(buffer.into_inner().map_err(|error| fails(error.error()))?);
        // Much may have happened to the place since.
        refuse_another(&self.path)?;
        self.beside.persist(&self.path).map(drop).map_err(|error| fails(&error.error))
    }
}

/// Refuses a place where something is that is no trace. An empty file is nothing.
fn refuse_another(path: &Path) -> Outcome<()> {
    let is_another = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
        Ok(there) if !there.is_file() => Ok(true),
        Ok(there) if there.len() == 0 => Ok(false),
        Ok(_) => File::open(path).and_then(faults::is_trace).map(|is_trace| !is_trace),
    };
    match is_another {
        Ok(false) => Ok(()),
        Ok(true) => {
            let message = format!("{} is no trace of page faults: it is not overwritten", path.display());
            Err(Failure::failed(message).hint("name another file with -o"))
        }
        Err(error) => Err(cannot_write(path, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T: std::fmt::Debug>(result: Outcome<T>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_trace_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.faults.gz");
        let mut abandoned = TraceFile::create(&path).unwrap();
        abandoned.put(&Op::Process { parent: None }).unwrap();
        drop(abandoned);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        for ops in [&[Op::Process { parent: None }][..], &[]] {
            let mut file = TraceFile::create(&path).unwrap();
            for op in ops {
                assert!(file.put(op).unwrap());
            }
            file.finish().unwrap();
            assert_eq!(faults::read(File::open(&path).unwrap()).unwrap(), ops, "over the one before");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn no_other_file_is_ever_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let file = TraceFile::create(&path).unwrap();
        fs::write(&path, "of somebody else").unwrap();
        assert!(message(file.finish()).contains("no trace"));
        assert!(message(TraceFile::create(&path)).contains("no trace"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "of somebody else");
        for place in [directory.path(), Path::new("/dev/null")] {
            assert!(message(TraceFile::create(place)).contains("no trace"));
        }
        fs::write(&path, "").unwrap();
        TraceFile::create(&path).unwrap().finish().unwrap();
    }

    #[test]
    fn an_unwritable_place_is_named() {
        for place in ["/proc/self/x", "/nowhere/x"] {
            let said = message(TraceFile::create(Path::new(place)));
            assert!(said.contains(place) && said.contains("-o"), "{said}");
            assert!(!said.contains(".dormouse-record"), "our own file is nobody's concern: {said}");
        }
    }
}

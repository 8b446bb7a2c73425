//! A file for `-o` that appears complete or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::exit::{Failure, Outcome};

/// A file beside the place where it will be.
#[derive(Debug)]
pub(crate) struct NewFile {
    path: PathBuf,
    file: NamedTempFile,
}

impl NewFile {
    /// Begins one that will be at `path`: a place that cannot be written is refused before the work
    /// begins.
    pub(crate) fn create(path: &Path) -> Outcome<Self> {
        refuse_another(path)?;
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Opened here, and below written as a plain file, because the errors of a `NamedTempFile`
        // name our own file, which means nothing to the person.
        let file = tempfile::Builder::new()
            .prefix(".dormouse-")
            .make_in(directory, |beside| File::options().write(true).create_new(true).open(beside))
            .map_err(|error| cannot_write(path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Has `write` write the whole file, and puts it in its place.
    pub(crate) fn finish(
        mut self,
        write: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
    ) -> Outcome<()> {
        let path = &self.path;
        let mut buffer = BufWriter::new(self.file.as_file_mut());
        write(&mut buffer).and_then(|()| buffer.flush()).map_err(|error| cannot_write(path, &error))?;
        drop(buffer);
        // Much may have happened to the place since.
        refuse_another(path)?;
        self.file.persist(path).map(drop).map_err(|error| cannot_write(path, &error.error))
    }
}

/// Refuses a place where something is that is no file.
fn refuse_another(path: &Path) -> Outcome<()> {
    match fs::metadata(path) {
        Ok(there) if !there.is_file() => {
            let message = format!("{} is there and no file: it is not replaced", path.display());
            Err(Failure::failed(message).hint("name another file with -o"))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot_write(path, &error)),
        _ => Ok(()),
    }
}

/// The failure to write the file of `-o`.
pub(crate) fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot write {}, which -o asks for: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.html");
        drop(NewFile::create(&path).unwrap());
        let failed = NewFile::create(&path).unwrap().finish(|file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.unwrap_err().to_string().contains("x.html"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        for content in ["one", "another"] {
            NewFile::create(&path).unwrap().finish(|file| file.write_all(content.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn places_for_no_file_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let taken = directory.path().join("d.html");
        fs::create_dir(&taken).unwrap();
        for (path, part) in [
            (&*taken, "no file"),
            (Path::new("/proc/self/x.html"), "-o asks for: No such file"),
            (Path::new("/nowhere/x.html"), "-o asks for: No such file"),
        ] {
            let said = NewFile::create(path).unwrap_err().to_string();
            assert!(said.contains(part) && said.contains(path.to_str().unwrap()), "{said}");
            assert!(!said.contains(".dormouse-"), "our own file is nobody's concern: {said}");
        }
    }
}

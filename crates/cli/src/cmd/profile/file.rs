//! The file that a profile goes to: in the form that its ending says, whole or not at all.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tempfile::NamedTempFile;

use crate::exit::{Failure, Outcome};

/// The form of a profile in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Pprof,
    Folded,
    Html,
    Firefox,
    /// As [`Form::Firefox`], not compressed.
    FirefoxPlain,
}

const ENDINGS: [(&str, Form); 7] = [
    (".pb.gz", Form::Pprof),
    (".pprof", Form::Pprof),
    (".folded", Form::Folded),
    (".txt", Form::Folded),
    (".html", Form::Html),
    (".json.gz", Form::Firefox),
    (".json", Form::FirefoxPlain),
];

/// The form, for messages.
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pprof => "pprof",
            Self::Folded => "folded stacks",
            Self::Html => "a flame graph",
            Self::Firefox | Self::FirefoxPlain => "for the Firefox Profiler",
        })
    }
}

/// A path whose ending says a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    path: PathBuf,
    pub(super) form: Form,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(path: &str) -> Result<Place, String> {
        let found = ENDINGS.iter().find(|(ending, _)| path.ends_with(ending));
        let (_, form) = found.ok_or(
            "its ending says no form: .pb.gz or .pprof for pprof, .html for a flame graph, \
             .folded or .txt for folded stacks, .json.gz or .json for the Firefox Profiler",
        )?;
        Ok(Place { path: path.into(), form: *form })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

/// A file beside the place where it will be.
#[derive(Debug)]
pub(super) struct NewFile<'a> {
    place: &'a Place,
    file: NamedTempFile,
}

impl<'a> NewFile<'a> {
    /// Begins one that will be at `place`: what cannot be written is refused before anything is
    /// sampled.
    pub(super) fn create(place: &'a Place) -> Outcome<Self> {
        let path = &place.path;
        refuse_another(path)?;
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Opened here, and below written as a plain file, because the errors of a `NamedTempFile`
        // name our own file, which means nothing to the person.
        let file = tempfile::Builder::new()
            .prefix(".dormouse-profile-")
            .make_in(directory, |beside| File::options().write(true).create_new(true).open(beside))
            .map_err(|error| cannot_write(path, &error))?;
        Ok(Self { place, file })
    }

    /// Puts the whole file in its place.
    pub(super) fn finish(mut self, content: &[u8]) -> Outcome<()> {
        let path = &self.place.path;
        self.file.as_file_mut().write_all(content).map_err(|error| cannot_write(path, &error))?;
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

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot write {}, which -o asks for: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &Path) -> Place {
        path.to_str().unwrap().parse().unwrap()
    }

    #[test]
    fn the_ending_says_the_form() {
        for (path, form) in [
            ("a.pb.gz", Form::Pprof),
            ("/tmp/a.pprof", Form::Pprof),
            ("a.b.folded", Form::Folded),
            ("a.txt", Form::Folded),
            ("a.html", Form::Html),
            ("a.json.gz", Form::Firefox),
            ("a.json", Form::FirefoxPlain),
        ] {
            assert_eq!(path.parse::<Place>().unwrap().form, form, "{path}");
        }
        for path in ["a", "a.gz", "a.svg", "folded", ""] {
            let said = path.parse::<Place>().unwrap_err();
            assert!(said.contains(".pb.gz") && said.contains(".html"), "{said}");
        }
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(&directory.path().join("x.html"));
        drop(NewFile::create(&place).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        for content in ["one", "another"] {
            NewFile::create(&place).unwrap().finish(content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&place.path).unwrap(), content);
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
            let said = NewFile::create(&place(path)).unwrap_err().to_string();
            assert!(said.contains(part) && said.contains(path.to_str().unwrap()), "{said}");
            assert!(!said.contains(".dormouse-profile"), "our own file is nobody's concern: {said}");
        }
    }
}

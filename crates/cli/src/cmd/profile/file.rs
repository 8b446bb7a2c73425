//! The file of a profile, in the form that its extension selects.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::exit::Outcome;
use crate::new_file::NewFile;

/// The form of a profile in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Pprof,
    Folded,
    Html,
    Firefox,
    /// [`Form::Firefox`] without compression.
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

/// A path whose extension selects a form.
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
            "its extension selects no form: .pb.gz or .pprof for pprof, .html for a flame graph, \
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

impl Place {
    /// Begins the file: a place that cannot be written is refused before anything is sampled.
    pub(super) fn create(&self) -> Outcome<NewFile> {
        NewFile::create(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}

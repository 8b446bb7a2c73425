//! The numbers of fields that the writer and the reader of `profile.proto` share, and coverage as a
//! comment.

use std::fmt::Write as _;

use dormouse_protocol::profile::ProfileCoverage;

/// Fields of `Profile`.
pub(crate) mod profile {
    pub(crate) const SAMPLE_TYPE: u32 = 1;
    pub(crate) const SAMPLE: u32 = 2;
    pub(crate) const MAPPING: u32 = 3;
    pub(crate) const LOCATION: u32 = 4;
    pub(crate) const FUNCTION: u32 = 5;
    pub(crate) const STRING: u32 = 6;
    pub(crate) const TIME: u32 = 9;
    pub(crate) const DURATION: u32 = 10;
    pub(crate) const PERIOD_TYPE: u32 = 11;
    pub(crate) const PERIOD: u32 = 12;
    pub(crate) const COMMENT: u32 = 13;
    pub(crate) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// Fields of `ValueType`.
pub(crate) mod value_type {
    pub(crate) const TYPE: u32 = 1;
    pub(crate) const UNIT: u32 = 2;
}

/// Fields of `Sample`.
pub(crate) mod sample {
    pub(crate) const LOCATION: u32 = 1;
    pub(crate) const VALUE: u32 = 2;
    pub(crate) const LABEL: u32 = 3;
}

/// Fields of `Label`.
pub(crate) mod label {
    pub(crate) const KEY: u32 = 1;
    pub(crate) const TEXT: u32 = 2;
    pub(crate) const NUMBER: u32 = 3;
}

/// Fields of `Mapping`.
pub(crate) mod mapping {
    pub(crate) const ID: u32 = 1;
    pub(crate) const START: u32 = 2;
    pub(crate) const LIMIT: u32 = 3;
    pub(crate) const OFFSET: u32 = 4;
    pub(crate) const FILE: u32 = 5;
    pub(crate) const BUILD_ID: u32 = 6;
    /// And three more: files, lines, inlined functions.
    pub(crate) const HAS_FUNCTIONS: u32 = 7;
}

/// Fields of `Location`.
pub(crate) mod location {
    pub(crate) const ID: u32 = 1;
    pub(crate) const MAPPING: u32 = 2;
    pub(crate) const ADDRESS: u32 = 3;
    pub(crate) const LINE: u32 = 4;
}

/// Fields of `Line`.
pub(crate) mod line {
    pub(crate) const FUNCTION: u32 = 1;
    pub(crate) const LINE: u32 = 2;
}

/// Fields of `Function`.
pub(crate) mod function {
    pub(crate) const ID: u32 = 1;
    pub(crate) const NAME: u32 = 2;
    pub(crate) const FILE: u32 = 4;
}

const COVERAGE: &str = "coverage:";

/// Coverage as lines: its figures, `coverage: total=2000 in_groups=1900 …`, and each note.
pub(crate) fn comments(coverage: &ProfileCoverage) -> Vec<String> {
    let mut line = COVERAGE.to_owned();
    for (name, value) in figures(&mut coverage.clone()) {
        if *value != 0 {
            let _ = write!(line, " {name}={value}");
        }
    }
    let figures = Some(line).filter(|it| it != COVERAGE);
    figures.into_iter().chain(coverage.notes.iter().cloned()).collect()
}

/// Reads a comment, which is coverage or a note.
#[cfg(feature = "files")]
pub(crate) fn read_comment(comment: String, coverage: &mut ProfileCoverage) {
    let Some(line) = comment.strip_prefix(COVERAGE) else {
        coverage.notes.push(comment);
        return;
    };
    let mut figures = figures(coverage);
    for word in line.split_whitespace() {
        let Some((name, value)) = word.split_once('=') else { continue };
        if let Some((_, figure)) = figures.iter_mut().find(|(it, _)| *it == name) {
            **figure = value.parse().unwrap_or_default();
        }
    }
}

fn figures(coverage: &mut ProfileCoverage) -> [(&'static str, &mut u64); 14] {
    [
        ("total", &mut coverage.total),
        ("in_groups", &mut coverage.in_groups),
        ("threads", &mut coverage.threads),
        ("armed", &mut coverage.armed),
        ("refused", &mut coverage.refused),
        ("blocking", &mut coverage.blocking),
        ("samples", &mut coverage.samples),
        ("dropped", &mut coverage.dropped),
        ("overruns", &mut coverage.overruns),
        ("ended", &mut coverage.ended),
        ("cut", &mut coverage.cut),
        ("in_library", &mut coverage.in_library),
        ("uncopied", &mut coverage.uncopied),
        ("merged", &mut coverage.merged),
    ]
}

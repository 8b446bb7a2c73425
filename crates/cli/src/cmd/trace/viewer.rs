//! The viewers for timelines.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

use dormouse_timeline::{Timeline, encode};

/// A viewer of timelines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Viewer {
    Firefox,
    Perfetto,
}

const ENDINGS: [(&str, Viewer); 3] =
    [(".json.gz", Viewer::Firefox), (".pftrace", Viewer::Perfetto), (".perfetto-trace", Viewer::Perfetto)];

impl Viewer {
    /// Writes a timeline in its form.
    pub(super) fn write(self, timeline: Timeline, out: impl Write) -> io::Result<()> {
        match self {
            Self::Firefox => encode::firefox(timeline, out),
            Self::Perfetto => encode::perfetto(&timeline, out),
        }
    }

    /// Where a file is opened.
    pub(super) fn address(self) -> &'static str {
        match self {
            Self::Firefox => "https://profiler.firefox.com",
            Self::Perfetto => "https://ui.perfetto.dev",
        }
    }
}

/// A path whose extension selects the viewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TimelinePlace {
    pub(super) path: PathBuf,
    pub(super) viewer: Viewer,
}

impl FromStr for TimelinePlace {
    type Err = String;

    fn from_str(path: &str) -> Result<TimelinePlace, String> {
        let found = ENDINGS.iter().find(|(ending, _)| path.ends_with(ending));
        let (_, viewer) = found.ok_or(
            "its extension selects no viewer: .json.gz for the Firefox Profiler, .pftrace or .perfetto-trace \
             for Perfetto",
        )?;
        Ok(TimelinePlace { path: path.into(), viewer: *viewer })
    }
}

impl fmt::Display for TimelinePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_says_the_viewer() {
        for (path, viewer) in [
            ("a.json.gz", Viewer::Firefox),
            ("/tmp/a.pftrace", Viewer::Perfetto),
            ("a.b.perfetto-trace", Viewer::Perfetto),
        ] {
            assert_eq!(path.parse::<TimelinePlace>().unwrap().viewer, viewer, "{path}");
        }
        for path in ["a", "a.gz", "a.json", "pftrace", ""] {
            let said = path.parse::<TimelinePlace>().unwrap_err();
            assert!(said.contains(".json.gz") && said.contains(".pftrace"), "{said}");
        }
    }
}

//! Skips: a test, or a part of one, that cannot run on this machine.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::panic::Location;

/// The beginning of a line of standard error that reports a skip. `cargo xtask ci` counts them.
const SKIPPED: &str = "skipped: ";

/// Reports that the calling test, or the rest of it, is skipped, and why.
#[track_caller]
pub fn skip(reason: impl Display) {
    let place = Location::caller();
    tell(&format!("{SKIPPED}{reason} ({}:{})", place.file(), place.line()));
}

/// Repeats the skips in the output of a child.
pub(crate) fn forward_skips(said: &str) {
    said.lines().filter_map(|line| line.find(SKIPPED).map(|at| &line[at..])).for_each(tell);
}

/// Prints one line past the harness, which hides what a test that passes prints.
fn tell(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

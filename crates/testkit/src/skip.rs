//! Skips: a test, or a part of one, that cannot be made on this machine.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::panic::Location;

/// The beginning of a line of standard error that tells of a skip. `cargo xtask ci` counts them.
const SKIPPED: &str = "skipped: ";

/// Tells that the calling test, or the rest of it, is not made here, and why.
#[track_caller]
pub fn skip(reason: impl Display) {
    let place = Location::caller();
    tell(&format!("{SKIPPED}{reason} ({}:{})", place.file(), place.line()));
}

/// Tells of the skips in what a child has printed.
pub(crate) fn forward_skips(said: &str) {
    said.lines().filter_map(|line| line.find(SKIPPED).map(|at| &line[at..])).for_each(tell);
}

/// Prints one line past the harness, which hides what a test that passes prints.
fn tell(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

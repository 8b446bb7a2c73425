//! Dormouse as a program of its own has it: with the features that it has by default, while the
//! tests of the workspace share one build with all of them.
//!
//! It is built once, in the workspace `crates/dormouse/tests/copies`, for the programs there and
//! for the C library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler's flags for all of it: those of the C library's Makefile.
pub const FLAGS: &str = "-C force-frame-pointers=yes";

/// The manifest of the workspace.
pub fn manifest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dormouse/tests/copies/Cargo.toml").canonicalize().unwrap()
}

/// Its target directory, inside that of the test program, which is in `debug/deps` there.
pub fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("tmp/copies")
}

/// A command of cargo's that builds into [`target`] with [`FLAGS`].
pub fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([command, "--quiet", "--target-dir"]).arg(target()).env("RUSTFLAGS", FLAGS);
    cargo
}

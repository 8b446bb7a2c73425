//! Builds the programs and objects of `tests/copies`.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use dormouse_testkit::apart;

/// The folder of what is built.
pub(crate) fn folder() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut build = apart::cargo("build");
        build.args(["--workspace", "--exclude", "copies-c", "--manifest-path"]).arg(apart::manifest());
        let output = build.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        apart::target().join("debug")
    })
}

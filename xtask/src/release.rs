//! The checks before a release: packages, the oldest compiler, promises to those who build on it.

use std::path::{Path, PathBuf};

use crate::process::{Result, cargo, discard, manifest, output, program, run, target, tool};
use crate::suite::Suite;

/// The facade, and the crates whose types it shows.
const PROMISED: [&str; 11] = [
    "dormouse",
    "dormouse-api",
    "dormouse-breakpoints",
    "dormouse-clock",
    "dormouse-events",
    "dormouse-keys",
    "dormouse-locks",
    "dormouse-metrics",
    "dormouse-profile",
    "dormouse-protocol",
    "dormouse-waits",
];
const UNPUBLISHED: [&str; 5] =
    ["dormouse-testkit", "dormouse-bench", "dormouse-lab", "dormouse-others", "xtask"];
const SEMVER_CHECKS: &str = "0.51.0";

/// Packages of all crates that are published, as a registry takes them, each built from its own
/// files and from the packages of the others.
pub(crate) fn packages() -> Result {
    // Cargo keeps what it unpacks of a registry by name and version, also of an earlier run, and
    // would build these packages of the others as they were then.
    let folder = target().join("packages");
    discard(std::slice::from_ref(&folder))?;
    discard(&unpacked())?;
    let mut package = cargo("package --workspace");
    package.args(UNPUBLISHED.iter().flat_map(|package| ["--exclude", package]));
    package.args(["--all-features", "--allow-dirty", "--locked"]);
    run(package.env("CARGO_TARGET_DIR", &folder))?;
    let entries = folder.join("package").read_dir().map_err(|why| why.to_string())?;
    let made = entries.flatten().map(|entry| entry.path());
    for package in made.filter(|path| path.extension().is_some_and(|it| it == "crate")) {
        // Cargo takes a package without these; its readers do not.
        let files = output(program("tar -tzf").arg(&package))?;
        for wanted in ["README.md", "LICENSE-APACHE", "LICENSE-MIT", "Cargo.toml"] {
            let is_it = |file: &str| file.split_once('/').is_some_and(|(_, file)| file == wanted);
            if !files.lines().any(is_it) {
                return Err(format!("{} has no {wanted}", package.display()));
            }
        }
    }
    discard(&[folder])
}

/// The folders and files that cargo has kept of earlier packages of ours.
fn unpacked() -> Vec<PathBuf> {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
    let registry = std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from).join("registry");
    let list = |folder: &Path| folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let starts = |path: &PathBuf, with: &str| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(with))
    };
    let registries = ["src", "cache"].into_iter().flat_map(|part| list(&registry.join(part)));
    let local = registries.filter(|path| starts(path, "-"));
    local.flat_map(|path| list(&path)).filter(|path| starts(path, "dormouse")).collect()
}

/// Everything compiles with the oldest compiler that the manifests promise, whose build of the demo
/// runs, and breaks no promise that the last release made: a tag `v…`. Before the first one there
/// is nothing to compare with.
pub(crate) fn promises(suite: &mut Suite) -> Result {
    let oldest = manifest("rust-version")?;
    run(program("rustup toolchain install --profile minimal --no-self-update").arg(&oldest))?;
    let folder = target().join("msrv");
    for line in ["check --workspace --all-features", "run -p dormouse-cli -- demo --for 3s --plain"] {
        let mut oldest_cargo = program("rustup run");
        oldest_cargo.arg(&oldest).args(["cargo", "--locked"]).args(line.split(' '));
        run(oldest_cargo.env("CARGO_TARGET_DIR", &folder))?;
    }
    discard(&[folder])?;

    let Ok(release) = output(&mut program("git describe --tags --match v* --abbrev=0")) else {
        suite.skip("promises of the last release: there is none yet");
        return Ok(());
    };
    let checker = tool("cargo-semver-checks", SEMVER_CHECKS)?;
    let mut checks = std::process::Command::new(checker);
    checks.args(["semver-checks", "--baseline-rev", &release]);
    run(checks.args(PROMISED.iter().flat_map(|package| ["-p", package])))
}

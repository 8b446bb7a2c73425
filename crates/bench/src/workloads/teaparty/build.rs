//! Builds the tea house both ways, from the sources of this workspace.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::server::Side;

/// Where the sources are in a workspace.
const MANIFEST: &str = "crates/teaparty/Cargo.toml";

/// What was built.
#[derive(Debug)]
pub(super) struct Binaries {
    with: PathBuf,
    without: PathBuf,
}

impl Binaries {
    pub(super) fn of(&self, side: Side) -> &Path {
        match side {
            Side::With => &self.with,
            Side::Without => &self.without,
        }
    }
}

/// Builds both, or says why that cannot be done.
pub(super) fn both() -> Result<Binaries, String> {
    let root = root()?;
    // One directory for both, so that what they share is built once; each program is copied away.
    let target = root.join("target/bench-teaparty");
    let build = |name: &str, flags: &[&str]| build(&root, &target, name, flags);
    Ok(Binaries { with: build("with", &[])?, without: build("without", &["--no-default-features"])? })
}

/// The workspace: where this was built, else above the working directory.
fn root() -> Result<PathBuf, String> {
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let working = env::current_dir().unwrap_or_default();
    built_in
        .into_iter()
        .chain(working.ancestors())
        .find(|root| root.join(MANIFEST).is_file())
        .map(Path::to_owned)
        .ok_or_else(|| format!("no sources: {MANIFEST} is neither here nor where this was built"))
}

fn build(root: &Path, target: &Path, name: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let output = Command::new(&cargo)
        .current_dir(root)
        .args(["build", "--release", "--package", "dormouse-teaparty", "--target-dir"])
        .arg(target)
        .args(flags)
        .output()
        .map_err(|error| format!("cannot run {}: {error}", cargo.display()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("building the tea house {name} dormouse failed: {}", first_error(&stderr)));
    }
    let built = target.join("release/dormouse-teaparty");
    let kept = target.join(format!("teaparty-{name}"));
    // Not over the old one: that fails while an earlier run's is still executing.
    let _ = fs::remove_file(&kept);
    fs::copy(&built, &kept)
        .map_err(|error| format!("cannot copy {} to {}: {error}", built.display(), kept.display()))?;
    Ok(kept)
}

/// The line of cargo's output that says what is wrong.
fn first_error(stderr: &str) -> &str {
    let mut lines = stderr.lines();
    lines.find(|line| line.starts_with("error")).or_else(|| stderr.lines().last()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_found_from_its_own_sources() {
        assert!(root().unwrap().join(MANIFEST).is_file());
    }

    #[test]
    fn the_error_of_a_build_is_its_first_line_that_says_error() {
        let stderr = "   Compiling x\nwarning: y\nerror[E0432]: unresolved\n  --> z\nerror: could not";
        assert_eq!(first_error(stderr), "error[E0432]: unresolved");
        assert_eq!(first_error("a\nb"), "b");
        assert_eq!(first_error(""), "no message");
    }
}

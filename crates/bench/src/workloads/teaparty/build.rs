//! Builds programs for a bench, from the sources of this workspace.
//!
//! They are built in a separate directory below the workspace's target directory. In the target
//! directory itself, a build with other features would replace the user's program.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources in a workspace.
const MANIFEST: &str = "crates/teaparty/Cargo.toml";

/// The workspace: that of this build, else the one above the working directory.
pub(crate) fn root() -> Result<PathBuf, String> {
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let working = env::current_dir().unwrap_or_default();
    built_in
        .into_iter()
        .chain(working.ancestors())
        .find(|root| root.join(MANIFEST).is_file())
        .map(Path::to_owned)
        .ok_or_else(|| format!("no sources: {MANIFEST} is neither here nor where this was built"))
}

/// Builds a program of this workspace for release, and returns its path.
pub(crate) fn program_of(package: &str, flags: &[&str]) -> Result<PathBuf, String> {
    cargo_build(&root()?, package, flags).map_err(|why| format!("building {package} failed: {why}"))
}

fn cargo_build(root: &Path, package: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let mut cargo = command(root, package, flags);
    let output =
        cargo.output().map_err(|error| format!("cannot run {}: {error}", cargo.get_program().display()))?;
    if !output.status.success() {
        return Err(first_error(&String::from_utf8_lossy(&output.stderr)).to_owned());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().find_map(program).map(PathBuf::from).ok_or_else(|| "cargo names no program".to_owned())
}

fn command(root: &Path, package: &str, flags: &[&str]) -> Command {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target"));
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo
        .current_dir(root)
        .args(["build", "--release", "--package", package])
        .arg("--target-dir")
        .arg(root.join(target).join("bench"))
        .arg("--message-format=json-render-diagnostics")
        .args(flags);
    cargo
}

/// The program in a line of cargo's messages.
fn program(line: &str) -> Option<String> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    Some(message.get("executable")?.as_str()?.to_owned())
}

/// The line of cargo's output with the error.
pub(crate) fn first_error(stderr: &str) -> &str {
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
    fn builds_leave_the_target_directory_alone() {
        let cargo = command(Path::new("/x"), "dormouse-teaparty", &[]);
        let mut words = cargo.get_args().skip_while(|word| *word != "--target-dir");
        assert!(Path::new(words.nth(1).unwrap()).ends_with("bench"), "{cargo:?}");
    }

    #[test]
    fn the_program_is_in_cargos_messages() {
        let artifact = r#"{"reason":"compiler-artifact","executable":"/x/dormouse-teaparty"}"#;
        assert_eq!(program(artifact).as_deref(), Some("/x/dormouse-teaparty"));
        for line in [r#"{"reason":"compiler-artifact","executable":null}"#, "", "Compiling"] {
            assert_eq!(program(line), None);
        }
    }

    #[test]
    fn a_builds_error_is_its_first_error_line() {
        let stderr = "   Compiling x\nwarning: y\nerror[E0432]: unresolved\n  --> z\nerror: could not";
        assert_eq!(first_error(stderr), "error[E0432]: unresolved");
        assert_eq!(first_error("a\nb"), "b");
        assert_eq!(first_error(""), "no message");
    }
}

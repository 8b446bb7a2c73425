//! Two copies of dormouse in one process: a host and a plugin that was linked with its own, or two
//! versions in one program. They are built by cargo, so on x86-64 alone: a virtual machine has
//! none.
#![cfg(all(target_arch = "x86_64", not(dormouse_fallback)))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dormouse_testkit::{apart, long_only};

use crate::fixtures::folder;

fn run(program: &str, arguments: &[&Path]) {
    let runtime = tempfile::tempdir().unwrap();
    let output = Command::new(folder().join(program))
        .args(arguments)
        .env("DORMOUSE_RUNTIME_DIR", runtime.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.ends_with("done\n"),
        "{program} {arguments:?}: {}\n{said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

fn plugin() -> PathBuf {
    folder().join("libcopies_plugin.so")
}

#[test]
fn there_is_one_agent_whichever_copy_asks_first() {
    run("copies-host", &[Path::new("agent"), &plugin()]);
    run("copies-host", &[Path::new("plugins-agent"), &plugin()]);
}

#[test]
fn one_copy_traces_the_probes_of_both() {
    run("copies-host", &[Path::new("records"), &plugin()]);
}

#[test]
fn a_follower_traces_the_leaders_probes() {
    let second = folder().join("libsecond_plugin.so");
    std::fs::copy(plugin(), &second).unwrap();
    run("copies-bare", &[&plugin(), &second]);
}

/// Copies the sources of all crates, as version 0.1.999.
fn next_version(into: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let copied =
        Command::new("cp").args(["--recursive", "--dereference"]).arg(root.join("crates")).arg(into).status();
    assert!(copied.unwrap().success());
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let manifest = manifest.replace(r#""tests/others", "xtask""#, "").replace(r#""0.1.0""#, r#""0.1.999""#);
    assert!(manifest.matches("0.1.999").count() > 10, "{manifest}");
    fs::write(into.join("Cargo.toml"), manifest).unwrap();
    fs::copy(root.join("README.md"), into.join("README.md")).unwrap();
}

/// Builds dormouse once more.
#[test]
fn two_versions_in_one_program_share_their_keys() {
    if !long_only() {
        return;
    }
    let copies = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/copies");
    let next = tempfile::tempdir().unwrap();
    next_version(next.path());
    let program = tempfile::tempdir().unwrap();
    let at = |of: &Path| of.display().to_string();
    let manifest = format!(
        "[package]\nname = \"copies-versions\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         dormouse = {{ path = \"{}\" }}\n\
         dormouse-next = {{ package = \"dormouse\", path = \"{}/crates/dormouse\" }}\n\n\
         [profile.dev]\ndebug = false\n\n[workspace]\n",
        env!("CARGO_MANIFEST_DIR"),
        at(next.path())
    );
    fs::create_dir(program.path().join("src")).unwrap();
    fs::write(program.path().join("Cargo.toml"), manifest).unwrap();
    fs::copy(copies.join("Cargo.lock"), program.path().join("Cargo.lock")).unwrap();
    fs::copy(copies.join("versions/src/main.rs"), program.path().join("src/main.rs")).unwrap();
    // The first version and the crates of others are built there already.
    folder();
    let built = apart::cargo("build").current_dir(program.path()).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    run("copies-versions", &[]);
}

//! Two copies of dormouse in one process: a host and a plugin that was linked with its own.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]

use std::path::{Path, PathBuf};
use std::process::Command;

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

//! Two copies of dormouse in one process: a host and a plugin that was linked with its own.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn folder() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("copies");
        let output = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--manifest-path"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/copies/Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        target.join("debug")
    })
}

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

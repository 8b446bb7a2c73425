//! A service under Valgrind, which has no page of the kernel's code (vDSO), no rseq, and a
//! translation of the service's code that it makes once.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{DORMOUSE, Running, Service, run, skip};

/// A program that runs the command under Valgrind. `--smc-check=all`: it sees that code changes.
fn wrapper(directory: &std::path::Path) -> std::path::PathBuf {
    let path = directory.join("watched");
    let script =
        format!("#!/bin/sh\nexec valgrind --quiet --tool=none --smc-check=all '{DORMOUSE}' \"$@\"\n");
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a script that runs");
    path
}

#[test]
fn a_service_lives_under_valgrind() {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("valgrind is not installed");
    }
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let program = wrapper(runtime.path());
    let service = Service::start_as(program.as_os_str(), runtime, |command| {
        command.args(["--load", "20", "--for", "10m"]);
    });
    let service = service.expect("a service under Valgrind");
    let seen = run(["--json", "stat", &service.target(), "--for", "1s"]);
    assert_eq!(seen.code, Some(0), "{}", seen.stderr);
    assert!(seen.stdout.contains("GET /menu"), "{}", seen.stdout);
    // A key that is switched by changing code that Valgrind has translated.
    let mut trace = Running::start(["trace", &service.target(), "brochure.*"]);
    let first = trace.line();
    assert!(first.contains("brochure."), "{first}");
    trace.end_by(Signal::INT);
    service.assert_alive();
}

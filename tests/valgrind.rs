//! A service under Valgrind, which has no page of the kernel's code (vDSO), no rseq, and a
//! translation of the service's code that it makes once.

use std::process::Command;

use rustix::process::Signal;

use crate::support::{DORMOUSE, Running, Service, run, skip};

#[test]
fn a_service_lives_under_valgrind() {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("valgrind is not installed");
    }
    let mut command = Command::new("valgrind");
    // It runs one thread at a time, in turns; and sees that code changes.
    command.args(["--quiet", "--tool=none", "--fair-sched=try", "--smc-check=all", DORMOUSE, "teaparty"]);
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let service = Service::start_by(command, runtime, |command| {
        command.args(["--load", "5", "--for", "10m"]);
    });
    let service = service.expect("a service under Valgrind");
    assert!(service.get("/menu").starts_with("HTTP/1.1 200"));
    let seen = run(["--json", "stat", &service.target(), "--for", "1s"]);
    assert_eq!(seen.code, Some(0), "{}", seen.stderr);
    assert!(seen.stdout.contains("GET /menu"), "{}", seen.stdout);
    // A key that is switched by changing code that Valgrind has translated.
    let mut trace = Running::start(["trace", &service.target(), "brochure.*"]);
    let first = trace.line();
    assert!(first.contains("brochure."), "{first}");
    let traced = trace.end_by(Signal::INT);
    assert_eq!(traced.code, Some(0), "{}", traced.stderr);
    service.assert_alive();
}

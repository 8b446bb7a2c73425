//! Runs a test's body in a process of its own, so that what it installs, forbids or forks harms no other test.

use std::process::Command;

/// Runs `body` in a child that executes just the test `name`; the parent waits for it and fails with it. What it says it
/// has skipped is said.
pub(crate) fn in_child(name: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    const MARK: &str = "DORMOUSE_TEST_CHILD";
    if std::env::var_os(MARK).is_some_and(|test| test == name) {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .envs(environment.iter().copied())
        .env(MARK, name)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    said.lines().filter(|line| line.contains("skipped: ")).for_each(|line| println!("{line}"));
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{name}: {}\n{said}{errors}",
        output.status
    );
}

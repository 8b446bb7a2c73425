//! Runs a test's body in a process of its own: what it does to the text harms no other test.

use std::process::Command;

/// Runs `body` in a child that executes just the test `name`; the parent waits for it and fails with it.
pub(crate) fn in_child(name: &str, body: impl FnOnce()) {
    const MARK: &str = "DORMOUSE_TEST_CHILD";
    if std::env::var_os(MARK).is_some_and(|v| v == name) {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, name)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "child {name}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    // What was left out is said, not swallowed.
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().filter(|line| line.contains(" skipped: ")).for_each(|line| println!("{line}"));
}

//! Runs a test's body in a process of its own: what it does to the text harms no other test.

use std::process::Command;

/// Runs `body` in a child that executes just the test `name`, which calls this; the parent fails with it.
pub(super) fn in_child(name: &str, body: impl FnOnce()) {
    const MARK: &str = "DORMOUSE_BENCH_TEST_CHILD";
    if !dormouse::keys::PATCHING {
        return eprintln!("skipped: {}", super::update::NOT_PATCHED);
    }
    if std::env::var_os(MARK).is_some_and(|mark| mark == name) {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, name)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {}\n{text}", output.status);
}

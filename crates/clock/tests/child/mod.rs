//! Runs a test's body in a process of its own, so that what it forbids, forces or forks harms no other test.

use std::process::Command;

/// Runs `body` in a child that executes just the test `name`, once for each of `environments`; the parent
/// waits for it and fails with it. What the child prints is printed.
pub(crate) fn in_child(name: &str, environments: &[&[(&str, &str)]], body: impl FnOnce()) {
    const MARK: &str = "DORMOUSE_TEST_CHILD";
    if std::env::var_os(MARK).is_some_and(|test| test == name) {
        return body();
    }
    for environment in environments {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env_remove("DORMOUSE_CLOCK")
            .envs(environment.iter().copied())
            .env(MARK, name)
            .output()
            .unwrap();
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        for line in said.lines().filter(|line| line.contains("skipped: ")) {
            println!("{line}");
        }
        assert!(output.status.success(), "{name} {environment:?}: {}\n{said}{errors}", output.status);
    }
}

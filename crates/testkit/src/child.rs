//! Runs a test's body in a separate process, so that its patches, filters, limits and signals harm
//! no other test.
//!
//! The child is the same test program, filtered to the test that runs. [`Child::run`] calls the
//! body there, and here waits for the child and checks its output. A filter that matches no test is
//! an error: the child must report that it ran *one* test.

use std::any::type_name;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::panic::Location;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

use crate::skip::{forward_skips, skip};

/// Holds the place of the call that made this process, in children.
const MARK: &str = "DORMOUSE_TEST_CHILD";

/// Whether this process runs the body that it was made for.
static INSIDE: AtomicBool = AtomicBool::new(false);

/// The default time limit of a child.
const LIMIT: Duration = Duration::from_secs(600);

/// Environment variables of a child in addition to its parent's.
pub type Environment<'a> = &'a [(&'a str, &'a str)];

/// Runs `body` in a child process that runs only the calling test. The test fails if the child
/// does.
///
/// A helper function around it must take the test's closure and pass it on.
#[track_caller]
pub fn in_child<F: FnOnce()>(body: F) {
    Child::new().run(body);
}

/// A child process that has not run yet, for tests that need more than [`in_child`].
///
/// The child has the environment of this process except for `DORMOUSE_CLOCK`, which the test may
/// set.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Child<'a> {
    environments: &'a [Environment<'a>],
    limit: Duration,
    signal: Option<i32>,
}

impl<'a> Child<'a> {
    /// A child that must succeed within ten minutes.
    pub const fn new() -> Self {
        Self { environments: &[&[]], limit: LIMIT, signal: None }
    }

    /// Starts one child for each of these environments, one after the other.
    pub const fn with_each(self, environments: &'a [Environment<'a>]) -> Self {
        Self { environments, ..self }
    }

    /// Kills the child and all processes of its process group after this time; the test fails.
    pub const fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Expects this signal to kill the child. The test fails if the child ends in another way.
    pub const fn dies_of(self, signal: i32) -> Self {
        Self { signal: Some(signal), ..self }
    }

    /// Runs `body` in the child.
    #[track_caller]
    pub fn run<F: FnOnce()>(self, body: F) {
        if cfg!(miri) {
            // It starts no processes, and `cargo xtask long miri` gives each test one of its own.
            let is_usual = self.signal.is_none() && self.environments.iter().all(|one| one.is_empty());
            return if is_usual { body() } else { skip("Miri starts no process with settings") };
        }
        let place = Location::caller().to_string();
        if let Ok(mark) = std::env::var(MARK) {
            assert!(!INSIDE.load(Relaxed), "the child of a test has no child by {place}");
            if mark == place {
                INSIDE.store(true, Relaxed);
                // A test program that is interrupted leaves no child behind.
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                body();
                INSIDE.store(false, Relaxed);
            }
            // Another place is another child of the same test.
            return;
        }
        let name = running_test(thread::current().name(), type_name::<F>());
        for environment in self.environments {
            let output = self.wait_for(
                Command::new(std::env::current_exe().unwrap())
                    .args([&*name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
                    .env_remove("DORMOUSE_CLOCK")
                    .envs(environment.iter().copied())
                    .env(MARK, &place),
            );
            let (said, errors) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            forward_skips(&errors);
            let is_right = match self.signal {
                None => output.status.success() && said.contains("test result: ok. 1 passed"),
                Some(signal) => output.status.signal() == Some(signal) && said.contains("running 1 test\n"),
            };
            assert!(is_right, "the child of {name} {environment:?}: {}\n{said}{errors}", output.status);
        }
    }

    fn wait_for(self, command: &mut Command) -> Output {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).spawn().unwrap();
        let group = Pid::from_child(&child);
        let (send, ended) = mpsc::channel();
        let waits = thread::spawn(move || send.send(child.wait_with_output().unwrap()));
        let output = ended.recv_timeout(self.limit).unwrap_or_else(|_| {
            kill_process_group(group, Signal::KILL).unwrap();
            let mut output = ended.recv().unwrap();
            output.stderr.extend(format!("killed after {:?}\n", self.limit).into_bytes());
            output
        });
        waits.join().unwrap().unwrap();
        output
    }
}

impl Default for Child<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// The harness's name of the test that runs: that of its thread. With `--test-threads=1` tests run
/// on the main thread; then the path of the test's closure, without its crate, is the name.
fn running_test(thread: Option<&str>, closure: &str) -> String {
    match thread {
        Some(name) if name != "main" => name.to_owned(),
        _ => {
            let function = closure.split("::{{closure}}").next().unwrap_or_default();
            function.split_once("::").map_or(function, |(_crate, path)| path).to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_named_by_thread_or_closure() {
        assert_eq!(running_test(Some("tests::it"), "krate::helper::{{closure}}"), "tests::it");
        assert_eq!(running_test(Some("main"), "krate::tests::it::{{closure}}::{{closure}}"), "tests::it");
        assert_eq!(running_test(None, "krate::it::{{closure}}"), "it");
        assert_eq!(running_test(Some("main"), "krate::it"), "it");
    }
}

//! Services that are no ordinary ones: each is an ignored test of this program, in a process of its
//! own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::support::RUNTIME_VARIABLES;

pub(super) struct Odd {
    child: Child,
    _runtime: TempDir,
}

impl Odd {
    /// The service that this test is.
    pub(super) fn start(test: &str) -> Odd {
        Odd::start_as(test, |_| {})
    }

    /// Starts the service as another user, and tells it how to behave.
    pub(super) fn of_user(uid: u32, test: &str, manner: &str) -> Odd {
        Odd::start_as(test, |command| {
            command.uid(uid).gid(uid).env("MANNER", manner);
        })
    }

    fn start_as(test: &str, change: impl FnOnce(&mut Command)) -> Odd {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let anybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(runtime.path(), anybody).expect("a directory for any user");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        for variable in RUNTIME_VARIABLES {
            command.env_remove(variable);
        }
        command.env("DORMOUSE_RUNTIME_DIR", runtime.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("a service");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert!(lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("ready")));
        Odd { child, _runtime: runtime }
    }

    /// The service, whose socket can be in no directory: it has an abstract name.
    pub(super) fn without_directory(test: &str) -> Odd {
        Odd::start_as(test, |command| {
            command.env("DORMOUSE_RUNTIME_DIR", "/dev/null");
        })
    }

    /// Writes a line to its standard input.
    pub(super) fn tell(&mut self) {
        self.child.stdin.as_mut().expect("its input").write_all(b"\n").expect("a line");
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Odd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

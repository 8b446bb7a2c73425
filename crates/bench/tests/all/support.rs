//! The program as a process.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// It has ended with `code`, and with each of `parts` in its messages and nothing as data.
    #[track_caller]
    pub(crate) fn assert_fails(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {:?}", self.stderr);
        }
        assert_eq!(self.stdout, "", "messages are no data");
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// The program, which Ctrl-C ends: a shell that runs the tests in the background has them ignore
/// it, and a program inherits that.
pub(crate) fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse-bench"));
    command.args(args);
    // SAFETY: one system call, which a child may make between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        })
    };
    command
}

/// Runs the program to its end.
#[track_caller]
pub(crate) fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    command(args).output().expect("the program runs").into()
}

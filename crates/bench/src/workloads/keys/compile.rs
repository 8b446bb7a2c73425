//! The load of the busy rows: a compiler, two jobs a processor, as the origin's machine had.
//!
//! The jobs are shell loops, not threads of ours: a thread that started the next compilation could
//! be interrupted too, and some rows need a process of one thread.

use std::cell::RefCell;
use std::fs;
use std::num::NonZero;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::runner::Failure;

/// Jobs for each processor.
const JOBS: usize = 2;

/// Functions in the source: about a second's work for a compiler.
const FUNCTIONS: usize = 400;

const COMPILER: [&str; 3] = ["cc", "-O2", "-c"];

/// A compiler at work, until it is dropped.
#[derive(Debug)]
pub(super) struct Compile {
    jobs: RefCell<Vec<Child>>,
    /// The number of jobs and their command.
    pub(super) description: String,
    directory: TempDir,
}

impl Compile {
    /// Starts the jobs, or returns why that is impossible.
    pub(super) fn start() -> Result<Self, String> {
        if !compiler().arg("--version").status().is_ok_and(|status| status.success()) {
            return Err("no compiler: cc is not there".to_owned());
        }
        let failed = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
        let directory = TempDir::with_prefix("dormouse-bench-")
            .map_err(|error| failed("make a directory for the compiler", error))?;
        let count = JOBS * thread::available_parallelism().map_or(1, NonZero::get);
        let description = format!("{count} x {}", COMPILER.join(" "));
        let compile = Self { jobs: RefCell::default(), description, directory };
        let directory = compile.directory.path();
        let text = directory.join("load.c");
        fs::write(&text, source()).map_err(|error| failed("write a source", error))?;
        for job in 0..count {
            // A job ends when this process does, however that ends; the compiler's temporary files
            // go with the directory.
            let child = Command::new("sh")
                .args(["-c", "while kill -0 \"$PPID\" 2>&-; do \"$@\" || exit 1; done", "compile"])
                .args(COMPILER)
                .args([&text, Path::new("-o"), &directory.join(format!("{job}.o"))])
                .env("TMPDIR", directory)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .map_err(|error| failed("start a shell", error))?;
            compile.jobs.borrow_mut().push(child);
        }
        Ok(compile)
    }

    /// Whether all jobs still run.
    pub(super) fn check(&self) -> Result<(), Failure> {
        for job in &mut *self.jobs.borrow_mut() {
            if let Some(status) = job.try_wait()? {
                return Err(Failure::from(format!("{}: a job has ended: {status}", self.description)));
            }
        }
        Ok(())
    }
}

impl Drop for Compile {
    fn drop(&mut self) {
        for job in self.jobs.get_mut() {
            // The group is the shell and the compiler that it waits for. A job that has ended needs
            // no signal.
            let _ = kill_process_group(Pid::from_child(job), Signal::KILL);
            let _ = job.wait();
        }
    }
}

/// Calls the compiler, as far as all jobs do it alike.
fn compiler() -> Command {
    let mut command = Command::new(COMPILER[0]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn source() -> String {
    let function = "(unsigned long *p, unsigned long n) { unsigned long s = 0; \
        for (unsigned long i = 0; i < n; i++) \
        { if (p[i] % 7 == s % 5) s += p[i] * i; else s ^= p[n - 1 - i] >> 3; p[i] = s; } \
        for (unsigned long i = 1; i < n; i++) p[i] += p[i - 1] / (s | 1); return s; }\n";
    let head = "unsigned long f";
    (0..FUNCTIONS).flat_map(|number| [head.to_owned(), number.to_string(), function.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_until_dropped_and_leaves_nothing() {
        let compile = match Compile::start() {
            Ok(compile) => compile,
            Err(reason) => return eprintln!("skipped: {reason}"),
        };
        compile.check().unwrap();
        let (directory, first) = (compile.directory.path().to_owned(), compile.jobs.borrow()[0].id());
        drop(compile);
        assert!(!directory.exists());
        assert!(!fs::exists(format!("/proc/{first}")).unwrap());
    }

    #[test]
    fn the_compiler_takes_the_source() {
        let directory = tempfile::tempdir().unwrap();
        let [text, object] = ["load.c", "load.o"].map(|name| directory.path().join(name));
        fs::write(&text, source()).unwrap();
        match compiler().args(&COMPILER[1..]).arg(&text).arg("-o").arg(&object).status() {
            Err(error) => eprintln!("skipped: {error}"),
            Ok(status) => assert!(status.success()),
        }
    }
}

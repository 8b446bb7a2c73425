//! The load of the busy rows: a compiler, two jobs a processor, as the origin's machine had.
//!
//! The jobs are shell loops, not threads of ours: a thread that starts the next compilation would be one more to
//! interrupt, and the process of one thread that some rows need would have two.

use std::cell::RefCell;
use std::fmt::Write as _;
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

/// A compiler at work, until it is dropped.
#[derive(Debug)]
pub(super) struct Compile {
    jobs: RefCell<Vec<Child>>,
    /// What runs.
    pub(super) description: String,
    directory: TempDir,
}

impl Compile {
    /// Starts it, or says why that cannot be done.
    pub(super) fn start() -> Result<Self, String> {
        let compiler = Compiler::find()?;
        let directory = TempDir::with_prefix("dormouse-bench-")
            .map_err(|error| format!("cannot make a directory for the compiler: {error}"))?;
        let count = JOBS * thread::available_parallelism().map_or(1, NonZero::get);
        let description = format!("{count} x {} {}", compiler.program, compiler.options.join(" "));
        let compile = Self { jobs: RefCell::default(), description, directory };
        let directory = compile.directory.path();
        let source = directory.join(compiler.source);
        fs::write(&source, compiler.text()).map_err(|error| format!("cannot write a source: {error}"))?;
        for job in 0..count {
            // It ends when we do, however we do; the compiler's own temporary files go with the directory.
            let child = Command::new("sh")
                .args([
                    "-c",
                    "while kill -0 \"$PPID\" 2>&-; do \"$@\" || exit 1; done",
                    "compile",
                    compiler.program,
                ])
                .args(compiler.options)
                .args([&source, Path::new("-o"), &directory.join(format!("{job}.o"))])
                .env("TMPDIR", directory)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .map_err(|error| format!("cannot start a shell: {error}"))?;
            compile.jobs.borrow_mut().push(child);
        }
        Ok(compile)
    }

    /// Whether all of it still runs.
    pub(super) fn check(&self) -> Result<(), Failure> {
        for job in &mut *self.jobs.borrow_mut() {
            if let Some(status) = job.try_wait()? {
                return Err(Failure::Unavailable(format!("{}: a job has ended: {status}", self.description)));
            }
        }
        Ok(())
    }
}

impl Drop for Compile {
    fn drop(&mut self) {
        for job in self.jobs.get_mut() {
            // The shell and the compiler that it waits for. One that has ended needs no signal.
            let _ = kill_process_group(Pid::from_child(job), Signal::KILL);
            let _ = job.wait();
        }
    }
}

/// How to call a compiler.
#[derive(Debug)]
struct Compiler {
    program: &'static str,
    options: &'static [&'static str],
    source: &'static str,
    /// A function, between its head with the number and its end.
    function: [&'static str; 2],
}

const COMPILERS: [Compiler; 2] = [
    Compiler {
        program: "cc",
        options: &["-O2", "-c"],
        source: "load.c",
        function: [
            "unsigned long f",
            "(unsigned long *p, unsigned long n) { unsigned long s = 0; for (unsigned long i = 0; i < n; i++) \
             { if (p[i] % 7 == s % 5) s += p[i] * i; else s ^= p[n - 1 - i] >> 3; p[i] = s; } \
             for (unsigned long i = 1; i < n; i++) p[i] += p[i - 1] / (s | 1); return s; }",
        ],
    },
    Compiler {
        program: "rustc",
        options: &["-O", "--crate-type", "lib", "--emit", "obj"],
        source: "load.rs",
        function: [
            "pub fn f",
            "(p: &mut [u64]) -> u64 { let (n, mut s) = (p.len(), 0u64); for i in 0..n { if p[i] % 7 == s % 5 \
             { s = s.wrapping_add(p[i]); } else { s ^= p[n - 1 - i] >> 3; } p[i] = s; } \
             for i in 1..n { p[i] = p[i].wrapping_add(p[i - 1] / (s | 1)); } s }",
        ],
    },
];

impl Compiler {
    /// The first that is there.
    fn find() -> Result<&'static Self, String> {
        let answers = |compiler: &&Self| {
            let mut version = Command::new(compiler.program);
            version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            version.status().is_ok_and(|status| status.success())
        };
        COMPILERS.iter().find(answers).ok_or_else(|| "no compiler: neither cc nor rustc is there".to_owned())
    }

    fn text(&self) -> String {
        let [head, rest] = self.function;
        (0..FUNCTIONS).fold(String::new(), |mut text, number| {
            // A string takes everything.
            let _ = writeln!(text, "{head}{number}{rest}");
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_is_one_that_its_compiler_takes() {
        let directory = tempfile::tempdir().unwrap();
        for compiler in &COMPILERS {
            let source = directory.path().join(compiler.source);
            fs::write(&source, compiler.text()).unwrap();
            let output = Command::new(compiler.program)
                .args(compiler.options)
                .arg(&source)
                .arg("-o")
                .arg(directory.path().join("load.o"))
                .output();
            let Ok(output) = output else {
                eprintln!("skipped: there is no {}", compiler.program);
                continue;
            };
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    #[test]
    fn it_runs_until_it_is_dropped_and_leaves_nothing() {
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
}

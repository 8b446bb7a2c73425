//! Programs that are compiled for a test, and say where their variables are.
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use dormouse_testkit::skip;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Language {
    C,
    /// C by a certain compiler.
    Clang,
    Cpp,
    Rust,
}

/// Compiles `source` to `path`; without a compiler the test is skipped.
#[track_caller]
pub(crate) fn build(language: Language, source: &str, path: &Path, flags: &[&str]) -> bool {
    let (end, compiler) = match language {
        Language::C => ("c", std::env::var_os("CC").unwrap_or("cc".into())),
        Language::Clang => ("c", "clang".into()),
        Language::Cpp => ("cpp", std::env::var_os("CXX").unwrap_or("c++".into())),
        Language::Rust => ("rs", std::env::var_os("RUSTC").unwrap_or("rustc".into())),
    };
    let file = path.with_extension(end);
    fs::write(&file, source).unwrap();
    let mut command = Command::new(compiler);
    if matches!(language, Language::Rust) {
        command.arg("--edition=2021");
    }
    let output = command.arg("-o").args([path, &file]).args(flags).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => panic!("{flags:?}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => {
            skip(format!("there is no compiler of {language:?}"));
            false
        }
    }
}

pub(crate) fn run_tool(tool: &str, args: &[&OsStr]) -> bool {
    let is_done = Command::new(tool).args(args).status().is_ok_and(|status| status.success());
    if !is_done {
        skip(format!("there is no {tool}"));
    }
    is_done
}

/// A program that runs until it is dropped.
pub(crate) struct Program {
    child: Child,
    /// The program ends with it.
    _input: ChildStdin,
    said: Vec<(String, u64, u64)>,
}

impl Program {
    /// Starts it, and reads its lines of text, address and length, up to an empty one.
    pub(crate) fn start(path: &Path) -> Self {
        let mut command = Command::new(path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = loop {
            match command.spawn() {
                // A child of another test has it open for writing, until its own `exec`.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                spawned => break spawned.expect("it was built"),
            }
        };
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let said = lines.take_while(|line| !line.is_empty()).map(|line| {
            let words: Vec<&str> = line.split('\t').collect();
            let addr = u64::from_str_radix(words[1].trim_start_matches("0x"), 16).unwrap();
            (words[0].to_owned(), addr, words[2].parse().unwrap())
        });
        let said = said.collect();
        Self { _input: child.stdin.take().unwrap(), child, said }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn said(&self) -> &[(String, u64, u64)] {
        &self.said
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! The program: what it prints, and everything that ends it.

use std::{
    io::{BufRead as _, BufReader, Lines},
    process::{Child, ChildStdout, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A running program; killed if a test fails.
struct Program {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(flags: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_dormouse-teaparty"))
            .args(flags.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdout }
    }

    fn line(&mut self) -> String {
        self.stdout.next().expect("another line").unwrap()
    }

    /// The lines that it still prints, once it ended well.
    fn rest(mut self) -> Vec<String> {
        let rest = self.stdout.by_ref().map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success());
        rest
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_tells_its_address_and_ends() {
    let mut program = Program::start("--load 1000 --requests 64");
    let listening = program.line();
    assert!(listening.starts_with("listening on http://127.0.0.1:"), "{listening}");
    let rest = program.rest();
    assert!(rest[0].starts_with("64 requests served in "), "{rest:?}");
    assert!(rest[0].ends_with(" 0 errors"), "{rest:?}");
    assert_eq!(rest.last().unwrap(), "8 connections served, 0 cut");
}

#[test]
fn it_says_the_same_in_json_lines() {
    let mut program = Program::start("--json --workers 1 --load 1000 --requests 64 --clients 3");
    let listening: Value = serde_json::from_str(&program.line()).unwrap();
    assert_eq!(listening["schema"], 1);
    assert!(listening["listening"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    let rest = program.rest();
    assert_eq!(rest.len(), 1);
    let Value::Object(said) = serde_json::from_str(&rest[0]).unwrap() else { panic!("{rest:?}") };
    assert_eq!(said["schema"], 1);
    assert_eq!(said["summary"]["served"]["connections"], 3);
    let load = &said["summary"]["load"];
    assert_eq!((load["served"].as_u64(), load["errors"].as_u64()), (Some(64), Some(0)));
    assert_eq!(load["routes"].as_array().unwrap().len(), 6);
}

#[test]
fn both_signals_end_it_well() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut program = Program::start("--workers 1");
        program.line();
        kill_process(Pid::from_child(&program.child), signal).unwrap();
        assert_eq!(program.rest(), ["0 connections served, 0 cut"]);
    }
}

#[test]
fn the_end_of_input_ends_house_and_load() {
    let mut program = Program::start("--exit-with-parent --load 500 --for 1h");
    program.line();
    drop(program.child.stdin.take());
    let rest = program.rest();
    assert!(rest[0].ends_with(" 0 errors"), "{rest:?}");
}

#[test]
fn an_address_outside_is_a_mistake_of_usage() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_dormouse-teaparty")).args(["--addr", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("0.0.0.0:0 is not a loopback address; use 127.0.0.1 or [::1]"), "{told}");
}

#[test]
fn an_address_in_use_is_named() {
    let mut program = Program::start("--workers 1 --exit-with-parent");
    let line = program.line();
    let taken = line.strip_prefix("listening on http://").unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_dormouse-teaparty")).args(["--addr", taken]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains(&format!("cannot listen on {taken}; choose another with --addr")), "{told}");
    drop(program.child.stdin.take());
    program.rest();
}

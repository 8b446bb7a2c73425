//! Callers of code without frame pointers have the share of a profile that they used: of functions
//! of the C library, of signal handlers, of caught exceptions and on a fiber's stack, in a program
//! as `g++ -O2` builds it; and of libraries that the interpreter of Python calls. The programs
//! measure themselves by their own clocks.

use std::fs;
use std::path::Path;
use std::process::Command;

use dormouse_testkit::c::have;
use dormouse_testkit::{is_long, short_or_long};
use serde_json::Value;

use crate::support::{command, finish, skip};

/// The function on the fiber's stack stands for the one that switches to it.
const CALLERS: [&str; 6] = ["by_qsort", "by_memcpy", "by_send", "by_signal", "by_catch", "in_fiber"];

/// Functions of zlib and `SQLite`.
const OF_LIBRARIES: [&str; 2] = ["deflate", "sqlite3_step"];

/// Samples, and how many standard errors a share may be off. With eight shares, three standard
/// errors fail by chance once in fifty runs: too often for a run of each day.
fn sizes() -> (u32, f64) {
    short_or_long((1200, 4.5), (5000, 3.0))
}

/// The seconds that a program is to use.
fn seconds() -> String {
    (f64::from(sizes().0) / 1000.0).to_string()
}

/// Compares the shares that the program has measured with those that `profiler` found.
fn assert_alike(callers: &[&str], true_shares: &[f64], found: &[f64], samples: f64, profiler: &str) {
    let (_, errors) = sizes();
    assert_eq!(true_shares.len(), callers.len());
    for ((caller, right), found) in callers.iter().zip(true_shares).zip(found) {
        let error = (right * (1.0 - right) / samples).sqrt();
        assert!(
            (found - right).abs() <= errors * error,
            "{profiler}: {caller} has {found:.4} and used {right:.4} (standard error {error:.4}, {samples} samples)"
        );
    }
}

/// The shares that a program has written.
fn true_shares(path: &Path) -> Vec<f64> {
    fs::read_to_string(path).unwrap().lines().map(|share| share.parse().unwrap()).collect()
}

/// Has a program run, which writes its shares to the path after these words, and compares. Its
/// stacks end at a first function, but for `cut`, the share of those that are longer than a copy.
fn assert_shares(callers: &[&str], words: &[&str], cut: f64, directory: &Path) {
    let truth = directory.join("truth");
    let (path, seconds) = (truth.display().to_string(), seconds());
    let profile = ["profile", "--json", "--hz", "1000", "--"].into_iter().chain(words.iter().copied());
    let ended = finish(command(profile.chain([path.as_str(), &seconds])));
    if ended.code == Some(3) {
        return skip("the kernel does not allow profiles from outside");
    }
    let document: Value = ended.json();
    let notes = document["coverage"]["notes"].to_string();
    if notes.contains("the kernel's own time") || notes.contains("frame pointers alone") {
        return skip("the kernel shows neither its own time nor the memory of others to this user");
    }
    let samples = document["coverage"]["samples"].as_f64().unwrap();
    let coverage = |of: &str| document["coverage"][of].as_f64().unwrap();
    let known_cut = coverage("cut").min(cut * samples);
    assert!(coverage("ended") + known_cut >= 0.99 * samples, "{}", document["coverage"]);
    let group = &document["groups"][0];
    let found = callers.iter().map(|caller| {
        let mut functions = group["functions"].as_array().unwrap().iter();
        let of = functions.find(|of| of["function"] == *caller);
        of.map_or(0.0, |of| of["total_percent"].as_f64().unwrap() / 100.0)
    });
    assert_alike(callers, &true_shares(&truth), &found.collect::<Vec<_>>(), samples, "dormouse");
}

#[test]
fn callers_have_the_share_that_they_used() {
    if !have(&["g++"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("shares").display().to_string();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/shares.cc");
    let built = Command::new("g++").args(["-O2", "-o", &program, source]).status();
    assert!(built.is_ok_and(|built| built.success()));
    assert_shares(&CALLERS, &[&program], 0.0, directory.path());
    if is_long() {
        second_opinion(directory.path(), &program);
    }
}

#[test]
fn libraries_below_python_have_their_share() {
    // The one behind a script that chooses among several.
    let words = ["-c", "import sys, zlib, sqlite3; print(sys.executable)"];
    let found = Command::new("python3").args(words).output().ok().filter(|found| found.status.success());
    let Some(found) = found else { return skip("no python3 with zlib and sqlite3") };
    let python = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let directory = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/shares.py");
    // The interpreter calls itself deeply while it imports modules.
    assert_shares(&OF_LIBRARIES, &[&python, script], 0.05, directory.path());
}

/// The same by `perf record --call-graph dwarf`.
fn second_opinion(directory: &Path, program: &str) {
    if !have(&["perf"]) {
        return;
    }
    let at = |name: &str| directory.join(name).display().to_string();
    let record = Command::new("perf")
        .args([
            "record",
            "-q",
            "-F",
            "997",
            "--call-graph",
            "dwarf,16384",
            "-e",
            "cpu-clock",
            "-o",
            &at("data"),
        ])
        .args([program, &at("perf-truth"), &seconds()])
        .output();
    if !record.is_ok_and(|record| record.status.success()) {
        return skip("perf record does not run here");
    }
    let script = Command::new("perf").args(["script", "-F", "ip,sym", "-i", &at("data")]).output().unwrap();
    let text = String::from_utf8_lossy(&script.stdout).into_owned();
    let stacks: Vec<&str> =
        text.split("\n\n").filter(|stack| stack.contains("main") || stack.contains("fiber_begins")).collect();
    let found = CALLERS.map(|caller| {
        stacks.iter().filter(|stack| stack.contains(caller)).count() as f64 / stacks.len() as f64
    });
    let right = true_shares(&directory.join("perf-truth"));
    assert_alike(&CALLERS, &right, &found, stacks.len() as f64, "perf");
}

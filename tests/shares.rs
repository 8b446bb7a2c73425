//! Callers of code without frame pointers have the share of a profile that they used: of functions
//! of the C library, of signal handlers, and of caught exceptions, in a program as `g++ -O2` builds
//! it. The program measures itself by its thread's clock.

use std::fs;
use std::path::Path;
use std::process::Command;

use dormouse_testkit::c::have;
use dormouse_testkit::is_long;
use serde_json::Value;

use crate::support::{command, finish, skip};

const CALLERS: [&str; 5] = ["by_qsort", "by_memcpy", "by_send", "by_signal", "by_catch"];

/// Samples, and how many standard errors a share may be off. With five shares, three standard
/// errors fail by chance once in eighty runs: too often for a run of each day.
fn sizes() -> (u32, f64) {
    if is_long() { (5000, 3.0) } else { (1200, 4.5) }
}

/// Compares the shares that the program has measured with those that `profiler` found.
fn assert_alike(true_shares: &[f64], found: &[f64], samples: f64, profiler: &str) {
    let (_, errors) = sizes();
    for (at, caller) in CALLERS.iter().enumerate() {
        let (right, found) = (true_shares[at], found[at]);
        let error = (right * (1.0 - right) / samples).sqrt();
        assert!(
            (found - right).abs() <= errors * error,
            "{profiler}: {caller} has {found:.4} and used {right:.4} (standard error {error:.4}, {samples} samples)"
        );
    }
}

#[test]
fn callers_have_the_share_that_they_used() {
    if !have(&["g++"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/shares.cc");
    let built = Command::new("g++").args(["-O2", "-o", &at("shares"), source]).status();
    assert!(built.is_ok_and(|built| built.success()));
    let (wanted, _) = sizes();
    let seconds = (f64::from(wanted) / 1000.0).to_string();
    let ended =
        finish(command(["profile", "--json", "--hz", "1000", "--", &at("shares"), &at("truth"), &seconds]));
    if ended.code == Some(3) {
        return skip("the kernel does not allow profiles from outside");
    }
    let document: Value = ended.json();
    let notes = document["coverage"]["notes"].to_string();
    if notes.contains("the kernel's own time") || notes.contains("frame pointers alone") {
        return skip("the kernel shows neither its own time nor the memory of others to this user");
    }
    let samples = document["coverage"]["samples"].as_f64().unwrap();
    assert!(document["coverage"]["ended"].as_f64().unwrap() >= 0.99 * samples, "{document}");
    let group = &document["groups"][0];
    let found = CALLERS.map(|caller| {
        let mut functions = group["functions"].as_array().unwrap().iter();
        let of = functions.find(|of| of["function"] == caller);
        of.map_or(0.0, |of| of["total_percent"].as_f64().unwrap() / 100.0)
    });
    let true_shares = |path: &str| -> Vec<f64> {
        fs::read_to_string(path).unwrap().lines().map(|share| share.parse().unwrap()).collect()
    };
    assert_alike(&true_shares(&at("truth")), &found, samples, "dormouse");
    if is_long() {
        second_opinion(directory.path(), &seconds, true_shares);
    }
}

/// The same by `perf record --call-graph dwarf`.
fn second_opinion(directory: &Path, seconds: &str, true_shares: impl Fn(&str) -> Vec<f64>) {
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
        .args([&at("shares"), &at("perf-truth"), seconds])
        .output();
    if !record.is_ok_and(|record| record.status.success()) {
        return skip("perf record does not run here");
    }
    let script = Command::new("perf").args(["script", "-F", "ip,sym", "-i", &at("data")]).output().unwrap();
    let text = String::from_utf8_lossy(&script.stdout).into_owned();
    let stacks: Vec<&str> = text.split("\n\n").filter(|stack| stack.contains("main")).collect();
    let found = CALLERS.map(|caller| {
        stacks.iter().filter(|stack| stack.contains(caller)).count() as f64 / stacks.len() as f64
    });
    assert_alike(&true_shares(&at("perf-truth")), &found, stacks.len() as f64, "perf");
}

//! Checks by a nightly compiler: Miri, and the sanitizers of addresses and of threads.
//!
//! Where no such compiler can be installed, each check is counted as skipped.

use std::process::Command;

use crate::process::{Result, discard, program, run, target};
use crate::suite::Suite;

const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// The crates with unsafe code whose unit tests Miri runs, as far as it can, and the module, where
/// it is one.
const MIRI: [(&str, &str); 10] = [
    ("unwind", ""),
    ("maps", ""),
    ("clock", ""),
    ("sys", ""),
    ("events", ""),
    ("waits", ""),
    ("locks", ""),
    ("keys", ""),
    ("profile", ""),
    ("dormouse", "core::registry::"),
];
/// The crates whose unit tests run under the sanitizers.
const SANITIZED: [&str; 6] = ["sys", "waits", "locks", "events", "keys", "profile"];
/// Parts of the names of tests that a sanitizer cannot run, and why.
const ADDRESSES_LEAVE: &[(&str, &str)] = &[
    ("without_memory", "it ends a process that it has no memory for"),
    ("starters_of_threads_block", "it blocks signals where it starts threads"),
    ("no_page_fault_fits", "it is slow"),
];
const THREADS_LEAVE: &[(&str, &str)] = &[
    ("without_memory", "it ends a process that it has no memory for"),
    ("starters_of_threads_block", "it blocks signals where it starts threads"),
    ("no_page_fault_fits", "it is slow"),
    ("the_handler_blocks_for_a_moment", "it reports that the test's own handler allocates"),
    ("a_pipe_that_the_host_closes_ends", "it has no threads in the child of a fork"),
    ("an_abort_of_the_thread_says_why", "it has no threads in the child of a fork"),
    ("a_child_has_a_thread_of_its_own", "it has no threads in the child of a fork"),
];
/// Before the reason why it, or a part of it, did not run, a test that passes prints one of the
/// first. Miri prints one of the others before the call that it does not have, and where a test
/// asks for more memory than there is.
const LEFT_OUT: [&[&str]; 2] =
    [&[" ... ignored, ", "skipped: "], &["unsupported operation: ", "error: resource exhaustion: "]];
/// The most seconds of CPU time to build a crate's tests for Miri, and to run one of them. (Beside
/// other work a test takes longer by the clock, and is not left out for that.)
const MIRI_SECONDS: [u32; 2] = [1800, 300];
/// How much longer a command may take that waits.
const WAITING: u32 = 6;
/// The exit status of `timeout` where it has ended the command.
const TIME_IS_OVER: i32 = 124;
/// The name of the signal that ends a process that has used its CPU time, in cargo's report.
const CPU_IS_OVER: &str = "SIGXCPU";

fn nightly(line: &str) -> Command {
    let mut command = program(&format!("rustup run nightly {line}"));
    command.env("CARGO_TERM_COLOR", "never").env("CARGO_INCREMENTAL", "0").env_remove("CARGO");
    command
}

/// Whether there is a nightly compiler with these components. Installs it if possible.
fn has_nightly(suite: &mut Suite, what: &str) -> bool {
    let install = "rustup toolchain install nightly --profile minimal --no-self-update";
    let is_there = run(&mut program(&format!("{install} --component miri,rust-src"))).is_ok();
    if !is_there {
        suite.skip(&format!("{what}: no nightly compiler can be installed"));
    }
    is_there
}

/// Runs each unit test of these crates under Miri, by itself: one that makes a call which Miri does
/// not have is skipped, and the others go on.
pub(crate) fn miri(suite: &mut Suite) -> Result {
    if !has_nightly(suite, "Miri") {
        return Ok(());
    }
    let folder = target().join("miri");
    let mut faults = Vec::new();
    for (name, module) in MIRI {
        let miri = |seconds: u32, arguments: &[&str]| {
            let limits = format!("prlimit --cpu={seconds}:{} timeout {0}", WAITING * seconds);
            let mut command = program(&format!("{limits} rustup run nightly cargo miri test -q --locked"));
            command.env_remove("CARGO").env("CARGO_TARGET_DIR", &folder);
            // Threads that live as long as the process have memory that is never freed.
            command.env("MIRIFLAGS", "-Zmiri-strict-provenance -Zmiri-disable-isolation -Zmiri-ignore-leaks");
            command.env("PROPTEST_CASES", "2");
            command.env("DORMOUSE_STRESS", "10").env("DORMOUSE_STRESS_SECONDS", "1");
            let package = if name == "dormouse" { name.to_owned() } else { format!("dormouse-{name}") };
            command.args(["-p", &package, "--lib", "--"]).args(arguments);
            let output = command.output().map_err(|why| format!("miri: {why}"))?;
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            Ok::<_, String>((output.status, text.into_owned()))
        };
        let [building, running] = MIRI_SECONDS;
        let (status, listed) = miri(building, &["--list"])?;
        if !status.success() {
            return Err(format!("{name} does not build for Miri:\n{listed}"));
        }
        let (mut passed, mut left) = (0, 0);
        let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        for test in tests.filter(|test| test.starts_with(module)) {
            let (status, text) = miri(running, &["--exact", "--format=pretty", test])?;
            let marks = LEFT_OUT[usize::from(!status.success())];
            let reason = |line: &str| marks.iter().find_map(|mark| Some(line.split_once(mark)?.1.to_owned()));
            let is_over = status.code() == Some(TIME_IS_OVER) || text.contains(CPU_IS_OVER);
            let is_over = is_over.then(|| format!("{running} s of CPU time are not enough"));
            match text.lines().find_map(reason).or(is_over) {
                Some(why) => {
                    left += 1;
                    suite.skip(&format!("Miri, dormouse-{name}: {why}"));
                }
                None if status.success() => passed += 1,
                None => {
                    println!("{text}");
                    faults.push(format!("{name} {test}"));
                }
            }
        }
        println!("{name}: {passed} tests under Miri, {left} skipped");
    }
    discard(&[folder])?;
    if faults.is_empty() { Ok(()) } else { Err(format!("Miri finds faults in {}", faults.join(", "))) }
}

/// Runs unit tests under the sanitizers.
pub(crate) fn sanitizers(suite: &mut Suite) -> Result {
    if !has_nightly(suite, "sanitizers") {
        return Ok(());
    }
    // The standard library has to be built for the sanitizer of threads, whose view it would hide;
    // and that sanitizer has no room for what keys write into code.
    let threads = ("thread", THREADS_LEAVE, "-Zbuild-std", " --cfg dormouse_fallback");
    for (sanitizer, left, build, flags) in [("address", ADDRESSES_LEAVE, "", ""), threads] {
        let folder = target().join(sanitizer);
        let mut test =
            nightly(&format!("cargo test --locked --lib --no-fail-fast {build} --target {TRIPLE}"));
        test.args(SANITIZED.iter().flat_map(|name| ["-p".to_owned(), format!("dormouse-{name}")]));
        test.env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}{flags}")).env("CARGO_TARGET_DIR", &folder);
        // Threads that live as long as the process have memory that is never freed; memory is
        // asked for that is not there; bounds of stacks are compared with the stack pointer; and a
        // thread of ours has no stack for signals.
        let options =
            "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0:use_sigaltstack=0";
        test.env("ASAN_OPTIONS", options).env("TSAN_OPTIONS", "allocator_may_return_null=1");
        for (name, why) in left {
            suite.skip(&format!("the sanitizer of {sanitizer}: {name}: {why}"));
        }
        test.arg("--").args(left.iter().flat_map(|(name, _)| ["--skip", name]));
        run(&mut test)?;
        discard(&[folder])?;
    }
    Ok(())
}

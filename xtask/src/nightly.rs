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
/// Crates whose unit tests run under the sanitizer of addresses.
const ADDRESSES: &[&str] = &["sys", "waits", "locks", "events", "keys", "profile"];
/// Those that run under the sanitizer of threads, which delivers signals late.
const THREADS: &[&str] = &["locks", "events", "keys"];
/// Ends of a test by a call that Miri does not have, by the type that rustix gives an argument of
/// `syscall`, and by a request for more memory than there is.
const NOT_OURS: [&str; 3] = [
    "unsupported operation",
    "incorrect c-variadic argument type for `syscall",
    "error: resource exhaustion",
];
/// The longest time to build a crate's tests for Miri, and to run one of them.
const MIRI_SECONDS: [u32; 2] = [1800, 300];

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
            let mut command =
                program(&format!("timeout {seconds} rustup run nightly cargo miri test -q --locked"));
            command.env_remove("CARGO").env("CARGO_TARGET_DIR", &folder);
            // Threads that live as long as the process have memory that is never freed.
            command.env("MIRIFLAGS", "-Zmiri-strict-provenance -Zmiri-disable-isolation -Zmiri-ignore-leaks");
            command.env("PROPTEST_CASES", "2");
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
            let (status, text) = miri(running, &["--exact", test])?;
            if status.success() {
                passed += 1;
            } else if NOT_OURS.iter().any(|why| text.contains(why)) || status.code() == Some(124) {
                left += 1;
                suite.skip(&format!("Miri has no such call, or no time: dormouse-{name}"));
            } else {
                println!("{text}");
                faults.push(format!("{name} {test}"));
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
    let threads = ("thread", THREADS, "-Zbuild-std", " --cfg dormouse_fallback");
    for (sanitizer, crates, build, flags) in [("address", ADDRESSES, "", ""), threads] {
        let folder = target().join(sanitizer);
        let mut test =
            nightly(&format!("cargo test --locked --lib --no-fail-fast {build} --target {TRIPLE}"));
        test.args(crates.iter().flat_map(|name| ["-p".to_owned(), format!("dormouse-{name}")]));
        test.env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}{flags}")).env("CARGO_TARGET_DIR", &folder);
        // Threads that live as long as the process have memory that is never freed; memory is
        // asked for that is not there; and bounds of stacks are compared with the stack pointer.
        let options = "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0";
        test.env("ASAN_OPTIONS", options).env("TSAN_OPTIONS", "allocator_may_return_null=1");
        // The sanitizers end a process that they cannot have memory for, block signals where they
        // start threads, and are slow.
        let skipped = ["without_memory", "starters_of_threads_block", "no_page_fault_fits"];
        test.arg("--").args(skipped.iter().flat_map(|name| ["--skip", name]));
        run(&mut test)?;
        discard(&[folder])?;
    }
    Ok(())
}

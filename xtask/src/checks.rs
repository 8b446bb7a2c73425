//! The steps that check: formatting, lints, pages, builds and tests.

use crate::process::{Result, cargo, discard, discard_tests, output, program, run, target};
use crate::suite::Suite;

/// Workspaces beside ours, whose packages no step of the workspace formats.
const BESIDE: [&str; 3] =
    ["crates/keys/tests/layout/Cargo.toml", "crates/dormouse/tests/copies/Cargo.toml", "fuzz/Cargo.toml"];

/// Workloads that `cargo xtask bench` runs if none is named. Two others build programs for release
/// once more, each with features of its own, and `pound` fails beside other work of the machine.
const SHORT: [&str; 7] = ["keys", "clock", "maps", "switch", "record", "waits", "metrics"];
const ALL: [&str; 18] = [
    "keys",
    "poll",
    "groups",
    "clock",
    "alloc",
    "breakpoint",
    "maps",
    "pound",
    "switch",
    "profile",
    "stacks",
    "record",
    "waits",
    "metrics",
    "latency",
    "teaparty",
    "self",
    "embed",
];

pub(crate) fn format() -> Result {
    run(&mut cargo("fmt --all --check"))?;
    BESIDE.iter().try_for_each(|path| run(cargo("fmt --all --check --manifest-path").arg(path)))
}

pub(crate) fn lints() -> Result {
    run(&mut cargo("clippy --workspace --all-targets --all-features --locked -- -D warnings"))
}

pub(crate) fn documentation() -> Result {
    let mut doc = cargo("doc --workspace --no-deps --all-features --locked");
    run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    discard(&[target().join("doc")])
}

/// The command as users build it, and its demo.
pub(crate) fn release(is_long: bool) -> Result {
    let mut build = cargo("build --release --locked");
    if !is_long {
        // Nothing in a short run shows lines.
        build.env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    }
    run(&mut build)?;
    run(program("timeout 120")
        .arg(target().join("release/dormouse"))
        .args(["demo", "--for", "5s", "--plain"]))?;
    if is_long { Ok(()) } else { discard(&[target().join("release")]) }
}

pub(crate) fn benches() -> Result {
    bench(&ALL)?;
    discard(&[target().join("release"), target().join("bench")])
}

/// Each workload in a process of its own. The program is built by itself: beside it the command
/// would get the features that the bench needs of the libraries.
pub(crate) fn bench(workloads: &[impl AsRef<str>]) -> Result {
    if workloads.is_empty() {
        return bench(&SHORT);
    }
    run(&mut cargo("build --release --locked --package dormouse-bench"))?;
    workloads.iter().try_for_each(|workload| {
        let mut bench = program("timeout 900");
        run(bench.arg(target().join("release/dormouse")).args(["bench", workload.as_ref(), "--quick"]))
    })
}

/// The demo service without dormouse: what benches compare with.
pub(crate) fn bare(suite: &mut Suite) -> Result {
    suite.run("--package dormouse-teaparty --no-default-features", "", &[])?;
    discard_tests()
}

/// Static keys where nothing is patched.
pub(crate) fn fallback(suite: &mut Suite) -> Result {
    with_flags(suite, "--cfg dormouse_fallback", "--package dormouse-keys", "")?;
    discard_flags()
}

/// All features with dormouse turned off. Tokio with hooks around polls and with all its figures.
pub(crate) fn flags(suite: &mut Suite) -> Result {
    const FLAGS: &str = "--cfg tokio_unstable -D warnings";
    let mut off = cargo("check --locked --package dormouse --all-features");
    run(off.args(["--target", &host()?]).env("RUSTFLAGS", "--cfg dormouse_off -D warnings"))?;
    let chosen =
        "--package dormouse --package dormouse-waits --package dormouse-teaparty --features dormouse/tokio";
    with_flags(suite, FLAGS, chosen, "--lib")?;
    let modules = "poll_hooks:: spawns:: places:: instrumented:: responses:: runtimes::";
    with_flags(suite, FLAGS, chosen, &format!("--test all -- {modules}"))?;
    discard_flags()
}

/// Samples where walks are built without optimisation, as they are in a service whose developers
/// try it in a debug build: there a walk has no room on an alternate stack of the standard library.
/// Samples and hits also with all optimisation, as in services: how much room the handlers need
/// depends on it.
pub(crate) fn plain(suite: &mut Suite) -> Result {
    const CHOSEN: &str = "--package dormouse-profile --package dormouse-breakpoints";
    let plain = format!("{CHOSEN} --config profile.dev.package.dormouse-unwind.opt-level=0");
    suite.run(&plain, "--test all -- cpu::host:: cpu::samples:: faults:: watch::hits::", &[])?;
    let optimised = format!("{CHOSEN} --release");
    suite.run(&optimised, "--test all -- cpu::host:: cpu::small_stacks:: watch::stray:: watch::hits::", &[])
}

/// Tests that are built with flags of the compiler's. Beside `--target`, macros and build scripts
/// take no such flags, and are not built again.
fn with_flags(suite: &mut Suite, flags: &str, chosen: &str, choice: &str) -> Result {
    let chosen = format!("{chosen} --target {}", host()?);
    suite.run(&chosen, choice, &[("RUSTFLAGS", flags)])
}

fn discard_flags() -> Result {
    discard(&[target().join(host()?), target().join("tmp")])
}

fn host() -> Result<String> {
    output(&mut program("rustc --print host-tuple"))
}

/// Parsers of files and of the protocol get random bytes, for a second each.
pub(crate) fn fuzz(suite: &mut Suite) -> Result {
    let long = [("DORMOUSE_STRESS_SECONDS", "60")];
    let settings = if suite.is_long { &long[..] } else { &[] };
    let folder = target();
    let chosen = format!(
        "--manifest-path fuzz/Cargo.toml --no-default-features --target-dir {}",
        folder.to_str().ok_or("the target directory has no name in UTF-8")?
    );
    suite.run(&chosen, "", settings)?;
    if suite.is_long {
        // The reports that `compare` reads.
        suite.run("--package dormouse-bench", "--bin dormouse-bench", settings)?;
    }
    discard_tests()
}

/// Models of what threads do to one another, in all orders or in those with few preemptions.
pub(crate) fn models(suite: &mut Suite) -> Result {
    const MODELED: &str = "--package dormouse-api --package dormouse-events --package dormouse-keys \
                           --package dormouse-locks --package dormouse-maps --package dormouse-sys \
                           --package dormouse-waits";
    let folder = target().join("models");
    let chosen = format!("--release {MODELED} --target-dir {}", folder.display());
    suite.run(&chosen, "--lib -- interleavings", &[("RUSTFLAGS", "--cfg loom")])?;
    discard(&[folder])
}

pub(crate) fn tests(suite: &mut Suite) -> Result {
    let settings: &[_] = if suite.is_long { &[("DORMOUSE_CI", "long")] } else { &[] };
    suite.run("--workspace", "", settings)?;
    if suite.is_long { discard_tests() } else { Ok(()) }
}

//! arm64: a check that all compiles for it, and in long runs tests in a virtual machine with
//! Debian's kernel.
//!
//! Compiler, linker, kernel and shell are Debian's packages; each test program runs in a machine of
//! its own (`machine`).
//!
//! The machine's processors take turns (`thread=single`): QEMU before 8.1 may go on with an old
//! translation of code that another processor changes. They are of a kind that exists: with all
//! features that it knows (`-cpu max`), QEMU 7.2 also goes on with old translations where code was
//! mapped anew. It has no cache of instructions either, so the maintenance of that cache is not
//! tested here.

use std::path::Path;
use std::process::Command;

use crate::install::install;
use crate::machine::Machine;
use crate::process::{Result, cargo, discard, is_there, output, program, run, target};
use crate::suite::Suite;

pub(crate) const TRIPLE: &str = "aarch64-unknown-linux-gnu";

const MACHINE: Machine = Machine {
    name: "arm64",
    kernel: "linux-image-6.12-cloud-arm64:arm64",
    packages: &["busybox-static:arm64", "libc6:arm64", "libgcc-s1:arm64"],
    libraries: (
        "lib/aarch64-linux-gnu",
        &["ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1"],
    ),
    emulator: "qemu-system-aarch64 -M virt,gic-version=3 -cpu neoverse-n1 \
               -accel tcg,thread=single -smp 2 -m 2G",
    console: "ttyAMA0",
    strip: "aarch64-linux-gnu-strip",
};

/// The crates that differ most between processors.
const TESTED: &str =
    "--package dormouse-keys --package dormouse-clock --package dormouse-sys --package dormouse-unwind";

/// Checks that the crates that services embed, and the command, compile for arm64: nothing is
/// linked for it. A long run checks the whole workspace, and runs tests and the demo in the
/// machine.
pub(crate) fn step(suite: &mut Suite) -> Result {
    let is_long = suite.is_long;
    if is_long { install_compilers() } else { install_rust() }?;
    let folder = target().join("arm64");
    let chosen = if is_long {
        "--workspace"
    } else {
        "--package dormouse --package dormouse-capi --package dormouse-cli --no-default-features \
         --features dormouse-cli/serve"
    };
    let mut check = cargo(&format!("check {chosen} --target {TRIPLE} --locked --target-dir"));
    run(check.arg(&folder).env("RUSTC", "/usr/bin/rustc").env("RUSTFLAGS", "-D warnings"))?;
    if is_long {
        match MACHINE.fetch() {
            Ok(_) => {
                test(suite, &folder)?;
                demo(&folder)?;
            }
            Err(why) => suite.skip(&format!("there is no virtual machine of arm64: {why}")),
        }
    }
    discard(&[folder])
}

/// How the C library is built for arm64.
pub(crate) const MAKE: [&str; 3] = [
    "CC=aarch64-linux-gnu-gcc",
    "OBJCOPY=aarch64-linux-gnu-objcopy",
    "CARGOFLAGS=--locked --target aarch64-unknown-linux-gnu",
];
pub(crate) const STRIP: [&str; 1] = ["--strip-program=aarch64-linux-gnu-strip"];

/// The compilers that build for arm64.
const COMPILERS: [(&str, &str); 2] =
    [("RUSTC", "/usr/bin/rustc"), ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")];

/// A command that builds for arm64, by Debian's compilers.
pub(crate) fn building(mut command: Command) -> Command {
    command.envs(COMPILERS);
    command
}

/// Runs the command of an archive.
pub(crate) fn try_command(command: &Path) -> Result {
    if let Err(why) = MACHINE.fetch() {
        println!("{} was not tried, because there is no machine: {why}", command.display());
        return Ok(());
    }
    let words = [command.to_string_lossy().into_owned(), "--version".to_owned()];
    match run_there(&words)? {
        0 => Ok(()),
        code => Err(format!("{} --version: {code}", command.display())),
    }
}

/// Debian's compiler, which has a standard library for arm64.
fn install_rust() -> Result {
    if Path::new("/usr/lib/rustlib").join(TRIPLE).is_dir() {
        return Ok(());
    }
    add_architecture()?;
    install(&["rustc-web", "libstd-rust-web-dev:arm64"])
}

pub(crate) fn install_compilers() -> Result {
    install_rust()?;
    add_architecture()?;
    let mut missing = Vec::new();
    if !is_there("aarch64-linux-gnu-gcc") {
        missing.extend(["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"]);
    }
    if !is_there("qemu-system-aarch64") {
        missing.push("qemu-system-arm");
    }
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

fn test(suite: &mut Suite, folder: &Path) -> Result {
    let runner = std::env::current_exe().map_err(|why| why.to_string())?;
    let runner = format!("{} vm", runner.display());
    let folder = folder.to_str().ok_or("the target directory has no name in UTF-8")?;
    let [compiler, linker] = COMPILERS;
    let settings = [
        compiler,
        linker,
        ("CARGO_TARGET_DIR", folder),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &runner),
        ("CARGO_PROFILE_DEV_DEBUG", "0"),
        // One processor that works in turn for two is slow enough.
        ("CARGO_PROFILE_DEV_OPT_LEVEL", "1"),
    ];
    suite.run(&format!("{TESTED} --target {TRIPLE}"), "--tests", &settings)
}

/// The command and its demo: a service under load, whose groups are all there.
fn demo(folder: &Path) -> Result {
    let mut build = building(cargo(&format!("build --locked --target {TRIPLE} --target-dir")));
    run(build.arg(folder).env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_OPT_LEVEL", "1"))?;
    let command = folder.join(TRIPLE).join("debug/dormouse");
    let words = [&*command.to_string_lossy(), "demo", "--for", "20s", "--plain"].map(str::to_owned);
    match run_there(&words)? {
        0 => Ok(()),
        code => Err(format!("the demo ended with {code} in the machine")),
    }
}

/// Debian's packages of arm64 can be installed beside ours.
fn add_architecture() -> Result {
    let known = output(&mut program("dpkg --print-foreign-architectures"))?;
    if known.lines().any(|line| line == "arm64") {
        return Ok(());
    }
    run(&mut program("dpkg --add-architecture arm64"))?;
    run(&mut program("apt-get update -qq"))
}

/// Runs a program with arguments in a machine, shows what it writes, and returns its exit code.
/// Cargo calls it for each test program.
pub(crate) fn run_there(words: &[String]) -> Result<u8> {
    MACHINE.run(words, &[])
}

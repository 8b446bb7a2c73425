//! arm64: tests in a virtual machine with Debian's kernel, and in long runs a check that the whole
//! workspace compiles for it.
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
    suite: None,
    packages: &["busybox-static:arm64", "libc6:arm64", "libgcc-s1:arm64"],
    libraries: (
        "lib/aarch64-linux-gnu",
        &["ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1"],
    ),
    emulator: "qemu-system-aarch64 -M virt,gic-version=3 -accel tcg,thread=single -smp 2 -m 2G",
    processor: "neoverse-n1",
    console: "ttyAMA0",
    strip: None,
};

/// One whose pages have 16 KiB.
const LARGE_PAGES: Machine =
    Machine { name: "arm64-16k", kernel: "linux-image-6.12-arm64-16k:arm64", ..MACHINE };

/// One whose processor knows the marks of guarded code (BTI).
const MARKED: Machine = Machine { processor: "max,pauth-impdef=on", ..MACHINE };

/// The word before a program that runs it there.
pub(crate) const WITH_LARGE_PAGES: &str = "--16k";

/// The crates that differ most between processors, and the command. All are chosen in each call of
/// cargo, so that the features of their dependencies are the same, and none is built twice.
const TESTED: &str = "--package dormouse-keys --package dormouse-clock --package dormouse-sys \
                      --package dormouse-unwind --package dormouse-cli --no-default-features \
                      --features dormouse-keys/select,dormouse-cli/demo";

/// Tests for which the emulator needs more than ten seconds. They are left to long runs.
const SLOW: [&str; 19] = [
    "balance::keys_follow_baselines_and_leases",
    "fork::a_vfork_child_runs_through_batches",
    "patching::no_branch_is_wrong_under_flips",
    "patching::no_branch_is_wrong_without_membarrier",
    "life::a_signal_inside_a_read_does_no_harm",
    "life::a_threaded_processs_child_keeps_the_tier",
    "life::ten_thousand_short_threads_leave_nothing",
    "tiers::a_foreign_rseq_field_costs_the_tier",
    "tiers::a_killing_filter_is_not_met_unasked",
    "tiers::each_tier_of_the_program_is_right",
    "tiers::it_stays_within_its_bound_beside_competitors",
    "tiers::pages_take_a_quarter_of_the_budget",
    "tiers::without_a_descriptor_the_next_tier_is_taken",
    "starts::threads_begin_in_children_of_busy_parents",
    "tests::starters_of_threads_block_for_a_moment",
    "tests::a_child_finds_every_mutex_free_and_whole",
    "tests::a_slow_reader_sees_whole_records_in_order",
    "rows::the_longest_table_makes_room",
    "storm::stacks_stay_whole_in_a_storm",
];

/// Tests that compare with a time or a rate which the emulator does not reach, and those that read
/// all debug information of their program, which was not over after twenty minutes. The page of
/// arm64 has the reason of each. No run has them.
const LEFT: [&str; 22] = [
    "outside::each_write_of_each_thread_counts_once",
    "outside::each_call_of_each_thread_counts_once",
    "outside::limits::hits_without_a_record_are_paid_for",
    "watch::churn::every_write_of_every_thread_counts_once",
    "watch::limits::a_thousand_threads_are_armed_at_once",
    "panics::a_hook_that_aborts_leaves_a_file",
    "panics::a_panic_that_ends_all_has_a_file",
    "panics::a_panic_while_unwinding_has_a_file",
    "panics::the_guard_of_a_main_task_waits_too",
    "symbols::own_function_has_name_offset_and_line",
    "symbols::ended_process_keeps_its_names",
    "symbols::inlined_functions_stand_before_their_host",
    "symbols::library_without_debug_information_has_names",
    "symbols::vdso_has_names",
    "symbols::deleted_file_is_found_not_its_successor",
    "symbols::file_named_like_a_deleted_one_is_found",
    "symbols::memfd_is_found",
    "symbols::stripped_file_leaves_object_and_offset",
    "symbols::separate_debug_information_is_found_by_build_id",
    "symbols::function_path_comes_from_its_symbol",
    "symbols::marks_in_code_are_no_functions",
    "symbols::broken_files_only_lose_symbols",
];

/// The workspace optimises these for its own tests. No test here needs them to be fast.
const OPTIMISED: [&str; 5] = ["dormouse-events", "dormouse-maps", "blazesym", "lzma-rust2", "libsqlite3-sys"];

/// The crates that long runs test, too.
const LONG: &str = "--package dormouse-maps --package dormouse-events --package dormouse-waits \
                    --package dormouse-locks --package dormouse-profile \
                    --package dormouse-breakpoints --package dormouse --features dormouse/gzip";

/// Builds what services embed, and the command, with warnings denied, and runs tests and the demo
/// in the machine. A long run checks the whole workspace before, runs all tests of these crates and
/// of more, and runs those that are not slow once more with pages of 16 KiB.
pub(crate) fn step(suite: &mut Suite) -> Result {
    if let Err(why) = install_compilers() {
        if suite.is_long {
            return Err(why);
        }
        suite.skip(&format!("nothing is built for arm64: {why}"));
        return Ok(());
    }
    let folder = target().join("arm64");
    let mut settings = settings(suite.is_long, &folder)?;
    let mut chosen = format!("{TESTED} --target {TRIPLE}");
    if suite.is_long {
        let mut check = cargo(&format!("check --workspace --target {TRIPLE} --locked"));
        run(check.envs(settings.clone()))?;
        chosen.extend([" ", LONG]);
    } else {
        chosen.extend(OPTIMISED.map(|name| format!(" --config profile.dev.package.{name}.opt-level=0")));
    }
    let mut build = cargo(&format!("build {chosen} --package dormouse-capi --locked --lib --bin dormouse"));
    run(build.args(["--test", "all"]).envs(settings.clone()))?;
    match MACHINE.fetch() {
        Ok(_) => {
            let skip = |names: &[&str]| names.iter().fold(String::new(), |all, name| all + " --skip " + name);
            let (left, slow) = (skip(&LEFT), skip(&SLOW));
            let all = "--lib --test all --";
            if suite.is_long {
                suite.run(&chosen, &format!("{all}{left}"), &borrowed(&settings))?;
                LARGE_PAGES.fetch()?;
                let runner = settings.iter_mut().find(|(name, _)| *name == RUNNER);
                runner.ok_or("there is no runner")?.1.extend([" ", WITH_LARGE_PAGES]);
            }
            suite.run(&chosen, &format!("{all}{left}{slow}"), &borrowed(&settings))?;
            guarded(&folder)?;
            demo(&folder)?;
        }
        Err(why) => suite.skip(&format!("there is no virtual machine of arm64: {why}")),
    }
    discard(&[folder])
}

/// The variable with the program that runs tests.
const RUNNER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER";

fn borrowed<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    settings.iter().map(|(name, value)| (*name, &**value)).collect()
}

/// The compilers, and how they build: a short run as fast as they can, and a long one so that one
/// processor, which works in turn for two, is fast enough.
fn settings(is_long: bool, folder: &Path) -> Result<Vec<(&'static str, String)>> {
    let runner = std::env::current_exe().map_err(|why| why.to_string())?;
    let folder = folder.to_str().ok_or("the target directory has no name in UTF-8")?;
    let mut settings = COMPILERS.map(|(name, value)| (name, value.to_owned())).to_vec();
    settings.extend([
        ("CARGO_TARGET_DIR", folder.to_owned()),
        (RUNNER, format!("{} vm", runner.display())),
        // Some tests want lines and inlined functions.
        ("CARGO_PROFILE_DEV_DEBUG", if is_long { "line-tables-only" } else { "0" }.to_owned()),
        ("CARGO_PROFILE_DEV_OPT_LEVEL", if is_long { "1" } else { "0" }.to_owned()),
        ("RUSTFLAGS", "-D warnings".to_owned()),
    ]);
    Ok(settings)
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

/// Switches a key in guarded code of a library in C.
fn guarded(folder: &Path) -> Result {
    let built = folder.join(TRIPLE).join("debug");
    let [library, main] = ["libguarded.so", "guarded"].map(|name| built.join(name));
    let compile = |flags: &str, file: &str, to: &Path| {
        let compiler = "aarch64-linux-gnu-gcc -std=c11 -O1 -Wall -Wextra -Werror -Icrates/capi/include";
        let mut command = program(&format!("{compiler} {flags} crates/capi/tests/programs/{file} -o"));
        command.arg(to);
        command
    };
    // Files that the compiler adds have no marks.
    let marks = "-shared -fPIC -nostartfiles -mbranch-protection=standard -Wl,-z,force-bti";
    run(&mut compile(marks, "guarded_library.c", &library))?;
    let mut link = compile("", "guarded.c", &main);
    link.arg(&library).arg(built.join("libdormouse_capi.a"));
    link.arg(format!("-Wl,-rpath,{}", built.display())).args(["-lpthread", "-ldl", "-lm", "-lrt"]);
    run(&mut link)?;
    match MARKED.run(&[main.to_string_lossy().into_owned()], &[library])? {
        0 => Ok(()),
        code => Err(format!("guarded.c ended with {code} in the machine")),
    }
}

/// The demo of the command: a service under load.
fn demo(folder: &Path) -> Result {
    let command = folder.join(TRIPLE).join("debug/dormouse");
    let words = [&*command.to_string_lossy(), "demo", "--for", "5s", "--plain"].map(str::to_owned);
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

/// [`run_there`], with pages of 16 KiB.
pub(crate) fn run_with_large_pages(words: &[String]) -> Result<u8> {
    LARGE_PAGES.run(words, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that no test has would leave none out.
    #[test]
    fn each_test_left_out_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut list = program("git ls-files crates/*.rs");
        let files = output(list.current_dir(root)).unwrap();
        let sources = files.lines().map(|name| std::fs::read_to_string(root.join(name)).unwrap());
        let sources: Vec<_> = sources.collect();
        for name in SLOW.into_iter().chain(LEFT) {
            let name = name.rsplit_once("::").map_or(name, |(_, name)| name);
            assert!(sources.iter().any(|source| source.contains(&format!("fn {name}("))), "{name}");
        }
    }
}

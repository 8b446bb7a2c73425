//! Virtual machines of amd64, for what this machine may lack: control groups of version 2 that
//! limit CPU time, which a host has only if nothing has the controller in version 1; and other
//! kernels.

use std::path::{Path, PathBuf};

use crate::install::install;
use crate::machine::Machine;
use crate::process::{Result, cargo, is_there, output, program, run, target};
use crate::suite::Suite;

const MACHINE: Machine = Machine {
    name: "amd64",
    kernel: "linux-image-6.12-cloud-amd64",
    suite: None,
    packages: &["busybox-static:amd64", "libc6:amd64", "libgcc-s1:amd64"],
    libraries: ("lib/x86_64-linux-gnu", &["ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libgcc_s.so.1"]),
    // Processors that take turns: else QEMU 7.2 may go on with an old translation of code that the
    // kernel changes.
    emulator: "qemu-system-x86_64 -M q35 -accel tcg,thread=single -smp 2 -m 2G",
    processor: "max",
    // On a busy host the emulated timer is late, which the kernel would take for a broken one.
    console: "ttyS0 no_timer_check",
    strip: Some("strip"),
};

/// Machines with other kernels, by the word before a program that runs there.
const KERNELS: [(&str, Machine); 3] = [
    (
        "--linux-5.10",
        Machine { name: "amd64-5.10", kernel: "linux-image-5.10", suite: Some("bullseye"), ..MACHINE },
    ),
    ("--linux-6.1", Machine { name: "amd64-6.1", kernel: "linux-image-cloud-amd64", ..MACHINE }),
    (
        "--linux-7",
        Machine {
            name: "amd64-7",
            kernel: "linux-binary-7",
            suite: Some("forky"),
            // Debian has that kernel refuse the memory file, which tests write through.
            console: "ttyS0 no_timer_check proc_mem.force_override=always",
            ..MACHINE
        },
    ),
];

/// Parts of the names of tests: limits that stall polls, and pressure.
const TESTS: &str = "pressure_is_known a_cpu_limit_is_a_wait a_limit_around_the_group";

/// Modules of tests of what differs between kernels: writing code, watches, their refusals.
const DIFFERS: &str = "writers:: resist:: outside:: watch::life";
/// Parts of the names of those for which the emulator has no time.
const LATE: &str = "--skip each_write_of_each_thread --skip a_panic_in_the_writer --skip a_thousand_threads";

/// Runs these tests in the machine.
pub(crate) fn step(suite: &mut Suite) -> Result {
    if !has_machine(&MACHINE, suite) {
        return Ok(());
    }
    // An emulated processor does little in a short time.
    let settings = [(RUNNER, &*runner("")?), ("DORMOUSE_CI", "long")];
    let choice = format!("--test all --test acceptance -- {TESTS}");
    suite.run("--workspace", &choice, &settings)
}

/// Runs the demo, and the tests of what differs, with each of the other kernels.
pub(crate) fn kernels(suite: &mut Suite) -> Result {
    run(&mut cargo("build --locked --package dormouse-cli"))?;
    let command = target().join("debug/dormouse").to_string_lossy().into_owned();
    for (word, machine) in &KERNELS {
        if !has_machine(machine, suite) {
            continue;
        }
        let demo = [&*command, "demo", "--for", "20s", "--plain"].map(str::to_owned);
        match machine.run(&demo, &[])? {
            0 => {}
            code => return Err(format!("the demo ended with {code} under {}", machine.name)),
        }
        let chosen = "--package dormouse-keys --package dormouse-breakpoints";
        suite.run(chosen, &format!("--test all -- {DIFFERS} {LATE}"), &[(RUNNER, &*runner(word)?)])?;
    }
    Ok(())
}

/// The variable with the program that runs tests.
const RUNNER: &str = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";

fn runner(word: &str) -> Result<String> {
    let this = std::env::current_exe().map_err(|why| why.to_string())?;
    Ok(format!("{} vm {word}", this.display()))
}

fn has_machine(machine: &Machine, suite: &mut Suite) -> bool {
    if cfg!(not(target_arch = "x86_64")) {
        suite.skip("a virtual machine of amd64 needs programs for it");
        return false;
    }
    let installed = if is_there("qemu-system-x86_64") { Ok(()) } else { install(&["qemu-system-x86"]) };
    let why = installed.and_then(|()| machine.fetch().map(drop)).err();
    if let Some(why) = &why {
        suite.skip(&format!("there is no virtual machine of {}: {why}", machine.name));
    }
    why.is_none()
}

pub(crate) fn names_kernel(word: &str) -> bool {
    KERNELS.iter().any(|(name, _)| *name == word)
}

/// Runs a test program in the machine, with the command beside it, if it has any of the tests that
/// its arguments choose.
pub(crate) fn run_there(words: &[String]) -> Result<u8> {
    let kernel = KERNELS.iter().find(|(word, _)| Some(*word) == words.first().map(|it| &**it));
    let (machine, words) = kernel.map_or((&MACHINE, words), |(_, machine)| (machine, &words[1..]));
    let [file, arguments @ ..] = words else { return Err("a program is missing".to_owned()) };
    let listed = output(program(file).args(arguments).arg("--list"))?;
    if !listed.lines().any(|line| line.ends_with(": test")) {
        println!("{file}: none of its tests is wanted");
        return Ok(0);
    }
    let command = Path::new(file).ancestors().nth(2).map(|folder| folder.join("dormouse"));
    let command = command.filter(|command| command.exists());
    machine.run(words, &command.into_iter().collect::<Vec<PathBuf>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of a name that no test has would choose nothing, and pass.
    #[test]
    fn each_choice_has_a_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut list = program("git ls-files crates/dormouse/tests/*.rs tests/*.rs");
        let files = output(list.current_dir(root)).unwrap();
        let sources = files.lines().map(|name| std::fs::read_to_string(root.join(name)).unwrap());
        let sources: Vec<_> = sources.collect();
        for choice in TESTS.split(' ') {
            let is_there = |source: &String| source.contains(&format!("fn {choice}"));
            assert!(sources.iter().any(is_there), "{choice}");
        }
    }
}

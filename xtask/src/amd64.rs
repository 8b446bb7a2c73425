//! A virtual machine of amd64, for what this machine may lack: control groups of version 2 that
//! limit CPU time, which a host has only if nothing has the controller in version 1.

use std::path::{Path, PathBuf};

use crate::install::install;
use crate::machine::Machine;
use crate::process::{Result, is_there, output, program};
use crate::suite::Suite;

/// Its processors run at once. If they took turns, as those of arm64 do, each would stand still for
/// a tenth of a second in the middle of what tests measure.
const MACHINE: Machine = Machine {
    name: "amd64",
    kernel: "linux-image-6.12-cloud-amd64",
    packages: &["busybox-static:amd64", "libc6:amd64", "libgcc-s1:amd64"],
    libraries: ("lib/x86_64-linux-gnu", &["ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libgcc_s.so.1"]),
    // In turns: else QEMU 7.2 may go on with an old translation of code that the kernel changes.
    emulator: "qemu-system-x86_64 -M q35 -cpu max -accel tcg,thread=single -smp 2 -m 2G",
    // On a busy host the emulated timer is late, which the kernel would take for a broken one.
    console: "ttyS0 no_timer_check",
    strip: Some("strip"),
};

/// Parts of the names of tests: limits that stall polls, and pressure.
const TESTS: &str = "pressure_is_known a_cpu_limit_is_a_wait a_limit_around_the_group";

/// Runs these tests in the machine.
pub(crate) fn step(suite: &mut Suite) -> Result {
    if cfg!(not(target_arch = "x86_64")) {
        suite.skip("a virtual machine of amd64 needs programs for it");
        return Ok(());
    }
    let installed = if is_there("qemu-system-x86_64") { Ok(()) } else { install(&["qemu-system-x86"]) };
    if let Err(why) = installed.and_then(|()| MACHINE.fetch().map(drop)) {
        suite.skip(&format!("there is no virtual machine of amd64: {why}"));
        return Ok(());
    }
    let runner = std::env::current_exe().map_err(|why| why.to_string())?;
    let runner = format!("{} vm", runner.display());
    // An emulated processor does little in a short time.
    let settings = [("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", &*runner), ("DORMOUSE_CI", "long")];
    let choice = format!("--test all --test acceptance -- {TESTS}");
    suite.run("--workspace", &choice, &settings)
}

/// Runs a test program in the machine, with the command beside it, if it has any of the tests that
/// its arguments choose.
pub(crate) fn run_there(words: &[String]) -> Result<u8> {
    let [file, arguments @ ..] = words else { return Err("a program is missing".to_owned()) };
    let listed = output(program(file).args(arguments).arg("--list"))?;
    if !listed.lines().any(|line| line.ends_with(": test")) {
        println!("{file}: none of its tests is wanted");
        return Ok(0);
    }
    let command = Path::new(file).ancestors().nth(2).map(|folder| folder.join("dormouse"));
    let command = command.filter(|command| command.exists());
    MACHINE.run(words, &command.into_iter().collect::<Vec<PathBuf>>())
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

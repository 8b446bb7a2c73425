//! `cargo xtask COMMAND`: the project's checks and its packages. [`HELP`] lists the commands.

mod amd64;
mod archive;
mod arm64;
mod checks;
mod fleet;
mod install;
mod machine;
mod nightly;
mod process;
mod release;
mod steps;
mod suite;
mod supply;

use std::path::Path;
use std::process::ExitCode;

use crate::process::{Result, cargo, program, run, target};

const HELP: &str = "\
cargo xtask ci [STEP…]        all checks, or these steps alone: half an hour on two cores
cargo xtask long [STEP…]      with every bench, longer stress, Miri, sanitizers, packages, the archive
cargo xtask schema            write docs/*.schema.json again, after a change of the protocol or --json
cargo xtask bench [WORKLOAD…] build for release, and run these workloads of the bench, quickly
cargo xtask package [FOLDER]  make the archive of command, C library and pages; in target/archive
cargo xtask vm PROGRAM [WORD…] run a program, with these arguments, in a virtual machine of its kind
cargo xtask fleet             build the programs that tests of `serve` push to, into a cache

Steps, in their order:";

fn main() -> ExitCode {
    // Everything is relative to the root of the workspace.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let moved = std::env::set_current_dir(root).map_err(|e| e.to_string());
    let done = moved.and_then(|()| match arguments.split_first() {
        Some((name, rest)) if name == "vm" => vm(rest),
        _ => command(&arguments).map(|()| 0),
    });
    match done {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a program in a virtual machine of the kind that it is for; the exit code.
fn vm(words: &[String]) -> Result<u8> {
    /// Where an ELF file has the number of the processor, and that of arm64.
    const PROCESSOR: std::ops::Range<usize> = 18..20;
    const ARM64: [u8; 2] = [183, 0];
    let file = words.first().ok_or("a program is missing")?;
    if file == arm64::WITH_LARGE_PAGES {
        return arm64::run_with_large_pages(&words[1..]);
    }
    if amd64::names_kernel(file) {
        return amd64::run_there(words);
    }
    let bytes = std::fs::read(file).map_err(|why| format!("{file}: {why}"))?;
    if bytes.get(PROCESSOR) == Some(&ARM64) { arm64::run_there(words) } else { amd64::run_there(words) }
}

fn command(arguments: &[String]) -> Result {
    let (name, rest) = arguments.split_first().map_or(("help", &[][..]), |(name, rest)| (name, rest));
    match name {
        "ci" | "long" => steps::run(name == "long", rest),
        "schema" => {
            // As `cargo test --workspace` builds them, with the same features and settings, so that
            // nothing is built twice.
            let tests = "cargo test --workspace --test schema --bin dormouse -- \
                         the_schema_is_the_committed_one the_schema_of_documents_is_the_committed_one";
            run(program(tests).env("DORMOUSE_BLESS", "1"))
        }
        "bench" => {
            run(&mut cargo("build --release --locked"))?;
            checks::bench(rest)
        }
        "package" => {
            let folder = rest.first().map_or_else(|| target().join("archive"), Into::into);
            archive::archive(&folder)
        }
        "fleet" => fleet::build(),
        "help" | "--help" | "-h" => {
            println!("{HELP}\n{}", steps::names().join(" "));
            Ok(())
        }
        other => Err(format!("there is no command `{other}`; `cargo xtask help` lists them")),
    }
}

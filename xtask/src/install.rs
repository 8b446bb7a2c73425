//! Programs that builds and tests need, from Debian, npm and `PyPI`.
//!
//! A test whose reader is missing is skipped, and counted.

use crate::process::{Result, is_there, output, program, run, target};

/// Compilers of C and C++, and the packages that have them.
const TOOLS: [(&str, &str); 7] = [
    ("cc", "gcc"),
    ("gcc", "gcc"),
    ("g++", "g++"),
    ("make", "make"),
    ("pkg-config", "pkg-config"),
    ("clang", "clang"),
    ("ld.lld", "lld"),
];

/// Readers of profiles, timelines and metrics that other people made, a browser for the pages, and
/// places where services run in tests: Valgrind and an emulator.
const READERS: [(&str, &str); 7] = [
    ("go", "golang-go"),
    ("npm", "npm"),
    ("chromium", "chromium"),
    ("prometheus", "prometheus"),
    ("victoria-metrics", "victoria-metrics"),
    ("valgrind", "valgrind"),
    ("qemu-x86_64", "qemu-user"),
];
const NPM: [&str; 2] = ["speedscope@1.25.0", "@firefox-devtools/profiler-cli@0.10.0"];
const PYTHON: [&str; 2] = ["perfetto==0.59.1", "wasmtime==50.0.1"];

/// Installs packages of Debian's. Their services do not start: tests start programs of their own.
pub(crate) fn install(packages: &[&str]) -> Result {
    println!("installing {}", packages.join(" "));
    run(&mut program("apt-get update -qq"))?;
    let mut install = program("apt-get install -y -qq --no-install-recommends");
    run(install.args(packages).env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1"))
}

fn missing(wanted: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    wanted.iter().filter(|(name, _)| !is_there(name)).map(|(_, package)| *package).collect()
}

pub(crate) fn all() -> Result {
    let mut tools = missing(&TOOLS);
    if !tools.is_empty() {
        tools.push("libc6-dev");
        install(&tools)?;
    }
    let mut readers = missing(&READERS);
    readers.retain(|package| *package != "chromium" || !is_there("google-chrome"));
    if output(program("python3 -c").arg("import ensurepip")).is_err() {
        readers.push("python3-venv");
    }
    if readers.contains(&"npm") {
        readers.push("nodejs");
    }
    if !readers.is_empty() {
        optional(install(&readers));
    }
    let folder = target().join("consumers");
    if is_there("npm") && !folder.join("node_modules").exists() {
        let mut npm = program("npm install --no-fund --no-audit --no-save --prefix");
        optional(run(npm.arg(&folder).args(NPM)));
    }
    let python = folder.join("python");
    if is_there("python3") && !python.exists() {
        let made = run(program("python3 -m venv").arg(&python));
        let pip = python.join("bin/pip");
        optional(
            made.and_then(|()| run(std::process::Command::new(pip).args(["-q", "install"]).args(PYTHON))),
        );
    }
    Ok(())
}

fn optional(done: Result) {
    if let Err(why) = done {
        println!("tests that need it are skipped: {why}");
    }
}

//! The library installed into a prefix for tests, and compilers that use it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::{apart, skip};

/// How a program is linked with the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// With `libdormouse.so`.
    Shared,
    /// With `libdormouse.a`.
    Static,
}

/// The language that a file is written in and compiled as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Written and compiled as C.
    C,
    /// Written and compiled as C++.
    Cxx,
    /// Written in C, compiled as C++.
    CAsCxx,
}

/// A compiler of C and one of C++.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compiler {
    /// The compiler of C.
    pub c: &'static str,
    /// The compiler of C++.
    pub cxx: &'static str,
}

/// GNU's compilers.
pub const GCC: Compiler = Compiler { c: "gcc", cxx: "g++" };
/// LLVM's compilers.
pub const CLANG: Compiler = Compiler { c: "clang", cxx: "clang++" };

/// Whether all these tools are there; otherwise the test that needs them is skipped.
#[track_caller]
pub fn have(tools: &[&str]) -> bool {
    let missing = tools.iter().find(|tool| Command::new(tool).arg("--version").output().is_err());
    if let Some(tool) = missing {
        skip(format_args!("{tool} is not installed"));
    }
    missing.is_none()
}

/// Whether the tools that every test needs are there.
#[track_caller]
pub fn have_basics() -> bool {
    have(&["make", "pkg-config", GCC.c, GCC.cxx])
}

/// The folder of the C library's crate.
pub fn crate_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi").canonicalize().unwrap())
}

/// The workspace's target directory, which has this test program in `debug/deps`.
fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// A folder of this test program, inside the workspace's target directory.
pub fn scratch() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let name = program.file_stem().unwrap().to_string_lossy();
    // Cargo adds a hash.
    let name = name.rsplit_once('-').map_or(&*name, |(name, _)| name);
    let folder = target().join("tmp/capi").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs the Makefile.
pub fn make(arguments: &[&str]) {
    // All calls build in the same place.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new("make");
    command.arg("-C").arg(crate_folder()).args(arguments);
    command.args(["PROFILE=dev", &format!("CARGO={}", env!("CARGO"))]);
    command.arg(format!("MANIFEST={}", apart::manifest().display()));
    command.env("CARGO_TARGET_DIR", apart::target()).env("RUSTFLAGS", apart::FLAGS);
    // Not this `make`'s business, should another one run the tests.
    command.env_remove("MAKEFLAGS");
    succeed(&mut command);
}

/// The prefix into which the library is installed, once for each test program.
pub fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = scratch().join("prefix");
        make(&["install", &format!("PREFIX={}", prefix.display())]);
        prefix
    })
}

fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    let said = succeed(&mut command);
    String::from_utf8(said.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Arguments that compile against the installed headers.
pub fn cflags() -> Vec<String> {
    pkg_config(&["--cflags", "dormouse"])
}

/// Arguments that link with the installed library.
pub fn libs(link: Link) -> Vec<String> {
    match link {
        Link::Shared => pkg_config(&["--libs", "dormouse"]),
        Link::Static => pkg_config(&["--libs", "dormouse-static"]),
    }
}

/// Runs a command that must succeed; on failure its output is shown.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A program or object that is being built, in a folder of its own.
#[derive(Debug)]
pub struct Build {
    compiler: Compiler,
    flags: Vec<String>,
    folder: PathBuf,
}

impl Build {
    /// `name` is unique among the tests. `flags` go to every step.
    pub fn new(name: &str, compiler: Compiler, flags: &str) -> Self {
        let folder = scratch().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self { compiler, flags: flags.split_whitespace().map(str::to_owned).collect(), folder }
    }

    /// The command that compiles a file, without the file.
    pub fn command(&self, language: Language) -> Command {
        let (compiler, standard) = match language {
            Language::C => (self.compiler.c, "-std=c11"),
            Language::Cxx | Language::CAsCxx => (self.compiler.cxx, "-std=c++17"),
        };
        let mut command = Command::new(compiler);
        command.arg(standard).args(&self.flags).args(cflags());
        command.args(["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]);
        // `flags` has some of the linker's.
        if self.compiler == CLANG {
            command.arg("-Wno-unused-command-line-argument");
        }
        match language {
            Language::C => {}
            Language::Cxx => {
                command.args(["-Wold-style-cast", "-Wzero-as-null-pointer-constant"]);
            }
            Language::CAsCxx => {
                command.args(["-x", "c++"]);
            }
        }
        command.current_dir(crate_folder().join("tests/programs"));
        command
    }

    /// Compiles one file of `tests/programs`, or of a folder beside it.
    pub fn compile(&self, source: &str, language: Language, defines: &[&str]) -> PathBuf {
        let name = source.rsplit('/').next().unwrap_or(source);
        let object = self.folder.join(format!("{name}{}.o", defines.concat()));
        succeed(self.command(language).args(defines).args(["-c", source, "-o"]).arg(&object));
        object
    }

    /// Links objects to a program, or with `-shared` to an object.
    pub fn link(&self, name: &str, objects: &[PathBuf], link: Link, more: &[&str]) -> PathBuf {
        let output = self.folder.join(name);
        let mut command = Command::new(self.compiler.cxx);
        command.args(&self.flags).args(objects).args(more).args(libs(link)).arg("-o").arg(&output);
        succeed(&mut command);
        output
    }
}

/// A command that runs a program with the installed library.
pub fn running(program: &Path) -> Command {
    let folder = program.parent().unwrap();
    let libraries = std::env::join_paths([prefix().join("lib").as_path(), folder]).unwrap();
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries).env("DORMOUSE_RUNTIME_DIR", scratch());
    command
}

/// Runs a program with the installed library, and returns its output.
pub fn run(program: &Path) -> String {
    let said = succeed(&mut running(program));
    String::from_utf8(said.stdout).unwrap()
}

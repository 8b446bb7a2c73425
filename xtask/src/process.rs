//! Programs that are run, and the files that they leave.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// `cargo` with these arguments, which have no spaces in them.
///
/// Each step builds from clean, so nothing is kept for incremental builds, and no check needs more
/// debug information than lines and inlined functions.
pub(crate) fn cargo(arguments: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments.split_whitespace());
    command.env("CARGO_TERM_COLOR", "never").env("CARGO_INCREMENTAL", "0");
    command.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
    command
}

/// Any other program, with arguments that have no spaces in them.
pub(crate) fn program(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    command
}

/// Runs the command, and fails if it fails.
pub(crate) fn run(command: &mut Command) -> Result {
    let status = command.status().map_err(|why| format!("{}: {why}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", shown(command))) }
}

/// Runs the command, and returns its standard output without white space at the ends.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|why| format!("{}: {why}", shown(command)))?;
    if !output.status.success() {
        return Err(format!("{}: {}", shown(command), output.status));
    }
    let text = String::from_utf8(output.stdout).map_err(|why| format!("{}: {why}", shown(command)))?;
    Ok(text.trim().to_owned())
}

pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Whether a program of this name can be started.
pub(crate) fn is_there(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| {
        folder.join(name).metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    })
}

/// Cargo's target directory, as a whole path.
pub(crate) fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    std::path::absolute(target).expect("a working directory")
}

/// The folder that outlives clean clones: tests look for programs there.
pub(crate) fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/dormouse");
    std::env::var_os("DORMOUSE_TEST_CACHE").map_or_else(home, PathBuf::from)
}

/// A program of cargo's registry in this version, from the folder that outlives clean clones.
pub(crate) fn tool(name: &str, version: &str) -> Result<PathBuf> {
    let root = cache().join(format!("{name}-{version}"));
    let file = root.join("bin").join(name);
    if !file.exists() {
        let mut install = cargo("install --locked");
        install.arg(format!("{name}@{version}")).arg("--root").arg(&root);
        run(install.env("CARGO_PROFILE_RELEASE_DEBUG", "0"))?;
    }
    Ok(file)
}

/// The value of a line `name = "value"` of the workspace's manifest.
pub(crate) fn manifest(name: &str) -> Result<String> {
    let text = read(Path::new("Cargo.toml"))?;
    let start = format!("{name} = \"");
    let value = text.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix('"'));
    value.map(str::to_owned).ok_or_else(|| format!("Cargo.toml has no {name}"))
}

pub(crate) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))
}

/// Writes a file, and the folders above it.
pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result {
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    folder.and_then(|()| std::fs::write(path, bytes)).map_err(|why| format!("{}: {why}", path.display()))
}

/// Removes folders, or files, that no later step needs.
pub(crate) fn discard(paths: &[PathBuf]) -> Result {
    for path in paths.iter().filter(|path| path.exists()) {
        let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        removed.map_err(|why| format!("{}: {why}", path.display()))?;
    }
    Ok(())
}

/// Removes the programs of tests that have run: no later step has them with the same features.
pub(crate) fn discard_tests() -> Result {
    let Ok(entries) = target().join("debug/deps").read_dir() else { return Ok(()) };
    let is_program = |path: &PathBuf| {
        path.extension().is_none_or(|extension| extension != "so")
            && path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    let programs: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_program).collect();
    discard(&programs)
}

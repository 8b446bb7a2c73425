//! The archive for people who do not build: the command, its man pages and completions, the C
//! library and its headers, the guides, and the licences of all packages that are linked in.
//!
//! ```sh
//! tar -C ~/.local --strip-components 1 -xf dormouse-VERSION-x86_64-linux.tar.gz
//! ```
//!
//! It runs where the C library is as new as the one here, or newer. That for arm64 is built by
//! Debian's compilers.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::arm64;
use crate::process::{Result, cargo, discard, manifest, output, program, read, run, target, write};
use crate::supply::{self, Packages, SHIPPED, named, text};

const PAGES: [&str; 6] =
    ["README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE-APACHE", "LICENSE-MIT", "docs"];
/// The beginnings of names of files that hold a licence.
const LICENCES: [&str; 5] = ["licen", "copying", "notice", "unlicense", "copyright"];

/// The program that tries out headers and libraries of the archive.
const TEA: &str = r#"
#include <dormouse/dormouse.h>
#include <stdio.h>
DORMOUSE_KEY_NAMED(milk, "flags.milk", false);
int main(void)
{
        struct dormouse_error error = DORMOUSE_ERROR_INIT;
        if (dormouse_init(&error) != DORMOUSE_OK)
                return fprintf(stderr, "%s\n", error.message), 1;
        puts("ready");
        return fflush(stdout) || getchar() == 'x' || dormouse_unlikely(milk);
}
"#;

/// Makes `FOLDER/dormouse-VERSION-x86_64-linux.tar.gz` and the one for arm64, and tries them out.
pub(crate) fn archive(folder: &Path) -> Result {
    archive_for(folder, "x86_64")?;
    arm64::install_compilers()?;
    archive_for(folder, ARM64)
}

/// The name of the processor for which programs are built that do not run here.
const ARM64: &str = "aarch64";

fn archive_for(folder: &Path, processor: &str) -> Result {
    let version = manifest("version")?;
    let name = format!("dormouse-{version}-{processor}-linux");
    let work = target().join("unpacked");
    discard(std::slice::from_ref(&work))?;
    let here = work.join(&name);
    fill(&here, processor)?;
    let file = work.join(format!("{name}.tar.gz"));
    let time = output(&mut program("git log -1 --format=%ct"))?;
    let mut tar = program("tar --sort=name --owner=0 --group=0 --numeric-owner --use-compress-program");
    tar.arg("gzip -9n").arg(format!("--mtime=@{time}")).arg("-C").arg(&work);
    run(tar.arg("-cf").arg(&file).arg(&name))?;

    // It works elsewhere, without the files that it was made of.
    let there = work.join("there");
    std::fs::create_dir(&there).map_err(|why| why.to_string())?;
    run(program("tar --strip-components 1 -C").arg(&there).arg("-xzf").arg(&file))?;
    discard(&[here])?;
    if processor == ARM64 {
        arm64::try_command(&there.join("bin/dormouse"))?;
    } else {
        try_command(&there, &version)?;
        ["dormouse", "dormouse-static"].iter().try_for_each(|library| try_library(&there, &work, library))?;
    }

    std::fs::create_dir_all(folder).map_err(|why| why.to_string())?;
    let kept = folder.join(format!("{name}.tar.gz"));
    std::fs::copy(file, &kept).map_err(|why| format!("{}: {why}", kept.display()))?;
    run(program("ls -l").arg(kept))?;
    discard(&[work])
}

fn fill(here: &Path, processor: &str) -> Result {
    run(&mut cargo("build --release --locked"))?;
    // This one runs here.
    let command = target().join("release/dormouse");
    let mut install = program("install -D --strip");
    let mut make = program("make -s -C crates/capi install PREFIX=/");
    make.arg(format!("DESTDIR={}", here.display()));
    if processor == ARM64 {
        let built = target().join(arm64::TRIPLE).join("release");
        run(&mut arm64::building(cargo(&format!("build --release --locked --target {}", arm64::TRIPLE))))?;
        run(install.args(arm64::STRIP).arg(built.join("dormouse")).arg(here.join("bin/dormouse")))?;
        make.arg(format!("BUILD={}", built.display())).args(arm64::MAKE);
        run(&mut arm64::building(make))?;
    } else {
        run(install.arg(&command).arg(here.join("bin/dormouse")))?;
        run(&mut make)?;
    }
    for library in ["dormouse", "dormouse-static"] {
        let file = here.join(format!("lib/pkgconfig/{library}.pc"));
        write(&file, moved(&read(&file)?))?;
    }
    run(Command::new(&command).args(["generate", "man"]).arg(here.join("share/man/man1")))?;
    for (shell, file) in [
        ("bash", "bash-completion/completions/dormouse"),
        ("zsh", "zsh/site-functions/_dormouse"),
        ("fish", "fish/vendor_completions.d/dormouse.fish"),
    ] {
        let text = output(Command::new(&command).args(["generate", "completions", shell]))?;
        write(&here.join("share").join(file), text + "\n")?;
    }
    let pages = here.join("share/doc/dormouse");
    std::fs::create_dir_all(&pages).map_err(|why| why.to_string())?;
    run(program("cp -r").args(PAGES).arg(&pages))?;
    supply::components(&pages.join("components.spdx.json"), &manifest("version")?, processor)?;
    licences(&pages.join("licences"), processor)
}

/// A description for pkg-config whose folder is where its reader has put it.
fn moved(description: &str) -> String {
    let lines = description.lines().map(|line| match line.split_once('=') {
        Some(("prefix", _)) => "prefix=${pcfiledir}/../..\n".to_owned(),
        Some((name @ ("libdir" | "includedir"), path)) => format!("{name}=${{pcfiledir}}/../../{path}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// Writes the licences of all packages that are linked into the command and the C library, in a
/// folder for each package.
fn licences(folder: &Path, processor: &str) -> Result {
    let packages = Packages::of(processor)?;
    let mut lines = BTreeSet::new();
    let linked = packages.linked(&SHIPPED[1..]);
    for package in linked.into_iter().filter(|package| !package["source"].is_null()) {
        let name = named(package);
        let source = PathBuf::from(text(&package["manifest_path"]));
        let files = source.parent().and_then(|it| it.read_dir().ok()).into_iter().flatten().flatten();
        for file in files.map(|entry| entry.path()).filter(|path| path.is_file()) {
            let file_name = file.file_name().unwrap_or_default().to_string_lossy();
            if LICENCES.iter().any(|start| file_name.to_lowercase().starts_with(start)) {
                let bytes = std::fs::read(&file).map_err(|why| format!("{}: {why}", file.display()))?;
                write(&folder.join(&name).join(&*file_name), bytes)?;
            }
        }
        if package["license"].is_null() && !folder.join(&name).exists() {
            return Err(format!("{name} says nothing of its licence"));
        }
        lines.insert(format!("{name}: {}\n", package["license"].as_str().unwrap_or("see its file")));
    }
    write(&folder.join("PACKAGES"), lines.into_iter().collect::<String>())?;
    // The chart of `serve`'s page, and Rust's own library.
    let chart = Path::new("crates/cli/src/serve/page/uplot/LICENSE");
    write(&folder.join("uPlot/LICENSE"), read(chart)?)?;
    let rust = folder.join("rust");
    std::fs::create_dir_all(&rust).map_err(|why| why.to_string())?;
    let root = PathBuf::from(output(&mut program("rustc --print sysroot"))?).join("share/doc/rust");
    let files = root.read_dir().map_err(|why| format!("{}: {why}", root.display()))?.flatten();
    let is_licence =
        |name: &str| name == "licenses" || name.starts_with("COPYRIGHT") || name.starts_with("LICENSE-");
    let files: Vec<_> = files.filter(|it| it.file_name().to_str().is_some_and(is_licence)).collect();
    if !files.iter().any(|it| it.file_name().to_string_lossy().starts_with("COPYRIGHT")) {
        return Err(format!("{} has no COPYRIGHT", root.display()));
    }
    run(program("cp -r").args(files.iter().map(std::fs::DirEntry::path)).arg(&rust))
}

/// The command has its version, a man page for each verb, and completions.
fn try_command(there: &Path, version: &str) -> Result {
    let command = there.join("bin/dormouse");
    let said = output(Command::new(&command).arg("--version"))?;
    if said != format!("dormouse {version}") {
        return Err(format!("{} says {said}", command.display()));
    }
    let help = output(Command::new(&command).arg("--help"))?;
    let verbs =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let verbs: Vec<_> = verbs.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    let zsh = read(&there.join("share/zsh/site-functions/_dormouse"))?;
    for verb in verbs.into_iter().filter(|verb| !verb.is_empty() && *verb != "help") {
        let page = read(&there.join(format!("share/man/man1/dormouse-{verb}.1")))?;
        if !page.contains("\n.SH SYNOPSIS") || !zsh.contains(verb) {
            return Err(format!("{verb} has no man page, or no completion"));
        }
    }
    run(program("bash -n").arg(there.join("share/bash-completion/completions/dormouse")))
}

/// A program that is built with this library, and that the command looks into.
fn try_library(there: &Path, work: &Path, library: &str) -> Result {
    let source = work.join("tea.c");
    write(&source, TEA)?;
    let mut flags = program("pkg-config --cflags --libs");
    let flags = output(flags.arg(library).env("PKG_CONFIG_PATH", there.join("lib/pkgconfig")))?;
    let program_file = work.join("tea");
    let mut compile = program("cc -O2");
    compile.arg(source).args(flags.split_whitespace());
    compile.arg(format!("-Wl,-rpath,{}", there.join("lib").display()));
    run(compile.arg("-o").arg(&program_file))?;

    let mut tea = Command::new(program_file);
    tea.env("DORMOUSE_RUNTIME_DIR", work).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut tea = tea.spawn().map_err(|why| format!("tea: {why}"))?;
    let mut ready = String::new();
    let answered = BufReader::new(tea.stdout.take().expect("a pipe")).read_line(&mut ready);
    let mut keys = Command::new(there.join("bin/dormouse"));
    let keys = keys.args(["keys", &tea.id().to_string()]).env("DORMOUSE_RUNTIME_DIR", work);
    let keys = answered.map_err(|why| why.to_string()).and_then(|_| output(keys));
    let _ = tea.stdin.take().expect("a pipe").write_all(b"\n");
    let ended = tea.wait().map_err(|why| format!("tea: {why}"))?;
    if ready != "ready\n" || !ended.success() || !keys?.contains("flags.milk") {
        return Err(format!("the library {library} does not work: {ready:?}, {ended}"));
    }
    Ok(())
}

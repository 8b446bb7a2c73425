//! arm64: a check that all compiles for it, and in long runs tests in a virtual machine with
//! Debian's kernel.
//!
//! Compiler, linker, kernel and shell are Debian's packages. `cargo test` has each test program run
//! by `cargo xtask vm` ([`run_there`]), which starts a machine of its own for it: one file system
//! in memory, with the program, the C library and a shell. It boots in two seconds.
//!
//! The machine's processors take turns (`thread=single`): QEMU before 8.1 may go on with an old
//! translation of code that another processor changes. It has no cache of instructions either, so
//! the maintenance of that cache is not tested here.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::install::install;
use crate::process::{Result, cache, cargo, discard, is_there, output, program, run, target, write};
use crate::suite::Suite;

pub(crate) const TRIPLE: &str = "aarch64-unknown-linux-gnu";

/// The package that depends on the kernel's newest.
const KERNEL: &str = "linux-image-6.12-cloud-arm64:arm64";

/// The other packages of a machine.
const OTHERS: [&str; 3] = ["busybox-static:arm64", "libc6:arm64", "libgcc-s1:arm64"];

/// The crates that differ most between processors.
const TESTED: &str =
    "--package dormouse-keys --package dormouse-clock --package dormouse-sys --package dormouse-unwind";

/// The line with the exit code of a machine's program.
const ENDED: &str = "@@ended@@ ";

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
        match machine() {
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

/// The folder with the kernel and the files of a machine; they are fetched once, into the folder
/// that outlives clean clones.
fn machine() -> Result<PathBuf> {
    let folder = cache().join("arm64");
    let kernel = folder.join("kernel");
    if kernel.exists() {
        return Ok(folder);
    }
    let work = target().join("machine");
    discard(std::slice::from_ref(&work))?;
    std::fs::create_dir_all(&work).map_err(|why| why.to_string())?;
    let newest = output(&mut program(&format!("apt-cache depends {KERNEL}")))?;
    let newest = newest.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let newest = newest.ok_or_else(|| format!("{KERNEL} depends on no kernel"))?;
    run(program("apt-get download -qq").arg(newest).args(OTHERS).current_dir(&work))?;
    let unpacked = work.join("unpacked");
    for package in files(&work)?.into_iter().filter(|it| it.extension().is_some_and(|it| it == "deb")) {
        run(program("dpkg-deb --extract").arg(package).arg(&unpacked))?;
    }
    let image = files(&unpacked.join("boot"))?;
    let image = image
        .iter()
        .find(|path| path.file_name().is_some_and(|it| it.to_string_lossy().starts_with("vmlinuz")));
    let libraries = folder.join("lib");
    std::fs::create_dir_all(&libraries).map_err(|why| why.to_string())?;
    let copy = |from: &Path, to: PathBuf| {
        std::fs::copy(from, to).map(drop).map_err(|why| format!("{}: {why}", from.display()))
    };
    copy(&unpacked.join("bin/busybox"), folder.join("busybox"))?;
    for name in ["ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1"] {
        copy(&unpacked.join("lib/aarch64-linux-gnu").join(name), libraries.join(name))?;
    }
    // Last: it says that the others are there.
    let partial = folder.join(std::process::id().to_string());
    copy(image.ok_or("the package has no kernel")?, partial.clone())?;
    std::fs::rename(&partial, &kernel).map_err(|why| why.to_string())?;
    discard(&[work])?;
    Ok(folder)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = folder.read_dir().map_err(|why| format!("{}: {why}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// Runs a program with arguments in a machine, shows what it writes, and returns its exit code.
/// Cargo calls it for each test program.
pub(crate) fn run_there(words: &[String]) -> Result<u8> {
    let [file, arguments @ ..] = words else { return Err("a program is missing".to_owned()) };
    let machine = machine()?;
    let work = std::env::temp_dir().join(format!("dormouse-vm-{}", std::process::id()));
    std::fs::create_dir_all(&work).map_err(|why| why.to_string())?;
    let stripped = work.join("program");
    let found = run(program("aarch64-linux-gnu-strip -g -o").arg(&stripped).arg(file));
    let files = work.join("files");
    let made = found
        .and_then(|()| archive(&machine, &stripped, file, arguments))
        .and_then(|bytes| write(&files, bytes));
    let ended = made.and_then(|()| boot(&machine, &files));
    discard(&[work])?;
    ended
}

fn boot(machine: &Path, files: &Path) -> Result<u8> {
    let mut qemu = program(
        "timeout 900 qemu-system-aarch64 -M virt,gic-version=3 -cpu max,pauth-impdef=on \
         -accel tcg,thread=single -smp 2 -m 2G -nographic -nodefaults -no-reboot -serial stdio",
    );
    qemu.arg("-kernel").arg(machine.join("kernel")).arg("-initrd").arg(files);
    qemu.args(["-append", "console=ttyAMA0 quiet panic=-1 rdinit=/init"]);
    let mut child = qemu
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|why| format!("qemu-system-aarch64: {why}"))?;
    let mut code = None;
    for line in BufReader::new(child.stdout.take().expect("a pipe")).split(b'\n') {
        let line = line.map_err(|why| why.to_string())?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        match line.strip_prefix(ENDED) {
            Some(rest) => code = rest.parse().ok(),
            None => println!("{line}"),
        }
    }
    let status = child.wait().map_err(|why| why.to_string())?;
    code.ok_or_else(|| format!("the machine ended before the program: {status}"))
}

/// The machine's files as the kernel takes them: an archive of cpio's newer form (initramfs).
fn archive(machine: &Path, stripped: &Path, file: &str, arguments: &[String]) -> Result<Vec<u8>> {
    let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
    let mut files = Files::default();
    for folder in ["bin", "proc", "sys", "dev", "tmp", "etc", "root", "t", "lib"] {
        files.folder(folder);
    }
    files.file("bin/busybox", &bytes(&machine.join("busybox"))?);
    files.link("bin/sh", "busybox");
    files.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n");
    for library in self::files(&machine.join("lib"))? {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.file(&format!("lib/{name}"), &bytes(&library)?);
    }
    files.file(&format!("t/{name}"), &bytes(stripped)?);
    let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
    let own = format!("./{name}");
    let words = std::iter::once(&own).chain(arguments).map(|word| quoted(word));
    let command = words.collect::<Vec<_>>().join(" ");
    let settings = std::env::vars().filter(|(name, _)| name.starts_with("DORMOUSE_"));
    let settings = settings.map(|(name, value)| format!("export {name}={}", quoted(&value)));
    let settings = settings.collect::<Vec<_>>().join("\n");
    files.file("init", INIT.replace("SETTINGS", &settings).replace("COMMAND", &command).as_bytes());
    Ok(files.end())
}

const INIT: &str = "#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root TMPDIR=/tmp LC_ALL=C RUST_BACKTRACE=1
SETTINGS
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts; mount -t tmpfs tmp /tmp; mount -t tmpfs shm /dev/shm
ifconfig lo 127.0.0.1 up
stty -onlcr < /dev/console 2>/dev/null
cd /t
COMMAND < /dev/null 2>&1
code=$?
echo; echo @@ended@@ $code
poweroff -f
";

fn bytes(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|why| format!("{}: {why}", file.display()))
}

/// An archive that grows.
#[derive(Default)]
struct Files {
    bytes: Vec<u8>,
    count: u32,
}

impl Files {
    fn folder(&mut self, name: &str) {
        self.add(name, 0o40_755, &[]);
    }

    fn link(&mut self, name: &str, to: &str) {
        self.add(name, 0o120_777, to.as_bytes());
    }

    fn file(&mut self, name: &str, bytes: &[u8]) {
        self.add(name, 0o100_755, bytes);
    }

    fn add(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.count += 1;
        let (length, name_length) = (bytes.len(), name.len() + 1);
        // Number, mode, owner, group, links, time, length, devices, length of the name, check.
        let fields = [self.count, mode, 0, 0, 1, 0, length as u32, 0, 0, 0, 0, name_length as u32, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

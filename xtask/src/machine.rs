//! Virtual machines in which long runs test: a kernel of Debian's, a file system in memory with one
//! program, the C library and a shell, and nothing else. One boots in some seconds.
//!
//! `cargo test` has each test program run by `cargo xtask vm`, which starts a machine of its own
//! for it.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::process::{Result, cache, discard, output, program, run, target, write};

/// The line with the exit code of a machine's program.
const ENDED: &str = "@@ended@@ ";

/// The keys by which Debian signs its suites.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The longest time that a machine runs, in seconds.
const LONGEST: u32 = 3600;

/// A kind of machine.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The name of the folder with its files.
    pub(crate) name: &'static str,
    /// The package that depends on the newest kernel; with a suite the beginning of the name of
    /// the package that has it.
    pub(crate) kernel: &'static str,
    /// The suite of Debian's that has the kernel, if it is not this machine's.
    pub(crate) suite: Option<&'static str>,
    /// The other packages of a machine.
    pub(crate) packages: &'static [&'static str],
    /// Where these have libraries, and which a machine needs.
    pub(crate) libraries: (&'static str, &'static [&'static str]),
    /// QEMU with the machine that it emulates, and a serial line on its standard output.
    pub(crate) emulator: &'static str,
    /// The kind of processor.
    pub(crate) processor: &'static str,
    /// The kernel's name of that line, and further words for the kernel.
    pub(crate) console: &'static str,
    /// The program that removes debug information, if programs have more than the machine's memory
    /// has room for.
    pub(crate) strip: Option<&'static str>,
}

impl Machine {
    /// The folder with the kernel and the files of a machine; they are fetched once, into the
    /// folder that outlives clean clones.
    pub(crate) fn fetch(&self) -> Result<PathBuf> {
        let folder = cache().join(self.name);
        let kernel = folder.join("kernel");
        if kernel.exists() {
            return Ok(folder);
        }
        let work = target().join("machine");
        discard(std::slice::from_ref(&work))?;
        std::fs::create_dir_all(&work).map_err(|why| why.to_string())?;
        self.download_kernel(&work)?;
        run(program("apt-get download -qq").args(self.packages).current_dir(&work))?;
        let unpacked = work.join("unpacked");
        for package in files(&work)?.into_iter().filter(|it| it.extension().is_some_and(|it| it == "deb")) {
            run(program("dpkg-deb --extract").arg(package).arg(&unpacked))?;
        }
        // In `/boot`, or among the modules.
        let image = output(program("find").arg(&unpacked).args(["-type", "f", "-name", "vmlinuz*"]))?;
        let image = image.lines().next().map(Path::new);
        let libraries = folder.join("lib");
        std::fs::create_dir_all(&libraries).map_err(|why| why.to_string())?;
        let copy = |from: &Path, to: PathBuf| {
            std::fs::copy(from, to).map(drop).map_err(|why| format!("{}: {why}", from.display()))
        };
        copy(&unpacked.join("bin/busybox"), folder.join("busybox"))?;
        let (place, names) = self.libraries;
        for name in names {
            copy(&unpacked.join(place).join(name), libraries.join(name))?;
        }
        // Last: it says that the others are there.
        let partial = folder.join(std::process::id().to_string());
        copy(image.ok_or("the package has no kernel")?, partial.clone())?;
        std::fs::rename(&partial, &kernel).map_err(|why| why.to_string())?;
        discard(&[work])?;
        Ok(folder)
    }

    /// Downloads the package with the kernel.
    fn download_kernel(&self, to: &Path) -> Result {
        let Some(suite) = self.suite else {
            let newest = output(&mut program(&format!("apt-cache depends {}", self.kernel)))?;
            let newest = newest.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
            let newest = newest.ok_or_else(|| format!("{} depends on no kernel", self.kernel))?;
            return run(program("apt-get download -qq").arg(newest).current_dir(to));
        };
        let (list, lists) = (to.join("sources"), to.join("lists"));
        std::fs::create_dir_all(lists.join("partial")).map_err(|why| why.to_string())?;
        write(&list, format!("deb [signed-by={KEYS}] http://deb.debian.org/debian {suite} main\n"))?;
        // Beside the sources of this machine.
        let apt = |line: &str| {
            let mut apt = program(line);
            apt.arg(format!("-oDir::Etc::sourcelist={}", list.display()));
            apt.arg(format!("-oDir::State::lists={}", lists.display()));
            apt.args(["-oDir::Etc::sourceparts=-", "-oDir::Cache::pkgcache=", "-oDir::Cache::srcpkgcache="]);
            apt.current_dir(to);
            apt
        };
        run(&mut apt("apt-get update -qq"))?;
        let names = output(&mut apt(&format!("apt-cache pkgnames {}", self.kernel)))?;
        let names = names.lines().filter(|name| name.ends_with("-cloud-amd64"));
        let name = names.max().ok_or_else(|| format!("{suite} has no {}…-cloud-amd64", self.kernel))?;
        run(apt("apt-get download -qq").arg(name))
    }

    /// Runs a program with arguments in a machine, shows what it writes, and returns its exit code.
    /// The program is at the same path there, and so are `beside`, further programs, and the files
    /// of the repository; it runs in the folder in which cargo runs a test.
    pub(crate) fn run(&self, words: &[String], beside: &[PathBuf]) -> Result<u8> {
        let [file, arguments @ ..] = words else { return Err("a program is missing".to_owned()) };
        let folder = self.fetch()?;
        let work = std::env::temp_dir().join(format!("dormouse-vm-{}", std::process::id()));
        std::fs::create_dir_all(&work).map_err(|why| why.to_string())?;
        let made = self
            .files(&folder, &work, (Path::new(file), arguments), beside)
            .and_then(|bytes| write(&work.join("files"), bytes));
        let ended = made.and_then(|()| self.boot(&folder, &work.join("files")));
        discard(&[work])?;
        ended
    }

    fn boot(&self, folder: &Path, files: &Path) -> Result<u8> {
        let mut qemu = program(&format!("timeout {LONGEST} {} -cpu {}", self.emulator, self.processor));
        qemu.args(["-nographic", "-nodefaults", "-no-reboot", "-serial", "stdio"]);
        qemu.arg("-kernel").arg(folder.join("kernel")).arg("-initrd").arg(files);
        qemu.arg("-append").arg(format!("console={} quiet panic=-1 rdinit=/init", self.console));
        let mut child = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|why| format!("{}: {why}", self.emulator))?;
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
    fn files(
        &self,
        folder: &Path,
        work: &Path,
        (file, arguments): (&Path, &[String]),
        beside: &[PathBuf],
    ) -> Result<Vec<u8>> {
        let file = std::path::absolute(file).map_err(|why| why.to_string())?;
        let root = std::env::current_dir().map_err(|why| why.to_string())?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|why| why.to_string())?;
        let mut files = Files { time: now.as_secs() as u32, ..Files::default() };
        for folder in ["bin", "proc", "sys", "dev", "tmp", "etc", "root", "lib"] {
            files.folder(folder);
        }
        let tracked = output(&mut program("git ls-files"))?;
        for name in tracked.lines() {
            // One that was removed since the last commit is still in the list.
            if let Ok(bytes) = bytes(Path::new(name)) {
                files.file_at(&root.join(name), &bytes);
            }
        }
        files.file("bin/busybox", &bytes(&folder.join("busybox"))?);
        files.link("bin/sh", "busybox");
        files.link("lib64", "lib");
        files.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n");
        for library in self::files(&folder.join("lib"))? {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.file(&format!("lib/{name}"), &bytes(&library)?);
        }
        let stripped = |file: &Path| {
            let Some(strip) = self.strip else { return bytes(file) };
            let to = work.join("program");
            run(program(&format!("{strip} -g -o")).arg(&to).arg(file))?;
            bytes(&to)
        };
        for file in std::iter::once(&file).chain(beside) {
            files.file_at(file, &stripped(file)?);
        }
        // `CARGO_TARGET_TMPDIR` of tests.
        if let Some(target) = file.ancestors().nth(3) {
            files.folder_at(&target.join("tmp"));
        }
        let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
        let own = file.to_string_lossy().into_owned();
        let words = std::iter::once(&own).chain(arguments).map(|word| quoted(word));
        let command = words.collect::<Vec<_>>().join(" ");
        let settings = std::env::vars().filter(|(name, _)| name.starts_with("DORMOUSE_"));
        let settings = settings.map(|(name, value)| format!("export {name}={}", quoted(&value)));
        let settings = settings.collect::<Vec<_>>().join("\n");
        let folder = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| root.clone(), PathBuf::from);
        let parts = [
            ("SETTINGS", &*settings),
            ("REPOSITORY", &root.to_string_lossy()),
            ("FOLDER", &folder.to_string_lossy()),
            ("COMMAND", &command),
        ];
        let init = parts.iter().fold(INIT.to_owned(), |init, (name, part)| init.replace(name, part));
        files.file("init", init.as_bytes());
        Ok(files.end())
    }
}

const INIT: &str = "#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root TMPDIR=/tmp LC_ALL=C RUST_BACKTRACE=1 INSTA_WORKSPACE_ROOT=REPOSITORY
ulimit -n 65536
SETTINGS
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts; mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup /sys/fs/cgroup
ifconfig lo 127.0.0.1 up
stty -onlcr < /dev/console 2>/dev/null
cd FOLDER
COMMAND < /dev/null 2>&1
code=$?
echo; echo @@ended@@ $code
poweroff -f
";

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = folder.read_dir().map_err(|why| format!("{}: {why}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn bytes(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|why| format!("{}: {why}", file.display()))
}

/// An archive that grows.
#[derive(Default)]
struct Files {
    bytes: Vec<u8>,
    count: u32,
    /// When each file was changed last, in seconds since 1970: some tests take 0 for no change.
    time: u32,
    /// The folders of [`Files::folder_at`].
    folders: BTreeSet<PathBuf>,
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

    /// A file at a whole path, with the folders above it.
    fn file_at(&mut self, path: &Path, bytes: &[u8]) {
        path.parent().into_iter().for_each(|folder| self.folder_at(folder));
        self.file(&path.to_string_lossy()[1..], bytes);
    }

    /// A folder at a whole path, with the folders above it.
    fn folder_at(&mut self, path: &Path) {
        let above: Vec<_> = path.ancestors().map(Path::to_owned).collect();
        for folder in above.into_iter().rev().skip(1) {
            if self.folders.insert(folder.clone()) {
                self.folder(&folder.to_string_lossy()[1..]);
            }
        }
    }

    fn add(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.count += 1;
        let (length, name_length) = (bytes.len(), name.len() + 1);
        // Number, mode, owner, group, links, time, length, devices, length of the name, check.
        let fields = [self.count, mode, 0, 0, 1, self.time, length as u32, 0, 0, 0, 0, name_length as u32, 0];
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

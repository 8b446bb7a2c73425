//! Programs that listen: Prometheus, `VictoriaMetrics`, the Collector, `dormouse serve`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dormouse_testkit::HANG;
use tempfile::TempDir;

/// A program while it runs, and the directory that is its own. It ends with its test.
pub(crate) struct Daemon {
    child: Child,
    name: String,
    directory: TempDir,
    port: u16,
}

impl Daemon {
    /// Starts a program in a directory of its own, and waits until it listens.
    #[track_caller]
    pub(crate) fn start(mut command: Command, directory: TempDir) -> Daemon {
        let name = command.get_program().to_string_lossy().into_owned();
        let log = File::create(directory.path().join("log")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        // Its peers are on this host.
        for proxy in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(proxy);
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut daemon = Daemon { child, name, directory, port: 0 };
        daemon.port = daemon.await_some("it listens", |daemon| listening(daemon.pid()));
        daemon
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// All that it has printed.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// Waits until `look` finds something. The test fails with the program's own words when it ends
    /// before that, or when that takes longer than anything takes.
    #[track_caller]
    pub(crate) fn await_some<T>(&mut self, what: &str, mut look: impl FnMut(&mut Daemon) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "{} ended: {ended:?}: {}", self.name, self.log());
            assert!(start.elapsed() < HANG, "{}: not so: {what}: {}", self.name, self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks it to end, and waits for that; gives all that it has printed.
    #[track_caller]
    pub(crate) fn end(mut self) -> String {
        crate::support::signal_to(self.pid(), rustix::process::Signal::TERM);
        self.child.wait().expect("its end");
        self.log()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The port at which a process listens, by the kernel's tables: programs do not agree on how to
/// say it.
pub(crate) fn listening(pid: u32) -> Option<u16> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    let sockets: Vec<String> = links
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_listening = fields.get(3) == Some(&"0A");
        let is_its_own = sockets.iter().any(|inode| fields.get(9) == Some(&&**inode));
        let (_, port) = fields.get(1)?.split_once(':')?;
        (is_listening && is_its_own).then(|| u16::from_str_radix(port, 16).ok())?
    })
}

/// The program of this name, as the tests' own PATH has it.
pub(crate) fn found(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| is_program(file))
}

/// A program that `cargo xtask fleet` has built into the tests' cache.
pub(crate) fn cached(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("DORMOUSE_TEST_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/dormouse")))?;
    Some(cache.join(name)).filter(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

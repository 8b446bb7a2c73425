//! Other projects' readers of our files, as `cargo xtask ci` installs them into `target/consumers`.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::{eventually, skip};

/// The oldest node that runs them.
const NODE: u32 = 20;

/// The output of a program, which must have succeeded.
pub fn printed(output: Output) -> String {
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The packages of npm; `DORMOUSE_CONSUMERS` names another place.
fn packages() -> PathBuf {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/consumers/node_modules"));
    std::env::var_os("DORMOUSE_CONSUMERS").map_or(root.to_owned(), PathBuf::from)
}

/// A package that npm has installed.
#[track_caller]
pub fn node_package(name: &str) -> Option<PathBuf> {
    let there = packages().join(name);
    let node = Command::new("node").arg("--version").output().map(printed).unwrap_or_default();
    let version = node.trim_start_matches('v').split('.').next().and_then(|it| it.parse().ok());
    if !there.is_dir() {
        skip(format!("{name} is not installed"));
    } else if version.is_none_or(|it: u32| it < NODE) {
        skip(format!("node is older than {NODE} or not installed"));
    } else {
        return Some(there);
    }
    None
}

/// A Python interpreter that has this module.
#[track_caller]
pub fn python_with(module: &str) -> Option<PathBuf> {
    let python = packages().join("../python/bin/python");
    let mut command = Command::new(&python);
    command.args(["-c", &format!("import {module}")]).stderr(Stdio::null());
    if command.status().is_ok_and(|it| it.success()) {
        return Some(python);
    }
    skip(format!("Python's module {module} is not installed"));
    None
}

/// The daemon of `pq` for a file for the Firefox Profiler. It is started here, because the command
/// that starts one gives it only half a second.
#[derive(Debug)]
pub struct Pq {
    script: PathBuf,
    session: TempDir,
    daemon: Child,
}

impl Pq {
    /// Loads a file.
    #[track_caller]
    pub fn load(path: &Path) -> Option<Self> {
        let script = node_package("@firefox-devtools/profiler-cli")?.join("dist/profiler-cli.js");
        let session = tempfile::tempdir().unwrap();
        let path = path.to_str().unwrap();
        let mut command = pq(&script, session.path(), &["--daemon", path]);
        let daemon = command.stdout(Stdio::null()).spawn().unwrap();
        let mut pq = Self { script, session, daemon };
        // A client that comes before the daemon listens clears away what it finds of it.
        let socket = pq.session.path().join("known.sock");
        eventually(|| UnixStream::connect(&socket).is_ok());
        eventually(|| {
            assert!(pq.daemon.try_wait().unwrap().is_none(), "pq's daemon ended");
            pq.command(&["thread", "list"]).stderr(Stdio::null()).output().unwrap().status.success()
        });
        Some(pq)
    }

    fn command(&self, words: &[&str]) -> Command {
        pq(&self.script, self.session.path(), words)
    }

    /// The daemon's answer to a command.
    pub fn json(&self, words: &[&str]) -> Value {
        let said = printed(self.command(words).arg("--json").output().unwrap());
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// The daemon's identifier of the thread with this name.
    pub fn thread(&self, name: &str) -> String {
        let threads = self.json(&["thread", "list"]);
        let named = threads["threads"].as_array().and_then(|it| it.iter().find(|it| it["name"] == name));
        let handle = named.and_then(|it| it["threadHandle"].as_str()).unwrap_or_else(|| panic!("{threads}"));
        handle.to_owned()
    }
}

impl Drop for Pq {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn pq(script: &Path, session: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("node");
    command.arg(script).args(words).args(["--session", "known"]);
    command.env("PROFILER_CLI_SESSION_DIR", session);
    command
}

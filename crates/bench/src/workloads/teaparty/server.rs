//! The service as a child process, and the client that is connected to its agent.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use dormouse::wire::{Hello, Keys, Op, PROTOCOL, Request, Response};
use serde::de::DeserializeOwned;

/// Longest wait for an answer of the agent.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    With,
    Without,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::With => "with",
            Self::Without => "without",
        })
    }
}

/// A running service; dropping it ends it.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// Where it listens.
    pub(super) addr: SocketAddr,
    /// The client that is connected to the agent.
    agent: Option<UnixStream>,
}

/// Starts a service and waits until it listens; with dormouse, connects to its agent.
pub(super) fn start(binary: &Path, side: Side, runtime_dir: &Path) -> anyhow::Result<Server> {
    let mut child = Command::new(binary)
        // The end of its standard input ends it, should we die before we can.
        .args(["--json", "--exit-with-parent"])
        .env("XDG_RUNTIME_DIR", runtime_dir)
        .env_remove("RUST_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", binary.display()))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // Dropped after the line: what it says at its end nobody reads.
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let mut server = Server { child, addr: ([127, 0, 0, 1], 0).into(), agent: None };
    server.addr =
        listening(&line).with_context(|| format!("{} did not say where it listens", binary.display()))?;
    if side == Side::With {
        server.agent = Some(greet(runtime_dir)?);
    }
    Ok(server)
}

impl Server {
    /// Sees that the agent's client is still connected and every key still off.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match &mut self.agent {
            Some(agent) => all_off(agent, 3).context("the agent's client did not last over the load"),
            None => Ok(()),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It serves nobody any more; there is nothing to wait for but its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the first line of a service.
fn listening(line: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line.get("listening")?.as_str()?.strip_prefix("http://")?.parse().ok()
}

/// Connects to the one agent in `runtime_dir`, says hello, and sees that every key is off.
fn greet(runtime_dir: &Path) -> anyhow::Result<UnixStream> {
    let directory = runtime_dir.join("dormouse");
    let path = fs::read_dir(&directory)
        .with_context(|| format!("the service made no {}", directory.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .with_context(|| format!("no agent's socket in {}", directory.display()))?;
    let mut stream =
        UnixStream::connect(&path).with_context(|| format!("cannot connect to {}", path.display()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let client = format!("dormouse-bench {}", env!("CARGO_PKG_VERSION"));
    let hello: Hello = ask(&mut stream, 1, Op::Hello { client, notices: false })?;
    ensure!(hello.keys > 0, "the service has no keys: nothing of dormouse is in it");
    all_off(&mut stream, 2)?;
    // A served agent removes its socket when it ends, a killed one cannot; the next must find its own.
    let _ = fs::remove_file(&path);
    Ok(stream)
}

fn all_off(stream: &mut UnixStream, id: u64) -> anyhow::Result<()> {
    let keys: Keys = ask(stream, id, Op::Keys { glob: None })?;
    let on: Vec<&str> = keys.keys.iter().filter(|key| key.on).map(|key| key.name.as_str()).collect();
    ensure!(on.is_empty(), "keys are on: {}", on.join(", "));
    Ok(())
}

fn ask<T: DeserializeOwned>(stream: &mut UnixStream, id: u64, op: Op) -> anyhow::Result<T> {
    let mut line = serde_json::to_string(&Request { v: PROTOCOL, id, op })?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    // Nothing follows an answer until the next request, so no byte is lost with the buffer.
    BufReader::new(&*stream).read_line(&mut answer).context("the agent does not answer")?;
    let answer: Response<T> =
        serde_json::from_str(&answer).context("the agent's answer is not understood")?;
    match (answer.ok, answer.error) {
        (Some(ok), _) => Ok(ok),
        (None, Some(error)) => bail!("the agent refused: {}", error.message),
        (None, None) => bail!("the agent's answer is empty"),
    }
}

/// CPU time that a process has used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage(Duration);

impl Usage {
    pub(super) fn of(pid: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let ticks = ticks(&stat).with_context(|| format!("{path} has no CPU times"))?;
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Self(Duration::from_secs_f64(ticks as f64 / per_second as f64)))
    }

    pub(super) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// User and system time out of a `stat` line, whose second field may hold anything in parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut times = after_name.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (times.next()?.parse().ok()?, times.next()?.parse().ok()?);
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_service_says_where_it_listens() {
        let line = "{\"schema\":1,\"listening\":\"http://127.0.0.1:4711\"}\n";
        assert_eq!(listening(line), Some(([127, 0, 0, 1], 4711).into()));
        for line in ["", "{}", "listening on http://127.0.0.1:1", "{\"listening\":\"x\"}"] {
            assert_eq!(listening(line), None, "{line}");
        }
    }

    #[test]
    fn cpu_times_are_read_whatever_the_name() {
        let stat = "7 (a) b) 9) S 1 2 3 4 5 6 7 8 9 10 300 45 0 0 20 0 1 0 5 6";
        assert_eq!(ticks(stat), Some(345));
        assert_eq!(ticks("7 (x) S 1"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn the_usage_of_this_process_is_readable_and_does_not_shrink() {
        let before = Usage::of(std::process::id()).unwrap();
        let after = Usage::of(std::process::id()).unwrap();
        assert!(after.0 >= before.0);
    }

    #[test]
    fn a_missing_program_is_named() {
        let missing = Path::new("/nowhere/teaparty");
        let error = start(missing, Side::Without, Path::new("/tmp")).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere/teaparty"), "{error:#}");
    }
}

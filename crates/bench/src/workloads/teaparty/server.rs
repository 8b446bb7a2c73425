//! The service as a child process, and the client that is connected to its agent.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use dormouse_protocol::profile::Profile;
use dormouse_protocol::{
    CountAnswer, CountRequest, Hello, HelloRequest, Keys, KeysRequest, Op, OwnCost, PROTOCOL, ProfileBegun,
    ProfilePart, ProfileReportRequest, ProfileRequest, Request, Response, Stat, StatRequest, WaitsBegun,
    WaitsRequest,
};
use serde::de::DeserializeOwned;

/// Longest wait for an answer of the agent.
const PATIENCE: Duration = Duration::from_secs(5);

/// The part of dormouse that its client keeps awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awake {
    Nothing,
    Counts,
    Times,
}

/// The service with dormouse, and without.
pub(super) const SIDES: [&str; 2] = ["with", "without"];

/// A running service; dropping it ends it.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// Where it listens.
    pub(super) addr: SocketAddr,
    /// The client that is connected to the agent.
    agent: Option<UnixStream>,
}

impl Server {
    /// Starts a service and waits until it listens; connects to its agent if it has one.
    pub(super) fn start(mut program: Command, has_agent: bool, runtime_dir: &Path) -> anyhow::Result<Self> {
        let name = program.get_program().to_owned();
        let name = Path::new(&name).display();
        let mut child = program
            // The end of its standard input ends it, should we die before we can.
            .args(["--json", "--exit-with-parent"])
            .env("XDG_RUNTIME_DIR", runtime_dir)
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // Dropped after the line: the summary at the service's end is not read.
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let mut server = Self { child, addr: ([127, 0, 0, 1], 0).into(), agent: None };
        server.addr = listening(&line).with_context(|| format!("{name} did not say where it listens"))?;
        if has_agent {
            server.agent = Some(greet(runtime_dir, server.pid())?);
        }
        Ok(server)
    }

    /// Sees that the agent's client is still connected and every key still off.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let Some(agent) = &mut self.agent else { return Ok(()) };
        all_off(agent, 3).context("the agent's client did not last over the load")
    }

    /// Has the agent keep this awake as long as its client is connected.
    pub(super) fn wake(&mut self, awake: Awake) -> anyhow::Result<()> {
        let agent = self.agent.as_mut().context("no client of the agent")?;
        if awake != Awake::Nothing {
            let _: CountAnswer = ask(agent, 5, CountRequest { events: vec!["task-clock".to_owned()] })?;
        }
        if awake == Awake::Times {
            let _: WaitsBegun = ask(agent, 6, WaitsRequest::default())?;
        }
        Ok(())
    }

    /// The cost of dormouse so far, as the service reports it.
    pub(super) fn own(&mut self) -> anyhow::Result<OwnCost> {
        let agent = self.agent.as_mut().context("no client of the agent")?;
        let stat: Stat = ask(agent, 7, StatRequest::default())?;
        stat.own.context("the service does not report its cost")
    }

    /// Has the agent take a profile, at this rate, until the answer is dropped; if asked for, with
    /// the time of each sample.
    pub(super) fn profile(&self, runtime_dir: &Path, hz: u32, timeline: bool) -> anyhow::Result<Profiled> {
        let mut agent = greet(runtime_dir, self.pid())?;
        let request = ProfileRequest { hz: Some(hz), timeline, ..ProfileRequest::default() };
        let ProfileBegun { number } = ask(&mut agent, 3, request)?;
        Ok(Profiled { agent, number })
    }

    /// CPU time of the thread that takes samples in, in nanoseconds.
    pub(super) fn sampler_ns(&self) -> anyhow::Result<u64> {
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid()))?.flatten() {
            let read = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            if read("comm").starts_with("dormouse-profil") {
                let said = read("schedstat");
                return said.split(' ').next().unwrap_or_default().parse().context("no CPU time");
            }
        }
        bail!("the service has no thread named dormouse-profile")
    }

    /// Ends the service in its own way, and waits for that.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "the service ended with {status}");
        Ok(())
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// A profile that is being taken of a service.
#[derive(Debug)]
pub(super) struct Profiled {
    agent: UnixStream,
    number: u32,
}

impl Profiled {
    /// The samples so far.
    pub(super) fn samples(&mut self) -> anyhow::Result<u64> {
        let part: ProfilePart =
            ask(&mut self.agent, 4, ProfileReportRequest { number: self.number, from: 0 })?;
        Ok(part.part.coverage.samples)
    }

    /// All of it so far.
    pub(super) fn whole(&mut self) -> anyhow::Result<Profile> {
        let (mut whole, mut from) = (None::<Profile>, Some(0));
        while let Some(begin) = from {
            let request = ProfileReportRequest { number: self.number, from: begin };
            let part: ProfilePart = ask(&mut self.agent, 4, request)?;
            from = part.next;
            match &mut whole {
                Some(whole) => part.join(whole),
                None => whole = Some(part.part),
            }
        }
        Ok(whole.unwrap_or_default())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It serves no client any more; there is nothing to wait for but its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the first line of a service.
fn listening(line: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line.get("listening")?.as_str()?.strip_prefix("http://")?.parse().ok()
}

/// Connects to the agent of a process, sends hello, and checks that every key is off. (Other
/// sockets in `runtime_dir` are those of services that were killed.)
fn greet(runtime_dir: &Path, pid: u32) -> anyhow::Result<UnixStream> {
    let path = runtime_dir.join(format!("dormouse/{pid}.sock"));
    let mut stream =
        UnixStream::connect(&path).with_context(|| format!("cannot connect to {}", path.display()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let client = format!("dormouse-bench {}", env!("CARGO_PKG_VERSION"));
    let hello: Hello = ask(&mut stream, 1, HelloRequest { client, notices: false })?;
    ensure!(hello.keys > 0, "the service has no keys: nothing of dormouse is in it");
    all_off(&mut stream, 2)?;
    Ok(stream)
}

fn all_off(stream: &mut UnixStream, id: u64) -> anyhow::Result<()> {
    let keys: Keys = ask(stream, id, KeysRequest { glob: None })?;
    let on: Vec<&str> = keys.keys.iter().filter(|key| key.on).map(|key| key.name.as_str()).collect();
    ensure!(on.is_empty(), "keys are on: {}", on.join(", "));
    Ok(())
}

fn ask<T: DeserializeOwned>(stream: &mut UnixStream, id: u64, request: impl Into<Op>) -> anyhow::Result<T> {
    let mut line = serde_json::to_string(&Request { v: PROTOCOL, id, op: request.into() })?;
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

/// The CPU time that a process has used.
pub(super) fn cpu_time_of(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let ticks = ticks(&stat).with_context(|| format!("{path} has no CPU times"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
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
    fn a_services_first_line_has_its_address() {
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
    fn the_time_of_this_process_does_not_shrink() {
        let before = cpu_time_of(std::process::id()).unwrap();
        assert!(cpu_time_of(std::process::id()).unwrap() >= before);
    }

    #[test]
    fn a_missing_program_is_named() {
        let missing = Path::new("/nowhere/teaparty");
        let error = Server::start(Command::new(missing), false, Path::new("/tmp")).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere/teaparty"), "{error:#}");
    }
}

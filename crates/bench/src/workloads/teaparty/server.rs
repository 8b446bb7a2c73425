//! The service as a child process, and the client that is connected to its agent.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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

    /// Has the agent keep this awake until the answer, a further client of the agent, is dropped.
    pub(super) fn wake(&self, awake: Awake, runtime_dir: &Path) -> anyhow::Result<UnixStream> {
        let mut agent = greet(runtime_dir, self.pid())?;
        let _: CountAnswer = ask(&mut agent, 5, CountRequest { events: vec!["task-clock".to_owned()] })?;
        if awake == Awake::Times {
            let _: WaitsBegun = ask(&mut agent, 6, WaitsRequest::default())?;
        }
        Ok(agent)
    }

    /// Waits until every key is off again, after a client has gone.
    pub(super) fn falls_asleep(&mut self) -> anyhow::Result<()> {
        let agent = self.agent.as_mut().context("no client of the agent")?;
        let begun = Instant::now();
        while let Err(error) = all_off(agent, 8) {
            ensure!(begun.elapsed() < PATIENCE, "{error:#}");
        }
        Ok(())
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

    /// The CPU time that the process has used, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> anyhow::Result<u64> {
        dormouse::clock::process_cpu_ns_of(self.pid()).context("the service has no CPU clock")
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

/// The cost of dormouse so far, as the service reports it to this client.
pub(super) fn own(agent: &mut UnixStream) -> anyhow::Result<OwnCost> {
    let stat: Stat = ask(agent, 7, StatRequest::default())?;
    stat.own.context("the service does not report its cost")
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
    fn a_missing_program_is_named() {
        let missing = Path::new("/nowhere/teaparty");
        let error = Server::start(Command::new(missing), false, Path::new("/tmp")).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere/teaparty"), "{error:#}");
    }
}

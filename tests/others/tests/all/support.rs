//! Services as processes, and a client of their agents.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use dormouse_protocol::{
    GroupRow, HelloRequest, PROTOCOL, Request, Response, Stat, StatRequest, TaskColumns, TasksRequest, Verb,
    WaitsRequest, WireTaskState,
};
use dormouse_testkit::{HANG, eventually};
use tempfile::TempDir;

/// A service that runs, and a conversation with its agent.
pub(crate) struct Service {
    child: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
    agent: Agent,
    begin: Stat,
    _runtime: TempDir,
}

/// The account of a service, since it began: what it has used.
pub(crate) struct Known(BTreeMap<String, u64>);

impl Service {
    /// Starts a service, and has its groups counted and its times taken.
    pub(crate) fn start(name: &str) -> Service {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse-others"));
        command.arg(name).env("DORMOUSE_RUNTIME_DIR", runtime.path());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a service that starts");
        let mut answers = BufReader::new(child.stdout.take().expect("its standard output"));
        let mut address = String::new();
        answers.read_line(&mut address).expect("where it listens");
        let socket = runtime.path().join(format!("dormouse/{}.sock", child.id()));
        let mut agent = Agent::greet(UnixStream::connect(socket).expect("an agent"));
        agent.call(WaitsRequest::default());
        let begin = agent.call(StatRequest::default());
        let ask = child.stdin.take();
        let address = address.trim().parse().expect("an address");
        Service { child, ask, answers, address, agent, begin, _runtime: runtime }
    }

    /// The service's own account.
    pub(crate) fn known(&mut self) -> Known {
        self.ask.as_mut().expect("until it ends").write_all(b"\n").expect("a service");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        Known(serde_json::from_str(&line).expect("what it has used"))
    }

    /// Dormouse's figures, from the start of the service.
    pub(crate) fn shown(&mut self) -> Stat {
        self.agent.call(StatRequest::default()).since(&self.begin)
    }

    /// Waits until a group has as many tasks alive.
    #[track_caller]
    pub(crate) fn await_alive(&mut self, group: &str, alive: u64) {
        eventually(|| row(&self.shown(), group).alive == alive);
    }

    /// Asserts that `alive` tasks are there, and that each awaits something that can wake it.
    #[track_caller]
    pub(crate) fn assert_awaiting(&mut self, alive: usize) {
        let mut tasks = TaskColumns::default();
        let mut from = Some(0);
        while let Some(begin) = from {
            let part = self.agent.call(TasksRequest { from: begin });
            tasks.state.extend(part.tasks.state);
            tasks.has_waker.extend(part.tasks.has_waker);
            from = part.next;
        }
        assert_eq!((tasks.state, tasks.has_waker), (vec![WireTaskState::Awaiting; alive], vec![true; alive]));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.ask.take());
        let _ = self.child.wait();
    }
}

impl Known {
    pub(crate) fn of(&self, what: &str, group: &str) -> Duration {
        Duration::from_nanos(self.0.get(&format!("{what} {group}")).copied().unwrap_or(0))
    }

    /// The groups that have used any of it.
    pub(crate) fn groups(&self, what: &str) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(move |key| key.strip_prefix(what)?.strip_prefix(' '))
    }
}

/// The row of a group.
#[track_caller]
pub(crate) fn row<'a>(stat: &'a Stat, group: &str) -> &'a GroupRow {
    let names = || stat.groups.iter().map(|row| &*row.name).collect::<Vec<_>>();
    stat.groups.iter().find(|row| row.name == group).unwrap_or_else(|| panic!("no {group} in {:?}", names()))
}

/// The most that a group may be charged for each request, beside what the service has burnt for it:
/// unoptimised frameworks route requests and write answers.
const AROUND: Duration = Duration::from_micros(50);

/// Asserts that each group has the CPU time that the service has burnt for it, to 2 %, and that 95
/// % of the CPU time is in groups.
#[track_caller]
pub(crate) fn assert_charged(shown: &Stat, known: &Known) {
    for group in known.groups("cpu") {
        let (burnt, row) = (known.of("cpu", group), row(shown, group));
        let charged = Duration::from_nanos(row.cpu_ns);
        eprintln!("{group}: {burnt:?} burnt, {charged:?} shown, {} requests", row.requests);
        assert!(charged >= burnt.mul_f64(0.98), "{group}: {charged:?} for {burnt:?}");
        let most = burnt.mul_f64(1.02) + AROUND * row.requests as u32;
        assert!(charged <= most, "{group}: {charged:?} for {burnt:?}");
    }
    let coverage = shown.coverage_percent().expect("CPU time was used");
    eprintln!("coverage {coverage:.1} %");
    assert!(coverage >= 95.0, "{coverage} % of the CPU time is in groups");
}

/// A conversation with an agent.
struct Agent {
    stream: BufReader<UnixStream>,
    id: u64,
}

impl Agent {
    fn greet(stream: UnixStream) -> Agent {
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        let mut agent = Agent { stream: BufReader::new(stream), id: 0 };
        agent.call(HelloRequest { client: "others".to_owned(), notices: false });
        agent
    }

    fn call<V: Verb>(&mut self, request: V) -> V::Answer {
        self.id += 1;
        let mut line =
            serde_json::to_vec(&Request { v: PROTOCOL, id: self.id, op: request.into() }).expect("a request");
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).expect("an agent");
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer");
        let response: Response<V::Answer> = serde_json::from_str(&line).expect("an answer");
        response.ok.unwrap_or_else(|| panic!("{}: {:?}", V::NAME, response.error))
    }
}

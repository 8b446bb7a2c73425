//! Services as processes, and a client of their agents.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use std::thread;
use std::time::{Duration, Instant};

use dormouse_protocol::{
    GroupRow, HelloRequest, PROTOCOL, Request, Response, Stat, StatRequest, TasksRequest, Verb, WaitsRequest,
    WireTaskState,
};
use dormouse_testkit::{HANG, eventually};
use tempfile::TempDir;

/// For how long a worker is blocked.
const BLOCKED: Duration = Duration::from_millis(30);

/// A service that runs, and a conversation with its agent.
pub(crate) struct Service {
    child: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
    agent: Agent,
    begin: Stat,
    /// Its socket, and what it writes to standard error.
    runtime: TempDir,
}

/// The account of a service, since it began: what it has used.
pub(crate) struct Known(BTreeMap<String, u64>);

impl Service {
    /// Starts a service, and has its groups counted and its times taken.
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Service {
        Service::of_build(Path::new(env!("CARGO_BIN_EXE_others")), name, arguments)
    }

    /// Starts a service of a program that was built in another way.
    pub(crate) fn of_build(program: &Path, name: &str, arguments: &[&str]) -> Service {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(program);
        command.arg(name).args(arguments).env("DORMOUSE_RUNTIME_DIR", runtime.path());
        // Names of functions in the message of a panic are work that the service does not know of.
        command.env("RUST_BACKTRACE", "0");
        let errors = File::create(runtime.path().join("errors")).expect("a file");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().expect("a service that starts");
        let mut answers = BufReader::new(child.stdout.take().expect("its standard output"));
        let mut address = String::new();
        answers.read_line(&mut address).expect("where it listens");
        let socket = runtime.path().join(format!("dormouse/{}.sock", child.id()));
        let mut agent = Agent::greet(UnixStream::connect(socket).expect("an agent"));
        agent.call(WaitsRequest { calls: true, ..WaitsRequest::default() });
        let begin = agent.call(StatRequest::default());
        let ask = child.stdin.take();
        let address = address.trim().parse().expect("an address");
        Service { child, ask, answers, address, agent, begin, runtime }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The service's own account.
    pub(crate) fn known(&mut self) -> Known {
        self.tell("")
    }

    /// Has all blocked threads of the service go on.
    pub(crate) fn release(&mut self) {
        self.tell("release");
    }

    fn tell(&mut self, line: &str) -> Known {
        let ask = self.ask.as_mut().expect("until it ends");
        ask.write_all(format!("{line}\n").as_bytes()).expect("a service");
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
        eventually(|| self.shown().groups.iter().any(|row| row.name == group && row.alive == alive));
    }

    /// Waits until the service has noted an event as often.
    #[track_caller]
    pub(crate) fn await_noted(&mut self, what: &str, group: &str, times: u64) {
        eventually(|| self.known().of(what, group) == times);
    }

    /// Waits until the tasks of these groups are all that there are, and await. Each must have
    /// something that can wake it.
    #[track_caller]
    pub(crate) fn assert_awaiting(&mut self, groups: &[&str]) {
        eventually(|| {
            let tasks = self.tasks();
            let mut named: Vec<&str> = tasks.iter().map(|(group, ..)| &**group).collect();
            named.sort_unstable();
            let awaiting = tasks.iter().all(|(_, state, _)| *state == WireTaskState::Awaiting);
            assert!(!awaiting || tasks.iter().all(|(.., has_waker)| *has_waker), "{tasks:?}");
            awaiting && named == groups
        });
    }

    /// Group, state, and whether something can wake it, of each task.
    fn tasks(&mut self) -> Vec<(String, WireTaskState, bool)> {
        let (mut all, mut names, mut from) = (Vec::new(), BTreeMap::new(), Some(0));
        while let Some(begin) = from {
            let part = self.agent.call(TasksRequest { from: begin });
            names.extend(part.groups.into_iter().map(|group| (group.id, group.name)));
            let states = part.tasks.state.into_iter().zip(part.tasks.has_waker);
            all.extend(part.tasks.group.into_iter().zip(states));
            from = part.next;
        }
        all.into_iter().map(|(group, (state, waker))| (names[&group].clone(), state, waker)).collect()
    }

    /// Has `ask` answered until the kernel stamps requests, which begins some time after the first
    /// socket wants stamps, and until the worker is done with them.
    #[track_caller]
    pub(crate) fn await_stamps(&mut self, group: &str, mut ask: impl FnMut()) {
        eventually(|| {
            ask();
            self.await_alive(group, 0);
            let shown = self.shown();
            let waits = row(&shown, group).waits.as_ref();
            waits.and_then(|waits| waits.queue).is_some_and(|queue| queue.received > 0)
        });
    }

    /// Asserts that a request has waited from `send` on, while the test keeps the only worker
    /// blocked, and that this time is in its latency, and in its queue.
    #[track_caller]
    pub(crate) fn assert_queued<T>(
        &mut self,
        group: &str,
        send: impl FnOnce() -> T,
        receive: impl FnOnce(T),
    ) {
        self.await_alive(group, 0);
        let before = self.shown();
        let begun = Instant::now();
        let request = send();
        let sent = Instant::now();
        thread::sleep(BLOCKED);
        let blocked = sent.elapsed().as_nanos() as f64;
        self.release();
        receive(request);
        let seen = begun.elapsed().as_nanos() as f64;
        self.await_alive(group, 0);
        let shown = self.shown().since(&before);
        let waits = row(&shown, group).waits.as_ref().expect("times");
        let (latency, queue) = (waits.requests.sum_ns.expect("a sum") as f64, waits.queue.expect("a queue"));
        let queued = (queue.unseen_ns + queue.behind_ns) as f64;
        assert_eq!((queue.requests, queue.received), (1, 1), "{queue:?}");
        assert!(queued >= blocked * 0.95 && latency >= queued, "{latency} ns, {queue:?}, {blocked} ns");
        assert!(latency <= seen * 1.01, "{latency} of {seen} ns");
    }

    /// Dormouse's figures and the service's account, which agree: each group has the CPU time that
    /// the service has used for it, to 2 %, and 95 % of the CPU time is in groups. Dormouse's own
    /// threads, which answer the test all the time, are left out of that.
    #[track_caller]
    pub(crate) fn charged(&mut self) -> (Stat, Known) {
        let known = self.known();
        let end = self.agent.call(StatRequest::default());
        let shown = end.since(&self.begin);
        for group in known.groups("cpu") {
            let (used, charged) = (known.of("cpu", group) as f64, row(&shown, group).cpu_ns as f64);
            let ratio = charged / used;
            eprintln!("{group}: {ratio:.4} of {used} ns");
            assert!((ratio - 1.0).abs() <= 0.02, "{group} has {charged} ns for {used} ns");
        }
        let groups = shown.groups_cpu_ns().expect("CPU time of groups") as f64;
        let outside = shown.unattributed_cpu_ns as f64 - (own_cpu_ns(&end) - own_cpu_ns(&self.begin)) as f64;
        let coverage = groups / (groups + outside);
        eprintln!("{coverage:.4} of the CPU time is in groups");
        assert!(coverage >= 0.95, "{coverage} of the CPU time is in groups; {outside} ns are in none");
        (shown, known)
    }
}

/// The CPU time of dormouse's threads in a service.
fn own_cpu_ns(stat: &Stat) -> u64 {
    let own = stat.threads.iter().filter(|thread| thread.name.starts_with("dormouse"));
    own.map(|thread| thread.cpu_ns).sum()
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.ask.take());
        let _ = self.child.wait();
        if std::thread::panicking() {
            let errors = std::fs::read_to_string(self.runtime.path().join("errors"));
            eprintln!("{}", errors.unwrap_or_default());
        }
    }
}

impl Known {
    pub(crate) fn of(&self, what: &str, group: &str) -> u64 {
        self.0.get(&format!("{what} {group}")).copied().unwrap_or(0)
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

//! A host that closes descriptors which it does not know, and opens its own at their numbers: the
//! agent uses and closes none of them. Once with the agent's sockets in a table of their own, once
//! in the process's, as under a seccomp filter.
//!
//! No test harness: this program is the host too, in a child process, and does what it reads from
//! its standard input.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse::{static_key, unlikely};
use dormouse_testkit::HANG;

/// The variable that makes this process the host: in which table its agent's sockets are.
const HOST: &str = "DORMOUSE_TEST_HOST";

static_key! {
    static KEY: "host.key" = false;
    static TURNED: "host.turned" = false;
}

#[inline(never)]
fn turned() -> bool {
    unlikely!(TURNED)
}

fn hit(n: u64) -> bool {
    dormouse::probe!("host.hit", n);
    unlikely!(KEY)
}

mod host {
    use dormouse::metrics::{Metrics, MetricsSpec};

    use super::{
        AsRawFd, AtomicBool, AtomicU64, Duration, File, KEY, Ordering, RawFd, TURNED, TcpListener, hit,
        turned,
    };

    /// The files that the host opens where the agent's sockets were, or would be.
    struct Own {
        files: Vec<File>,
        listener: TcpListener,
        known: Vec<(RawFd, u64, u64)>,
    }

    impl Own {
        /// Closes everything, and opens files and a socket.
        fn replace_all() -> Self {
            close_all();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let files: Vec<File> = (0..40).map(|_| tempfile::tempfile().unwrap()).collect();
            let numbers = files.iter().map(AsRawFd::as_raw_fd).chain([listener.as_raw_fd()]);
            let known =
                numbers.map(|number| (number, identity(number).unwrap())).map(|(n, (d, i))| (n, d, i));
            let known = known.collect();
            Self { files, listener, known }
        }

        /// Their faults.
        fn lost(&self) -> Vec<RawFd> {
            let is_lost =
                |&&(number, device, inode): &&(RawFd, u64, u64)| identity(number) != Some((device, inode));
            let mut lost: Vec<RawFd> = self.known.iter().filter(is_lost).map(|known| known.0).collect();
            let written = self.files.iter().filter(|file| file.metadata().is_ok_and(|m| m.len() > 0));
            lost.extend(written.map(AsRawFd::as_raw_fd));
            lost
        }
    }

    fn identity(number: RawFd) -> Option<(u64, u64)> {
        // SAFETY: `stat` is a valid place.
        #[expect(unsafe_code, reason = "whatever is open there is looked at")]
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            (libc::fstat(number, &raw mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
        }
    }

    /// The host's descriptors, as a forked child finds them.
    fn fork(own: Option<&Own>) -> String {
        // SAFETY: the child looks at its descriptors, and ends.
        #[expect(unsafe_code, reason = "fork is")]
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let sockets = (3..1000).filter(|&n| {
                    let mut kind: libc::c_int = 0;
                    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
                    let asked = libc::getsockopt(
                        n,
                        libc::SOL_SOCKET,
                        libc::SO_DOMAIN,
                        (&raw mut kind).cast(),
                        &raw mut length,
                    );
                    asked == 0 && kind == libc::AF_UNIX
                });
                let lost = own.map_or(0, |own| own.lost().len());
                libc::_exit((lost + sockets.count()).min(100) as libc::c_int);
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            status
        };
        format!("status {status}")
    }

    /// Closes everything again and again, and opens files at the numbers, while threads of the
    /// host's read its metrics and switch a key.
    fn storm_over_readings(rounds: u32) {
        let metrics = Metrics::start(&MetricsSpec::new()).unwrap();
        let (batches, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    metrics.answer(None);
                }
            });
            let switcher = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // Batches are refused where a file that they need has gone.
                    let done = if turned() { TURNED.disable() } else { TURNED.enable() };
                    batches.fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
                }
            });
            let mut rounds = 0..rounds;
            let is_done = || batches.load(Ordering::Relaxed) >= 10 || switcher.is_finished();
            while rounds.next().is_some() || !is_done() {
                close_all();
                (0..10).for_each(|_| std::mem::forget(tempfile::tempfile().unwrap()));
            }
            is_over.store(true, Ordering::Relaxed);
            reader.join().unwrap();
            switcher.join().unwrap();
        });
    }

    /// Closes everything, as daemons do.
    fn close_all() {
        // SAFETY: nothing of this program's own is open there.
        #[expect(unsafe_code, reason = "the descriptors of others are closed")]
        unsafe {
            libc::close_range(3, u32::MAX, 0);
        }
    }

    /// CPU time of the agent's threads, in milliseconds.
    fn cpu() -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
        let agents = tasks.filter(|task| {
            let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            matches!(name.trim_end(), "dormouse" | "dormouse-door")
        });
        let used = agents.map(|task| {
            let stat = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
        });
        used.sum::<u64>() / 1_000_000
    }

    pub(super) fn run(table: &str) {
        if table == "process" {
            // A filter that allows everything.
            dormouse_testkit::Filter::refuse(&[]).install();
        }
        std::thread::spawn(|| {
            for n in 0.. {
                hit(n);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let mut own: Option<Own> = None;
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let answer = match line.split_once(' ').unwrap_or((&line, "")) {
                ("init", _) => dormouse::init().unwrap().path().display().to_string(),
                ("replace", _) => {
                    // The numbers are the host's, whatever is there now.
                    std::mem::forget(own.take());
                    own.insert(Own::replace_all()).listener.local_addr().unwrap().port().to_string()
                }
                ("storm", rounds) => {
                    for _ in 0..rounds.parse().unwrap() {
                        std::mem::forget(own.take());
                        let new = own.insert(Own::replace_all());
                        // The agent's turn.
                        std::thread::sleep(Duration::from_millis(1));
                        let lost = new.lost();
                        assert!(lost.is_empty(), "the host's descriptors {lost:?}");
                    }
                    "survived".to_owned()
                }
                ("storm-over-readings", rounds) => {
                    storm_over_readings(rounds.parse().unwrap());
                    "survived".to_owned()
                }
                ("accept", count) => {
                    let listener = &own.as_ref().unwrap().listener;
                    for _ in 0..count.parse().unwrap() {
                        drop(listener.accept().unwrap());
                    }
                    "accepted".to_owned()
                }
                ("lost", _) => format!("{:?}", own.as_ref().unwrap().lost()),
                ("fork", _) => fork(own.as_ref()),
                ("awake", _) => KEY.is_enabled().to_string(),
                ("cpu", _) => cpu().to_string(),
                (what, _) => panic!("{what}?"),
            };
            println!("{answer}");
        }
    }
}

struct Host {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Its agent's sockets are in a table of their own.
    has_door: bool,
    _place: tempfile::TempDir,
}

impl Host {
    fn start(table: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(HOST, table).env("DORMOUSE_RUNTIME_DIR", place.path());
        // Each batch then reads the masks of all threads.
        command.env("DORMOUSE_KEYS", "int3");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output, has_door: table == "own", _place: place }
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "the host has ended: {what}");
        answer.trim_end().to_owned()
    }

    fn number(&mut self, what: &str) -> u64 {
        self.ask(what).parse().unwrap()
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

struct Client {
    lines: BufReader<UnixStream>,
}

impl Client {
    fn connect(socket: &str) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(HANG)).unwrap();
        let mut client = Self { lines: BufReader::new(stream) };
        let hello = client.ask(r#"{"v":1,"id":1,"op":"hello","client":"a test"}"#);
        hello.contains("\"ok\"").then_some(client)
    }

    /// The answer; empty when the connection has ended.
    fn ask(&mut self, request: &str) -> String {
        let mut answer = String::new();
        if writeln!(self.lines.get_mut(), "{request}").is_ok() {
            let _ = self.lines.read_line(&mut answer);
        }
        answer
    }

    fn works(&mut self) -> bool {
        self.ask(r#"{"v":1,"id":3,"op":"keys"}"#).contains("host.key")
    }
}

/// Clients: one holds a key, one traces, one counts, one is in the middle of a request.
fn clients(socket: &str) -> Vec<Client> {
    let [mut on, mut trace, mut stat, mut half] = [(); 4].map(|()| Client::connect(socket).unwrap());
    assert!(on.ask(r#"{"v":1,"id":2,"op":"on","glob":"host.key"}"#).contains("\"ok\""));
    assert!(trace.ask(r#"{"v":1,"id":2,"op":"trace","glob":"host.hit"}"#).contains("\"ok\""));
    assert!(stat.ask(r#"{"v":1,"id":2,"op":"stat"}"#).contains("\"ok\""));
    half.lines.get_mut().write_all(b"{\"v\":1,\"id\":").unwrap();
    vec![on, stat, half, trace]
}

/// Until the host's key is off.
fn await_asleep(host: &mut Host) {
    let start = Instant::now();
    while host.ask("awake") == "true" {
        assert!(start.elapsed() < HANG, "the lease is not given back");
    }
}

fn serves_again(host: &mut Host, socket: &str) {
    let start = Instant::now();
    loop {
        // The agent may not have seen yet that it has ended.
        let again = host.ask("init");
        assert_eq!(again, socket);
        if let Some(mut client) = Client::connect(&again)
            && client.works()
        {
            return;
        }
        assert!(start.elapsed() < HANG, "no agent");
    }
}

/// Clients of the host's own service: all are served by the host.
fn serve(host: &mut Host, port: u64) {
    let clients: Vec<_> =
        (0..100).map(|_| TcpStream::connect(("127.0.0.1", port.try_into().unwrap())).unwrap()).collect();
    assert_eq!(host.ask("accept 100"), "accepted");
    drop(clients);
}

fn closed_without_a_client(host: &mut Host) {
    let socket = host.ask("init");
    let port = host.number("replace");
    let client = Client::connect(&socket);
    assert_eq!(client.is_some(), host.has_door, "the socket was the host's to close");
    serve(host, port);
    assert_eq!(host.ask("lost"), "[]");
    let before = host.number("cpu");
    std::thread::sleep(Duration::from_millis(300));
    let used = host.number("cpu") - before;
    assert!(used < 100, "the agent's threads have used {used} ms of 300");
    // An agent whose descriptors are closed and that nothing wakes looks once a minute.
    if host.has_door || dormouse_testkit::is_long() {
        serves_again(host, &socket);
    }
    assert_eq!(host.ask("lost"), "[]");
}

fn closed_in_the_middle_of_a_trace(host: &mut Host) {
    let socket = host.ask("init");
    let mut clients = clients(&socket);
    assert_eq!(host.ask("awake"), "true");
    let port = host.number("replace");
    serve(host, port);
    if host.has_door {
        assert_eq!(host.ask("awake"), "true");
        assert!(clients[1].works());
        let mut records = [0; 4096];
        assert!(clients[3].lines.read(&mut records).unwrap() > 0);
        drop(clients);
    }
    // Otherwise the trace wakes the agent, which finds that its sockets are the host's.
    await_asleep(host);
    assert_eq!(host.ask("lost"), "[]");
    serves_again(host, &socket);
}

fn forked_after_closing(host: &mut Host) {
    let socket = host.ask("init");
    let _clients = clients(&socket);
    assert_eq!(host.ask("fork"), "status 0", "a child has sockets of the agent's");
    host.ask("replace");
    assert_eq!(host.ask("fork"), "status 0", "a child has lost descriptors of the host's");
    assert_eq!(host.ask("lost"), "[]");
}

fn closed_again_and_again(host: &mut Host) {
    let socket = host.ask("init");
    let _clients = clients(&socket);
    assert_eq!(host.ask("storm 200"), "survived");
    assert_eq!(host.ask("lost"), "[]");
    if host.has_door {
        assert!(Client::connect(&socket).unwrap().works());
    }
}

/// A figure that dormouse reads at that moment is lost, and nothing else.
fn closed_while_files_are_read(host: &mut Host) {
    const ANSWERS: u64 = 100;
    let socket = host.ask("init");
    let mut client = Client::connect(&socket).unwrap();
    let (answers, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let has_door = host.has_door;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if client.ask(r#"{"v":1,"id":2,"op":"stat"}"#).is_empty() {
                    // Its socket was the host's to close, or the agent has ended.
                    return answers.store(ANSWERS, Ordering::Relaxed);
                }
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        while {
            assert_eq!(host.ask("storm-over-readings 500"), "survived");
            answers.load(Ordering::Relaxed) < ANSWERS
        } {}
        is_over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert!(!has_door || client.works());
}

type Test = (&'static str, fn(&mut Host));

pub(crate) fn main() {
    if let Ok(table) = std::env::var(HOST) {
        return host::run(&table);
    }
    let tests: [Test; 5] = [
        ("closed_without_a_client", closed_without_a_client),
        ("closed_in_the_middle_of_a_trace", closed_in_the_middle_of_a_trace),
        ("forked_after_closing", forked_after_closing),
        ("closed_again_and_again", closed_again_and_again),
        ("closed_while_files_are_read", closed_while_files_are_read),
    ];
    let wanted = std::env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    let mut passed = 0;
    for (name, test) in tests.into_iter().filter(|(name, _)| wanted.as_ref().is_none_or(|w| name.contains(w)))
    {
        for table in ["own", "process"] {
            println!("{name}, table: {table}");
            let mut host = Host::start(table);
            test(&mut host);
            host.end();
            passed += 1;
        }
    }
    println!("{passed} passed, 0 failed");
}

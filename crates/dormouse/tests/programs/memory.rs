//! The agent's share of a host's memory, as it is and as it is shown; and a host that has none
//! left: clients are dropped, the host lives.
//!
//! No test harness: this program is the host too, in a child process.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse::{static_key, unlikely};
use dormouse_testkit::{HANG, eventually};

/// The variable that makes this process the host.
const HOST: &str = "DORMOUSE_TEST_HOST";

/// How much of a host's memory an idle agent may have.
const IDLE_KIB: u64 = 2048;

/// How much of that may be in no figure: what came from the allocator, and small tables.
const UNSHOWN_KIB: u64 = 512;

/// The memory that the allocator may take meanwhile.
const ALLOCATED_KIB: u64 = 256;

/// The groups of the host, and its threads that run all of them.
const GROUPS: usize = 40;
const THREADS: usize = 8;

static_key! {
    static KEY: "host.key" = false;
}

static HITS: AtomicU64 = AtomicU64::new(0);

fn hit(n: u64) -> bool {
    dormouse::probe!("host.hit", n);
    unlikely!(KEY)
}

mod host {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use dormouse::Group;

    use super::{BufRead, Duration, GROUPS, HANG, HITS, Instant, KEY, Ordering, Read, THREADS, hit};

    /// Threads that enter each group once a round.
    struct Threads(Vec<(SyncSender<()>, Receiver<()>)>);

    impl Threads {
        fn start() -> Self {
            let thread = |_| {
                let (begin, begins) = sync_channel(0);
                let (end, ends) = sync_channel(0);
                std::thread::spawn(move || {
                    for () in begins {
                        for n in 0..GROUPS {
                            let group = Group::new(&format!("GET /{n}"));
                            group.scope(|| hit(0));
                        }
                        end.send(()).unwrap();
                    }
                });
                (begin, ends)
            };
            Self((0..THREADS).map(thread).collect())
        }

        fn round(&self) {
            self.0.iter().for_each(|(begin, _)| begin.send(()).unwrap());
            self.0.iter().for_each(|(_, end)| end.recv().unwrap());
        }
    }

    /// A line of the process's status, in KiB. Allocates nothing.
    fn status(name: &str) -> u64 {
        let mut status = [0; 8192];
        let length = std::fs::File::open("/proc/self/status").unwrap().read(&mut status).unwrap();
        let status = std::str::from_utf8(&status[..length]).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Until the agent's thread has nothing more to prepare, and waits.
    fn await_idle() {
        let start = Instant::now();
        let mut waits = 0;
        while waits < 5 {
            let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
            let read =
                |task: &std::path::Path, file| std::fs::read_to_string(task.join(file)).unwrap_or_default();
            let agent = tasks.find(|task| read(task, "comm").trim_end() == "dormouse");
            let is_waiting = agent.is_some_and(|task| read(&task, "stat").contains(") S "));
            waits = if is_waiting { waits + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(10));
            assert!(start.elapsed() < HANG);
        }
    }

    /// From now on, `headroom` more bytes than there are.
    fn limit(what: &str, headroom: u64) {
        let (resource, used) = match what {
            "as" => (libc::RLIMIT_AS, status("VmSize")),
            _ => (libc::RLIMIT_DATA, status("VmData")),
        };
        let most = used * 1024 + headroom;
        let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: concerns this process alone.
        #[expect(unsafe_code, reason = "setrlimit is")]
        let set = unsafe { libc::setrlimit(resource, &raw const limit) };
        assert_eq!(set, 0);
    }

    /// Allocates nothing for requests that come after `limit`: such a host lives as long as nobody
    /// else in it does.
    pub(super) fn run() {
        let mut line = String::with_capacity(256);
        let mut input = std::io::stdin().lock();
        let mut threads = None;
        while input.read_line(&mut line).unwrap() > 0 {
            let mut words = line.trim_end().split(' ');
            let mut word = || words.next().unwrap();
            match word() {
                "init" => println!("{}", dormouse::init().unwrap().path().display()),
                "rss" => println!("{}", status("RssAnon")),
                "round" => {
                    threads.get_or_insert_with(Threads::start).round();
                    println!("done");
                }
                "mapped" => println!("{}", dormouse_waits::mapped_bytes() / 1024),
                "idle" => {
                    await_idle();
                    println!("idle");
                }
                "hit" => {
                    std::thread::spawn(|| {
                        for n in 0.. {
                            hit(n);
                            HITS.store(n + 1, Ordering::Relaxed);
                            if n % 64 == 0 {
                                std::thread::sleep(Duration::from_micros(100));
                            }
                        }
                    });
                    // A thread that begins without memory ends the process, and this one is the
                    // host's.
                    while HITS.load(Ordering::Relaxed) == 0 {
                        std::thread::yield_now();
                    }
                    println!("hits");
                }
                "limit" => {
                    limit(word(), word().parse().unwrap());
                    println!("limited");
                }
                "awake" => println!("{}", KEY.is_enabled()),
                what => panic!("{what}?"),
            }
            line.clear();
        }
    }
}

struct Host {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _place: tempfile::TempDir,
}

impl Host {
    fn start() -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(HOST, "1").env("DORMOUSE_RUNTIME_DIR", place.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output, _place: place }
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "the host has ended: {what}, {:?}", self.child.wait());
        answer.trim_end().to_owned()
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

/// A connection that says hello and this; what comes is read or not, and it is closed.
fn talk(socket: &str, request: &str, reads: bool) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let hello = r#"{"v":1,"id":1,"op":"hello","client":"a test"}"#;
    let _ = write!(stream, "{hello}\n{request}\n");
    let mut answer = [0; 4096];
    // The connection may be dropped at any point.
    while reads && stream.read(&mut answer).is_ok_and(|n| n > 0) {}
    Some(stream)
}

fn an_idle_agent_takes_little(host: &mut Host) {
    let rss = |host: &mut Host| host.ask("rss").parse::<u64>().unwrap();
    // The memory that this program itself takes for an answer.
    rss(host);
    let before = rss(host);
    host.ask("init");
    host.ask("idle");
    let idle = rss(host).saturating_sub(before);
    println!("    an idle agent: {idle} KiB");
    assert!(idle <= IDLE_KIB, "{idle} KiB of anonymous memory are the agent's");
}

/// A client that asks for a figure.
struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(socket: &str) -> Self {
        let mut client = Self(BufReader::new(UnixStream::connect(socket).unwrap()));
        client.ask(r#"{"v":1,"id":1,"op":"hello","client":"a test"}"#);
        client
    }

    fn ask(&mut self, request: &str) -> serde_json::Value {
        writeln!(self.0.get_mut(), "{request}").unwrap();
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    /// The memory that dormouse says it has, in KiB.
    fn shown(&mut self) -> u64 {
        let own = self.ask(r#"{"v":1,"id":2,"op":"stat"}"#)["ok"]["own"].clone();
        assert!(own["memory_is_most"].is_null(), "{own}");
        own["memory_bytes"].as_u64().unwrap() / 1024
    }
}

/// Compares the memory that is shown with what the kernel counts for the process, before and after
/// times were taken.
fn shown_memory_is_resident(host: &mut Host) {
    let rss = |host: &mut Host| host.ask("rss").parse::<u64>().unwrap();
    rss(host);
    let before = rss(host);
    let socket = host.ask("init");
    host.ask("idle");
    let mut client = Client::connect(&socket);
    let (shown, taken) = (client.shown(), rss(host) - before);
    println!("    idle: {shown} KiB shown, {taken} KiB taken");
    assert!(shown <= taken && taken <= shown + UNSHOWN_KIB, "idle: {shown} KiB shown, {taken} KiB taken");
    // The stacks of the host's threads, and what the allocator gives to answers, are there before.
    for _ in 0..3 {
        host.ask("round");
        client.ask(r#"{"v":1,"id":2,"op":"stat"}"#);
    }
    // Answers with times would take memory, too: another client has them taken.
    let mut other = Client::connect(&socket);
    let (shown, taken) = (client.shown(), rss(host));
    let begun = other.ask(r#"{"v":1,"id":2,"op":"waits"}"#);
    assert!(begun["error"].is_null(), "{begun}");
    for _ in 0..100 {
        host.ask("round");
    }
    let taken = rss(host) - taken;
    let bound = taken / 10 + ALLOCATED_KIB;
    let mapped: u64 = host.ask("mapped").parse().unwrap();
    // A reading may be some seconds old.
    let mut more = 0;
    eventually(|| {
        more = client.shown().saturating_sub(shown);
        more.abs_diff(taken) <= bound
    });
    println!("    in use: {more} KiB more shown, {taken} KiB more taken; addresses: {mapped} KiB");
    assert!(mapped > taken + 2 * bound, "address space is another figure: {mapped} KiB");
}

fn starve(host: &mut Host, resource: &str, headroom: u64) {
    let socket = host.ask("init");
    host.ask("hit");
    host.ask("idle");
    // So that the key is on and must go off again.
    let holder = talk(&socket, r#"{"v":1,"id":2,"op":"on","glob":"host.key"}"#, false).unwrap();
    let start = Instant::now();
    while host.ask("awake") == "false" {
        assert!(start.elapsed() < HANG);
    }
    host.ask(&format!("limit {resource} {headroom}"));
    let traces: Vec<_> =
        (0..3).map(|_| talk(&socket, r#"{"v":1,"id":2,"op":"trace","glob":"host.hit"}"#, false)).collect();
    for op in ["keys", "stat", "doctor", "events"] {
        talk(&socket, &format!(r#"{{"v":1,"id":2,"op":"{op}"}}"#), true);
    }
    talk(&socket, r#"{"v":1,"id":2,"op":"on","glob":"*"}"#, true);
    talk(&socket, r#"{"v":1,"id":2,"op":"count","events":["task-clock","page-faults"]}"#, true);
    talk(&socket, r#"{"v":1,"id":2,"op":"waits"}"#, true);
    drop(traces);
    drop(holder);
    assert!(!host.ask("awake").is_empty(), "the host lives");
    // With memory again, all is given back.
    host.ask(&format!("limit {resource} {}", 1_u64 << 32));
    let start = Instant::now();
    while host.ask("awake") == "true" {
        assert!(start.elapsed() < HANG, "the lease is not given back");
    }
}

pub(crate) fn main() {
    if std::env::var_os(HOST).is_some() {
        return host::run();
    }
    let mut passed = 1;
    let mut host = Host::start();
    an_idle_agent_takes_little(&mut host);
    host.end();
    let mut host = Host::start();
    shown_memory_is_resident(&mut host);
    host.end();
    passed += 1;
    for resource in ["as", "data"] {
        for headroom in [0, 4 << 10, 256 << 10, 600 << 10, 1 << 20, 4 << 20] {
            println!("a host with {headroom} bytes left (RLIMIT_{resource})");
            let mut host = Host::start();
            starve(&mut host, resource, headroom);
            host.end();
            passed += 1;
        }
    }
    println!("{passed} passed, 0 failed");
}

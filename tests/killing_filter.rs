//! Under a filter that kills for any other system call than ARCHITECTURE.md lists, everything works
//! or says why not.
//!
//! The list is read from the page itself, so that the page is true. The service is this program
//! again: it does all that a service can do with dormouse on a thread of its own, while the command
//! asks everything that it can ask.

use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::pin::{Pin, pin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use axum::serve::Listener as _;
use dormouse::axum::Connections;
use dormouse::metrics::{Metrics, MetricsSpec};
use dormouse::sync::{self, Holds, LockTimes};
use dormouse::tokio::ServedStream;
use dormouse::{Event, Group, ProfileRun, ProfileSpec, Publishing, Waiting, static_key, unlikely};
use seccompiler::{BpfProgram, apply_filter, apply_filter_all_threads};
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::runtime::Runtime;

use crate::support;

const SERVICE: &str = "killing_filter::service";
const FILTER: &str = "TEST_FILTER";

/// The calls that the service makes itself for its connections.
const OWN_CALLS: [&str; 5] = ["accept4", "epoll_ctl", "epoll_wait", "recvfrom", "sendto"];

/// More clients than the service accepts: two in each round.
const GUESTS: usize = 64;

/// The calls in the table of ARCHITECTURE.md, of the rows that `wanted` names.
fn listed(wanted: &[&str]) -> Vec<String> {
    let page = include_str!("../ARCHITECTURE.md");
    let section = page.split("## System calls").nth(1).expect("a section on system calls");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut calls = Vec::new();
    for name in wanted {
        let row = section.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let row = row.unwrap_or_else(|| panic!("no row {name:?}"));
        let cell = row.split('|').nth(2).expect("a cell of calls");
        calls.extend(cell.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    calls
}

/// A filter that allows the calls in these rows, and kills for others; `TEST_TRAP` has it name the
/// call that it meets.
fn filter(wanted: &[&str]) -> BpfProgram {
    let calls = listed(wanted).into_iter().chain(OWN_CALLS.map(str::to_owned));
    let calls: Vec<String> = calls.map(|call| format!(r#"{{"syscall": "{call}"}}"#)).collect();
    let default = if std::env::var_os("TEST_TRAP").is_some() { "trap" } else { "kill_process" };
    let json = format!(
        r#"{{"main": {{"mismatch_action": "{default}", "match_action": "allow", "filter": [{}]}}}}"#,
        calls.join(",")
    );
    let architecture = std::env::consts::ARCH.try_into().expect("an architecture that filters know");
    let mut filters: BTreeMap<_, _> = seccompiler::compile_from_json(json.as_bytes(), architecture)
        .expect("a list of system calls")
        .into_iter()
        .collect();
    filters.remove("main").expect("a filter")
}

/// Names the call that a filter has met, and ends.
extern "C" fn tell(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's record of SIGSYS, which has the call's number behind an address.
    let call = unsafe { info.byte_add(24).cast::<i32>().read() };
    eprintln!("system call {call} on thread {:?}", std::thread::current().name());
    eprintln!("{}", std::backtrace::Backtrace::force_capture());
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(99) };
}

static_key! {
    static FAST: "filter.fast" = false;
}

/// A connection of the service with its client, and a listener with clients that are to be
/// accepted.
struct Connection {
    runtime: Runtime,
    stream: ServedStream<tokio::net::TcpStream>,
    client: TcpStream,
    listener: Connections<tokio::net::TcpListener>,
    _guests: Vec<TcpStream>,
}

impl Connection {
    fn open() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).expect("a server");
        let (stream, _) = listener.accept().expect("a client");
        stream.set_nonblocking(true).expect("a socket");
        listener.set_nonblocking(true).expect("a socket");
        let (stream, listener) = runtime.block_on(async {
            (tokio::net::TcpStream::from_std(stream), tokio::net::TcpListener::from_std(listener))
        });
        Self {
            runtime,
            stream: dormouse::tokio::received(stream.expect("a stream")),
            client,
            listener: dormouse::axum::listener(listener.expect("a listener"), Group::new("guests")),
            _guests: (0..GUESTS).map(|_| TcpStream::connect(address).expect("a server")).collect(),
        }
    }

    /// Accepts and reads while times are taken, and after.
    fn serves(&mut self) {
        let mut waiting = Some(Waiting::start().expect("times"));
        for _ in 0..2 {
            drop(self.runtime.block_on(self.listener.accept()));
            self.client.write_all(b"tea").expect("a server");
            let mut bytes = [0; 3];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = poll_fn(|cx| Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            self.runtime.block_on(read).expect("a client");
            assert_eq!(buffer.filled(), b"tea");
            drop(waiting.take());
        }
    }
}

/// Everything that a service's own threads do once it is set up.
fn surface(round: u32) {
    FAST.enable().expect("a key that can be switched");
    assert!(unlikely!(FAST));
    FAST.disable().expect("a key that can be switched");
    let lease = FAST.acquire().expect("a lease");
    dormouse::probe!("filter.probe", round);
    drop(lease);
    FAST.enable_for(Duration::from_millis(1)).expect("a hold");
    let known = Group::new("GET /known");
    let new = Group::new(&format!("GET /new/{round}"));
    let counting = dormouse::start_counting(&[Event::TASK_CLOCK, Event::PAGE_FAULTS]);
    for group in [known, new] {
        let _entered = group.enter();
        std::hint::black_box(dormouse::clock::thread_cpu_ns());
    }
    let _ = (known.read(), known.read_counts(), Group::all());
    drop(counting);
    drop(known.budget(Duration::from_secs(3600)));
    let mut future = pin!(known.instrument(async { dormouse::probe!("filter.probe", round) }));
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    let mut trace = dormouse::trace("filter.probe").expect("a trace");
    dormouse::probe!("filter.probe", round);
    let mut records = 0;
    trace.poll(|_, _, _| records += 1);
    assert!(records > 0);
    drop(trace);
    // Between two of the commands the service has another one.
    if dormouse::recorder::stat().is_none() {
        let recorder = dormouse::recorder::start("filter.probe", 1 << 20).expect("a recorder");
        dormouse::probe!("filter.probe", round);
        records = 0;
        recorder.each(|_, _, _| records += 1).expect("its records");
        assert_eq!(records, 1);
    }
    let publishing = Publishing::start();
    known.scope(|| spin(Duration::from_micros(100)));
    // A kernel or a filter may refuse it.
    drop(publishing);
    let metrics = Metrics::start(&MetricsSpec::new().waits()).expect("metrics");
    assert_eq!(metrics.answer(None).status, 200);
    drop(metrics);
    let space = dormouse_maps::AddressSpace::own().expect("the process's mappings");
    let cache = dormouse_maps::Cache::new();
    assert!(space.resolve(&cache, surface as *const () as u64).expect("a look-up").is_some());
    std::thread::spawn(move || {
        let _entered = known.enter();
        dormouse::probe!("filter.probe", round);
        std::hint::black_box(dormouse::clock::thread_cpu_ns());
    })
    .join()
    .expect("a thread that ends");
    let run = ProfileRun::start(&ProfileSpec::cpu().hz(250).unwind()).expect("a profile");
    std::thread::spawn(move || known.scope(|| spin(Duration::from_millis(50))))
        .join()
        .expect("a thread that ends");
    assert!(run.read().coverage.total >= 50_000_000);
    drop(run);
    // The thread that looks has the filter of this one.
    let polls = dormouse::long_polls(Duration::from_millis(2)).expect("a lookout");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for waits in [Duration::from_millis(1), Duration::ZERO] {
            let is_over = &is_over;
            scope.spawn(move || {
                let blocks = async {
                    while !is_over.load(Ordering::Relaxed) {
                        std::thread::sleep(waits);
                    }
                };
                let mut future = pin!(known.instrument(blocks));
                assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
            });
        }
        let mut stacks = std::collections::BTreeSet::new();
        while stacks.len() < 2 {
            let seen = polls.take().into_iter().filter(|poll| poll.stack.is_some());
            stacks.extend(seen.map(|poll| poll.tid));
            std::thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    drop(polls);
    locks(known);
    // The clock's checks come due now and then.
    spin(Duration::from_millis(20));
}

/// Takes locks that are noted, waits for them, and reads who does.
fn locks(known: Group) {
    let times = LockTimes::start(Holds::All).expect("locks that are noted");
    let (own, pots) = (sync::Mutex::new(0), sync::Semaphore::new(1));
    let held = (own.lock(), pots.acquire());
    std::thread::scope(|scope| {
        scope.spawn(|| known.scope(|| drop(own.lock())));
        scope.spawn(|| known.scope(|| drop(pots.acquire())));
        while sync::lock_waiters().len() < 2 {
            std::thread::yield_now();
        }
        assert!(sync::lock_holders().len() >= 2 && sync::lock_cycles().is_empty());
        drop(held);
    });
    let waits = sync::read_locks().into_iter().filter(|row| row.group == known.id());
    assert!(waits.map(|row| row.waits.count()).sum::<u64>() >= 2);
    drop(times);
}

/// Uses `time` of CPU time.
fn spin(time: Duration) {
    let until = dormouse::clock::thread_cpu_ns() + time.as_nanos() as u64;
    while dormouse::clock::thread_cpu_ns() < until {}
}

/// The service: one round of everything for each line that it reads.
#[test]
#[ignore = "the service of the other tests"]
fn service() {
    let kind = std::env::var(FILTER).expect("which filter");
    // SAFETY: a handler that ends the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = tell as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
    }
    let all = [
        "any program",
        "host threads",
        "host threads that read a `dormouse::tokio::ServedStream`, or accept by `dormouse::axum::listener`",
        "threads that are sampled",
        // It has the filter of the thread that begins the profile.
        "the sampler of profiles",
        // As the sampler.
        "the lookout",
        "the lookout, for long polls",
        "the lookout, for triggers",
        "threads that begin or end to publish",
        "threads that read metrics",
        "threads of dormouse",
        "start",
    ];
    let mut connection = Connection::open();
    if kind == "before init" {
        apply_filter_all_threads(&filter(&all)).expect("a filter");
    }
    dormouse::init().expect("an agent");
    match &*kind {
        "before init" => {}
        "after init, this thread" => apply_filter(&filter(&all[..10])).expect("a filter"),
        "after init, all threads" => apply_filter_all_threads(&filter(&all[..11])).expect("a filter"),
        other => panic!("{other}"),
    }
    dormouse::tokio::runtime("filter", connection.runtime.handle()).expect("a runtime that is shown");
    println!("ready");
    let mut lines = std::io::stdin().lines();
    for round in 0.. {
        let Some(Ok(_)) = lines.next() else { return };
        surface(round);
        connection.serves();
        println!("done");
    }
}

struct Service {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    runtime: tempfile::TempDir,
}

impl Service {
    fn start(kind: &str) -> Self {
        let runtime = tempfile::tempdir().expect("a directory");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([SERVICE, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(FILTER, kind)
            .env("DORMOUSE_RUNTIME_DIR", runtime.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a service");
        let stdin = child.stdin.take().expect("its input");
        let stdout = BufReader::new(child.stdout.take().expect("its output"));
        let mut service = Self { child, stdin, stdout, runtime };
        service.expect("ready", "its start");
        service
    }

    /// Reads until the service has said `word`.
    fn expect(&mut self, word: &str, after: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(word) {
            line.clear();
            let read = self.stdout.read_line(&mut line).expect("what it says");
            assert!(read > 0, "the service ended after {after}: {:?}", self.child.wait());
        }
    }

    fn round(&mut self, after: &str) {
        writeln!(self.stdin, "again")
            .unwrap_or_else(|_| panic!("it ended after {after}: {:?}", self.child.wait()));
        self.expect("done", after);
    }
}

fn everything_works_under(kind: &str) {
    let mut service = Service::start(kind);
    service.round("its own surface");
    let pid = service.child.id().to_string();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let address = maps.split('-').next().expect("an address");
    let verbs: [&[&str]; 22] = [
        &["ps"],
        &["keys", &pid],
        &["doctor", &pid],
        &["list", &pid],
        &["on", &pid, "filter.fast", "--for", "50ms"],
        &["on", &pid, "filter.*", "--keep"],
        &["off", &pid, "filter.*"],
        &["trace", &pid, "filter.*", "--for", "100ms"],
        &["top", &pid, "--once"],
        &["top", &pid, "--once", "-e", "task-clock,page-faults,alloc-count"],
        &["stat", &pid, "--for", "100ms"],
        &["stat", &pid, "--for", "100ms", "--waits"],
        &["stat", &pid, "--for", "100ms", "-e", "task-clock,context-switches,page-faults,cpu-migrations"],
        &["record", &pid, "filter.*"],
        &["record", &pid],
        &["record", &pid, "--off"],
        &["reset", &pid, "filter.*"],
        &["profile", &pid, "--for", "300ms"],
        &["maps", &pid, address],
        &["locks", &pid, "--for", "50ms", "--all"],
        &["tasks", &pid, "--leaks", "--for", "50ms"],
        &["triggers", &pid, "--add", "lock>1h"],
    ];
    // Watches of the whole process by itself are refused under its filter, and `doctor` ends so. No
    // task leaks here.
    let refuses_watches = kind != "after init, this thread";
    let mut wrong = Vec::new();
    for verb in verbs {
        let run = support::run(verb);
        service.round(&format!("{verb:?}: {run:?}"));
        let finding = match verb[0] {
            "doctor" if refuses_watches => Some("which may end it for perf_event_open"),
            "tasks" => Some("0 tasks that nothing can wake"),
            _ => None,
        };
        let is_right = run.code == Some(i32::from(finding.is_some()))
            && finding.is_none_or(|finding| run.stdout.contains(finding));
        if !is_right {
            wrong.push(format!("{verb:?}: {run:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    drop(service.stdin);
    assert!(service.child.wait().expect("its end").success());
}

#[test]
fn a_filter_before_init_kills_nobody() {
    everything_works_under("before init");
}

#[test]
fn a_filter_on_host_threads_kills_nobody() {
    everything_works_under("after init, this thread");
}

#[test]
fn a_filter_on_all_threads_kills_nobody() {
    everything_works_under("after init, all threads");
}

#[test]
fn a_removed_socket_under_a_filter_kills_nobody() {
    let mut service = Service::start("after init, all threads");
    let pid = service.child.id().to_string();
    let socket = service.runtime.path().join(format!("dormouse/{pid}.sock"));
    let mut trace = Command::new(support::DORMOUSE)
        .args(["trace", &pid, "filter.*", "--for", "3s", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a trace");
    let mut lines = BufReader::new(trace.stdout.take().expect("its output"));
    lines.read_line(&mut String::new()).expect("its start");
    // A trace keeps the agent awake, which then looks once a second whether its file is there.
    std::fs::remove_file(&socket).expect("the socket's file");
    let ended = trace.wait().expect("its end");
    assert!(ended.success(), "the service is there as long as its trace: {ended}");
    service.round("the loss of its socket's file");
    assert!(!socket.exists(), "nothing was tried");
    drop(service.stdin);
    assert!(service.child.wait().expect("its end").success());
}

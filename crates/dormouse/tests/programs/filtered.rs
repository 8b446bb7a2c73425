//! A host whose seccomp filter kills for system calls that it does not know: nothing is tried there
//! that nobody has asked for, neither by `init` nor by a client that only looks. And one whose
//! filter refuses `close_range`, as those that are older than this call do: what needs a table of
//! descriptors is refused by that name, and the rest works.
//!
//! No test harness: this program is the host too, in a child process.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use dormouse::{static_key, unlikely};
use dormouse_testkit::{Filter, HANG};

/// The variable that makes this process the host: when its filter comes, and the call it kills for.
const HOST: &str = "DORMOUSE_TEST_HOST";

static_key! {
    static KEY: "host.key" = false;
}

/// The calls of threads that switch keys, count the processor's events, or (at the end) start
/// threads.
const KILLED: [(&str, libc::c_long); 8] = [
    ("membarrier", libc::SYS_membarrier),
    ("mprotect", libc::SYS_mprotect),
    ("pwrite64", libc::SYS_pwrite64),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("close_range", libc::SYS_close_range),
    ("timer_create", libc::SYS_timer_create),
    ("clone3", libc::SYS_clone3),
    ("sched_getaffinity", libc::SYS_sched_getaffinity),
];

/// The protection of code, in the third argument of `mprotect`.
const EXECUTABLE: u64 = libc::PROT_EXEC as u64;

/// How many of them `init` needs itself.
const OF_INIT: usize = 2;

/// Has all threads killed for one call; for `mprotect` only where code would be made writable.
fn install(call: &str) {
    let number = KILLED.iter().find(|(name, _)| *name == call).unwrap().1;
    let filter = match call {
        "mprotect" => Filter::kill(&[]).and_where(number, 2, EXECUTABLE, &[EXECUTABLE]),
        _ => Filter::kill(&[number]),
    };
    filter.install_on_all_threads();
}

fn host(what: &str) {
    let (when, call) = what.split_once(' ').unwrap();
    match when {
        "before" => install(call),
        "refused" => Filter::refuse(&[libc::SYS_close_range]).install_on_all_threads(),
        _ => {}
    }
    let agent = dormouse::init().unwrap();
    if when == "after" {
        install(call);
    }
    assert!(!unlikely!(KEY));
    println!("{}", agent.path().display());
    // Until the test has seen enough.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

struct Host {
    child: Child,
    socket: String,
    _place: tempfile::TempDir,
}

impl Host {
    fn start(what: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(HOST, what).env("DORMOUSE_RUNTIME_DIR", place.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut socket = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut socket).unwrap();
        assert!(!socket.is_empty(), "{what}: init has ended the host: {:?}", child.wait());
        Self { child, socket: socket.trim_end().to_owned(), _place: place }
    }

    /// The answers to these requests, each in its turn.
    fn ask(&mut self, operations: &[&str]) -> Vec<String> {
        let mut stream = BufReader::new(UnixStream::connect(&self.socket).unwrap());
        stream.get_ref().set_read_timeout(Some(HANG)).unwrap();
        let hello = r#""op":"hello","client":"a test""#;
        let answers = std::iter::once(&hello).chain(operations).map(|operation| {
            let _ = writeln!(stream.get_mut(), "{{\"v\":1,\"id\":1,{operation}}}");
            let mut answer = String::new();
            let _ = stream.read_line(&mut answer);
            assert!(!answer.is_empty(), "{operation} has ended the host: {:?}", self.child.wait());
            answer
        });
        answers.collect()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Asks a host whose filter refuses `close_range` for what works there, and for what does not.
fn refused() {
    println!("close_range, refused");
    let mut host = Host::start("refused close_range");
    let doctor = r#""op":"doctor""#;
    assert!(!host.ask(&[doctor])[1].contains("close_range was refused"), "nothing has needed it");
    let works = [
        r#""op":"on","glob":"host.key""#,
        r#""op":"stat""#,
        r#""op":"count","events":["task-clock"]"#,
        r#""op":"waits""#,
        r#""op":"trace","glob":"host.*""#,
    ];
    for operation in works {
        let answers = host.ask(&[operation]);
        assert!(answers[1].contains("\"ok\""), "{}", answers[1]);
    }
    let refused = [
        r#""op":"profile","kind":"cpu""#,
        r#""op":"profile","kind":"alloc""#,
        r#""op":"long-polls","threshold_us":10000"#,
        r#""op":"trigger-add","rules":"request>1s""#,
        r#""op":"record-save""#,
    ];
    for operation in refused {
        let answers = host.ask(&[operation]);
        assert!(answers[1].contains("no table of descriptors (close_range)"), "{operation}: {}", answers[1]);
    }
    let found = &host.ask(&[doctor])[1];
    assert!(found.contains("host.descriptors") && found.contains("close_range was refused"), "{found}");
    host.end();
}

pub(crate) fn main() {
    if let Ok(what) = std::env::var(HOST) {
        return host(&what);
    }
    refused();
    let mut passed = 1;
    for (when, count) in [("before", KILLED.len() - OF_INIT), ("after", KILLED.len())] {
        for (at, (call, _)) in KILLED.into_iter().take(count).enumerate() {
            println!("{call}, filtered {when} init");
            let mut host = Host::start(&format!("{when} {call}"));
            let answers = host.ask(&[r#""op":"doctor""#, r#""op":"events""#, r#""op":"keys""#]);
            assert!(answers[1].contains("not tried"), "{}", answers[1]);
            if at >= KILLED.len() - OF_INIT {
                // The request may make its other calls.
                let on = r#""op":"on","glob":"host.key","for_ms":1"#;
                assert!(host.ask(&[on])[1].contains("\"ok\""));
            }
            host.end();
            passed += 1;
        }
    }
    println!("{passed} passed, 0 failed");
}

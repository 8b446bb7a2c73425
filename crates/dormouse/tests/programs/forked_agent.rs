//! A forked child has none of its parent's agent: no socket, no client, no lease, and may start one
//! of its own, even if it has its parent's process id in a PID namespace of its own. No test
//! harness: the process forks.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use dormouse::{static_key, unlikely};
use dormouse_testkit::{fork, join};

/// The exit code of a process that may make no namespace.
const REFUSED: i32 = 77;

static_key! {
    static KEY: "forked.key" = false;
}

fn is_awake() -> bool {
    unlikely!(KEY)
}

/// How many sockets this process has.
fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|fd| std::fs::read_link(fd.path()));
    links.flatten().filter(|to| to.to_string_lossy().starts_with("socket:")).count()
}

struct Client {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Client {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        let mut client = Self { stream, lines };
        let hello = client.ask(r#"{"v":1,"id":1,"op":"hello","client":"a test"}"#);
        assert!(hello.contains(&format!("\"pid\":{}", std::process::id())), "{hello}");
        client
    }

    fn ask(&mut self, request: &str) -> String {
        writeln!(self.stream, "{request}").unwrap();
        let mut answer = String::new();
        self.lines.read_line(&mut answer).unwrap();
        answer
    }
}

fn child(parents: &Path) {
    // The client's end, twice; not the agent's, and not the one that listens.
    assert_eq!(sockets(), 2);
    assert!(!KEY.is_enabled() && !is_awake());
    let agent = dormouse::init().unwrap();
    assert_ne!(agent.path(), parents);
    let mut client = Client::connect(agent.path());
    let on = client.ask(r#"{"v":1,"id":2,"op":"on","glob":"forked.*"}"#);
    assert!(on.contains("\"ok\"") && is_awake(), "{on}");
}

/// Has the children of this process begin in a PID namespace of their own, or ends the process.
fn separate_children() {
    // SAFETY: children alone are affected.
    #[expect(unsafe_code, reason = "unshare is")]
    let refused = unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0;
    if refused {
        std::process::exit(REFUSED);
    }
}

/// The first process of a namespace, as a container's, with a child that is the first of another
/// one.
fn first_of_namespace() {
    assert_eq!(std::process::id(), 1);
    let agent = dormouse::init().unwrap();
    separate_children();
    // SAFETY: as in `main`.
    #[expect(unsafe_code, reason = "fork is")]
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        assert_eq!(std::process::id(), 1);
        assert_ne!(dormouse::init().unwrap().path(), agent.path());
        // Runs the handlers of the end, which remove a socket file.
        std::process::exit(0);
    }
    let code = join(forked).code();
    if code != Some(0) {
        std::process::exit(code.unwrap_or(101));
    }
    Client::connect(agent.path());
}

/// Returns whether this user may make namespaces.
fn children_with_the_parents_process_id() -> bool {
    let status = fork(|| {
        separate_children();
        std::process::exit(fork(first_of_namespace).code().unwrap_or(101));
    });
    assert!([Some(0), Some(REFUSED)].contains(&status.code()), "{status}");
    status.success()
}

pub(crate) fn main() {
    let place = tempfile::tempdir().unwrap();
    // SAFETY: no other thread runs yet.
    #[expect(unsafe_code, reason = "set_var is")]
    unsafe {
        std::env::set_var("DORMOUSE_RUNTIME_DIR", place.path());
    }
    let mut passed = 1;
    if children_with_the_parents_process_id() {
        passed += 1;
    } else {
        dormouse_testkit::skip("this user may make no PID namespace");
    }
    let agent = dormouse::init().unwrap();
    let mut client = Client::connect(agent.path());
    let on = client.ask(r#"{"v":1,"id":2,"op":"on","glob":"forked.*"}"#);
    assert!(on.contains("\"ok\"") && is_awake(), "{on}");

    let (mut told, mut tell) = std::io::pipe().unwrap();
    // SAFETY: the child goes on with this thread; the allocator and the locks that it needs are
    // made whole by fork.
    #[expect(unsafe_code, reason = "fork is")]
    let forked = unsafe { libc::fork() };
    assert!(forked >= 0);
    if forked == 0 {
        drop(tell);
        child(agent.path());
        // Until the parent has seen its client's end.
        told.read_to_end(&mut Vec::new()).unwrap();
        std::process::exit(0);
    }
    assert!(is_awake());
    // The agent ends the connection; the child, which lives, does not keep it open.
    let refusal = client.ask("nonsense");
    assert!(refusal.contains("bad-request"), "{refusal}");
    assert_eq!(client.lines.read(&mut [0]).unwrap(), 0);
    tell.write_all(b"seen").unwrap();
    drop(tell);
    let mut status = 0;
    // SAFETY: waits for the child made above.
    #[expect(unsafe_code, reason = "waitpid is")]
    let waited = unsafe { libc::waitpid(forked, &raw mut status, 0) };
    assert_eq!((waited, status), (forked, 0), "the child failed");
    println!("{passed} passed, 0 failed");
}

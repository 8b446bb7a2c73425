//! The locks of a live service, as the command shows them.
//!
//! The service is this program, run once more.

use std::future::pending;
use std::hint::black_box;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Barrier, LazyLock};
use std::thread;
use std::time::Duration;

use dormouse::Group;
use dormouse::sync::{self, Mutex, Semaphore};
use dormouse_testkit::eventually;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{RUNTIME_VARIABLES, run};

/// A service whose threads wait for locks; it ends with this.
pub(crate) struct LockingService {
    child: Child,
    runtime: TempDir,
}

impl LockingService {
    pub(crate) fn start(variables: &[(&str, &str)]) -> LockingService {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["locks::service", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        for variable in RUNTIME_VARIABLES {
            command.env_remove(variable);
        }
        command.env("DORMOUSE_RUNTIME_DIR", runtime.path()).envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a service");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let is_ready = lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("ready"));
        assert!(is_ready, "the service has ended");
        thread::spawn(move || lines.count());
        LockingService { child, runtime }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn runtime(&self) -> &Path {
        self.runtime.path()
    }

    fn target(&self) -> String {
        self.pid().to_string()
    }
}

impl Drop for LockingService {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value in a lock.
struct Index;

/// The place that stands for all stacks of which something is not yet learned.
const UNLEARNED: u64 = 2;

static INDEX: Mutex<Index> = Mutex::new(Index);
static POTS: Semaphore = Semaphore::new(1);
static CUPS: [Mutex<u8>; 2] = [const { Mutex::new(0) }; 2];

/// Blends for a while with the index, of which it has the lock most of the time.
fn blend() {
    let _index = INDEX.lock();
    thread::sleep(Duration::from_millis(20));
}

/// Takes both cups, from one side.
fn take(own: usize) {
    static BOTH: Barrier = Barrier::new(2);
    let _own = CUPS[own].lock();
    BOTH.wait();
    let _other = CUPS[1 - own].lock();
}

#[inline(never)]
fn left() {
    take(0);
    black_box(());
}

#[inline(never)]
fn right() {
    take(1);
    black_box(());
}

/// Takes both saucers, from one side.
async fn take_softly(own: usize) {
    static SAUCERS: [sync::tokio::Mutex<u8>; 2] = [const { sync::tokio::Mutex::const_new(0) }; 2];
    static BOTH: LazyLock<tokio::sync::Barrier> = LazyLock::new(|| tokio::sync::Barrier::new(2));
    let _own = SAUCERS[own].lock().await;
    BOTH.wait().await;
    let _other = SAUCERS[1 - own].lock().await;
}

async fn softly_left() {
    take_softly(0).await;
}

async fn softly_right() {
    take_softly(1).await;
}

async fn goes_on() {
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One future of a task holds a lock and goes on; another one of the same task waits for it.
async fn joined() {
    static TRAY: sync::tokio::Mutex<u8> = sync::tokio::Mutex::const_new(0);
    let holds = async {
        let _tray = TRAY.lock().await;
        goes_on().await;
    };
    tokio::join!(holds, async { drop(TRAY.lock().await) });
}

async fn waits_in_a_group(lock: &sync::tokio::Mutex<u8>) {
    Group::new("GET /inner").instrument(async { drop(lock.lock().await) }).await;
}

/// One future of a task holds a lock and goes on; another one, in a nested group, waits for it.
async fn beside() {
    static TRAY: sync::tokio::Mutex<u8> = sync::tokio::Mutex::const_new(0);
    let holds = async {
        let _tray = TRAY.lock().await;
        goes_on().await;
    };
    tokio::join!(holds, waits_in_a_group(&TRAY));
}

/// A task holds a lock and waits for it in a nested group, and nowhere else: a deadlock.
async fn within() {
    static TRAY: sync::tokio::Mutex<u8> = sync::tokio::Mutex::const_new(0);
    let _tray = TRAY.lock().await;
    waits_in_a_group(&TRAY).await;
}

/// Polls the future in a task, on a thread of its own.
fn serve_task(future: impl Future<Output = ()> + Send + 'static) {
    let task = Group::new("GET /both").instrument(future);
    thread::spawn(|| tokio::runtime::Runtime::new().expect("a runtime").block_on(task));
}

async fn tasks() {
    Group::new("GET /left").scope(|| dormouse::tokio::spawn(softly_left()));
    Group::new("GET /right").scope(|| dormouse::tokio::spawn(softly_right()));
    pending::<()>().await;
}

fn serve(group: &'static str, work: fn()) {
    thread::spawn(move || {
        loop {
            Group::new(group).scope(work);
            thread::yield_now();
        }
    });
}

/// The service: it ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn service() {
    dormouse::init().expect("an agent");
    serve("GET /blend", blend);
    serve("POST /orders", || drop(INDEX.lock()));
    // The only permit is never given back.
    std::mem::forget(POTS.acquire());
    serve("GET /tea", || drop(POTS.acquire()));
    let deadlock = std::env::var("DEADLOCK").ok();
    match deadlock.as_deref() {
        Some("threads") => {
            thread::spawn(|| Group::new("GET /left").scope(left));
            thread::spawn(|| Group::new("GET /right").scope(right));
        }
        Some("tasks") => {
            thread::spawn(|| tokio::runtime::Runtime::new().expect("a runtime").block_on(tasks()));
        }
        Some("joined") => serve_task(joined()),
        Some("beside") => serve_task(beside()),
        Some("within") => serve_task(within()),
        _ => {}
    }
    while deadlock.is_some() && dormouse::sync::lock_cycles().is_empty() {
        thread::yield_now();
    }
    // The waiter for a permit is seen where locks are noted from the start.
    let is_noted = std::env::var_os("DORMOUSE_LOCKS").is_some();
    let is_permit = |user: &dormouse::sync::LockUser| user.place.kind.name() == "permit";
    while is_noted && !dormouse::sync::lock_waiters().iter().any(is_permit) {
        thread::yield_now();
    }
    println!("ready");
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

/// The row of the line at which a group waits.
fn row<'a>(document: &'a Value, group: &str) -> &'a Value {
    let rows = document["locks"].as_array().expect("rows");
    let waits = |row: &&Value| {
        row["waited_by"].as_array().is_some_and(|all| all.iter().any(|it| it["group"] == group))
    };
    rows.iter().find(waits).unwrap_or_else(|| panic!("{group} waits: {document}"))
}

#[test]
fn the_route_that_holds_a_lock_is_named() {
    let service = LockingService::start(&[]);
    let args = ["--json", "locks", &service.target(), "--for", "1s"];
    let document = run(args).json();
    let orders = row(&document, "POST /orders");
    assert!(orders["place"]["name"].as_str().is_some_and(|name| name.ends_with("Index")), "{orders}");
    let held = &orders["held_by"][0];
    assert_eq!((&held["by"], &held["group"]), (&"group".into(), &"GET /blend".into()), "{orders}");
    assert!(orders["wait_p99_ns"].as_u64() >= orders["wait_p50_ns"].as_u64());
    assert_eq!(orders["longest"]["place"]["file"], file!(), "{orders}");
    // A queue: its only permit was taken before the command came.
    let waits = document["waiters"].as_array().expect("waiters");
    let tea = waits.iter().find(|user| user["group"] == "GET /tea");
    assert!(tea.is_none_or(|user| user["place"]["kind"] == "permit"), "{document}");
    let text = run(["locks", &service.target(), "--for", "500ms"]).stdout;
    let line = text.lines().find(|line| line.contains("POST /orders")).expect("a row");
    assert!(
        line.starts_with("Index ") && line.contains("locks.rs:") && line.contains("GET /blend"),
        "{text}"
    );
}

#[test]
fn a_queue_shows_who_has_its_permits() {
    let service = LockingService::start(&[("DORMOUSE_LOCKS", "1")]);
    let document = run(["--json", "locks", &service.target(), "--for", "50ms"]).json();
    let users = |of: &str, group: &str| {
        let all = document[of].as_array().expect("users").clone();
        let is_its =
            |user: &Value| user["place"]["kind"] == "permit" && user["group"].as_str().unwrap_or("") == group;
        all.into_iter().filter(is_its).collect::<Vec<_>>()
    };
    let ([holder], [waiter]) = (&users("holders", "")[..], &users("waiters", "GET /tea")[..]) else {
        panic!("{document}")
    };
    assert_eq!(holder["address"], waiter["address"]);
    assert!(holder["for_ns"].as_u64() > waiter["for_ns"].as_u64(), "{document}");
    let text = run(["locks", &service.target(), "--for", "50ms"]).stdout;
    assert!(text.contains("WAITING NOW"), "{text}");
    let metrics = run(["--json", "stat", &service.target(), "--for", "50ms"]);
    assert_eq!(metrics.code, Some(0), "{metrics:?}");
}

/// The two who wait for one another: the first is the left one.
fn stuck(document: &Value) -> [Value; 2] {
    let [deadlock] = &document["deadlocks"].as_array().expect("deadlocks")[..] else { panic!("{document}") };
    let blocked = deadlock["blocked"].as_array().expect("two");
    assert_eq!(blocked.len(), 2, "{deadlock}");
    ["GET /left", "GET /right"].map(|group| {
        let is_its = |of: &&Value| of["waiter"]["group"] == group;
        blocked.iter().find(is_its).unwrap_or_else(|| panic!("{group}: {deadlock}")).clone()
    })
}

/// Whether a function of this name is among the frames.
fn has(of: &Value, function: &str) -> bool {
    let frames = of["frames"].as_array().expect("frames");
    let names = frames.iter().filter_map(|frame| frame["function"].as_str());
    names.map(|name| name.trim_end_matches("::{{closure}}")).any(|name| name.ends_with(function))
}

#[test]
fn a_deadlock_ends_the_command_with_one() {
    let service = LockingService::start(&[("DORMOUSE_LOCKS", "1"), ("DEADLOCK", "threads")]);
    // The threads may still be on their way to sleep, on a busy machine.
    let mut document = Value::Null;
    eventually(|| {
        let found = run(["--json", "locks", &service.target(), "--for", "20ms"]);
        assert_eq!(found.code, Some(1), "{found:?}");
        document = found.json();
        let [left, right] = stuck(&document);
        has(&left, "locks::left") && has(&right, "locks::right")
    });
    for (of, other) in stuck(&document).iter().zip(["locks::right", "locks::left"]) {
        assert!(of["no_stack"].is_null() && of["way"].is_string() && !has(of, other), "{of}");
    }
    let found = run(["locks", &service.target(), "--for", "20ms"]);
    let mut lines = found.stdout.lines();
    assert_eq!(lines.next(), Some("deadlock"), "{found:?}");
    let first = lines.next().expect("a thread");
    assert!(first.contains("waits for ") && first.contains("held by "), "{first}");
    for part in ["\n  GET /left (", "\n  GET /right (", "locks::left (locks.rs:", "locks::right (locks.rs:"] {
        let lines = format!("\n{}", found.stdout);
        assert_eq!(lines.matches(part).count(), 1, "{part}: {found:?}");
    }
}

#[test]
fn tasks_in_a_deadlock_show_their_places() {
    let deadlock = [("DORMOUSE_LOCKS", "1"), ("DEADLOCK", "tasks")];
    let locks = |service: &LockingService| {
        let found = run(["--json", "locks", &service.target(), "--for", "20ms"]);
        let document = found.json();
        let is_certain = document["deadlocks"][0]["unsure"].is_null();
        assert_eq!(found.code, Some(i32::from(is_certain)), "{document}");
        stuck(&document)
    };
    // They were last polled before somebody asked.
    for of in locks(&LockingService::start(&deadlock)) {
        assert_eq!(of["no_stack"], "the task was not polled since times are taken, or has ended", "{of}");
        assert!(of["waiter"]["place"]["file"] == file!() && of["way"].is_null(), "{of}");
    }
    let service = LockingService::start(&[&deadlock[..], &[("DORMOUSE_WAITS", "1")]].concat());
    for of in locks(&service) {
        assert_eq!(of["no_stack"], "the task waits since before places were noted", "{of}");
    }
    let mut both = Default::default();
    eventually(|| {
        let woken = run(["tasks", &service.target(), "--wake", "--for", "100ms"]);
        assert_eq!(woken.code, Some(0), "{woken:?}");
        both = locks(&service);
        has(&both[0], "locks::softly_left") && has(&both[1], "locks::softly_right")
    });
    for (of, other) in both.iter().zip(["locks::softly_right", "locks::softly_left"]) {
        assert!(of["no_stack"].is_null() && of["way"].is_null() && !has(of, other), "{of}");
    }
}

#[test]
fn futures_of_one_task_are_no_deadlock() {
    let service = LockingService::start(&[("DORMOUSE_LOCKS", "1"), ("DEADLOCK", "joined")]);
    let found = run(["locks", &service.target(), "--for", "20ms"]);
    assert_eq!(found.code, Some(0), "{found:?}");
    assert!(found.stdout.starts_with("may be a deadlock: another future of a task"), "{found:?}");
}

/// Has the service's tasks polled until `is_it` is true of why the only circle may be no deadlock,
/// and of the list of tasks.
fn comes_to(deadlock: &str, is_it: impl Fn(&str, &Value) -> bool) {
    let variables = [("DORMOUSE_LOCKS", "1"), ("DORMOUSE_WAITS", "1"), ("DEADLOCK", deadlock)];
    let service = LockingService::start(&variables);
    eventually(|| {
        let tasks = run(["--json", "tasks", &service.target(), "--wake", "--for", "100ms"]).json();
        let found = run(["--json", "locks", &service.target(), "--for", "20ms"]);
        assert_eq!(found.code, Some(0), "{found:?}");
        let of = &found.json()["deadlocks"][0];
        assert_eq!(of["blocked"].as_array().map(Vec::len), Some(1), "{of}");
        is_it(of["unsure"].as_str().expect("a reason"), &tasks["tasks"])
    });
}

#[test]
fn a_future_that_may_go_on_is_shown() {
    for deadlock in ["joined", "beside"] {
        let place = "locks::goes_on (locks.rs:";
        comes_to(deadlock, |why, _| {
            why.contains(place) && why.ends_with(", too, and may free its lock from there")
        });
    }
    // This one waits nowhere else, but a future in between could.
    comes_to("within", |why, tasks| {
        let is_known = |group: &str| {
            let task = tasks.as_array().expect("tasks").iter().find(|task| task["group"] == group);
            let places = task.and_then(|task| task["places"].as_array());
            places.is_some_and(|places| places.iter().any(|place| place.as_u64() > Some(UNLEARNED)))
        };
        assert_eq!(why, "another future of a task in it may go on, and free its lock");
        is_known("GET /both") && is_known("GET /inner")
    });
}

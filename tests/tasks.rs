//! The tasks of a live service: each state, tasks from before, tasks that come and go meanwhile,
//! very many of them, and a service that dies.
//!
//! The service is this program, run once more: its tasks are polled by hand, so that each stays in
//! its state.

use std::collections::HashSet;
use std::future::{Future, pending, poll_fn};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use dormouse::Group;
use dormouse_testkit::{eventually, short_or_long};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{RUNTIME_VARIABLES, Run, Running, Service, run};

/// A name that fills a line.
pub(crate) const LONG: &str =
    "GET /a/path/that/is/longer/than/anybody/would/like/to/read/and/longer/than/a/line/of/a/terminal";

/// A service with tasks, which ends with this.
pub(crate) struct TaskService {
    child: Child,
    runtime: TempDir,
}

impl TaskService {
    /// With so many tasks that are parked. `from_start`: it takes times from the start on.
    pub(crate) fn start(parked: usize, from_start: bool) -> TaskService {
        let parked = parked.to_string();
        let waits: &[(&str, &str)] = if from_start { &[("DORMOUSE_WAITS", "1")] } else { &[] };
        TaskService::start_test("tasks::service", &[&[("TEST_PARKED", &*parked)], waits].concat())
    }

    /// The service that the test of this name is.
    pub(crate) fn start_test(test: &str, variables: &[(&str, &str)]) -> TaskService {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        for variable in RUNTIME_VARIABLES {
            command.env_remove(variable);
        }
        command.env("DORMOUSE_RUNTIME_DIR", runtime.path()).envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a service");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let is_ready = lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("ready"));
        assert!(is_ready, "the service has ended");
        // Nobody shall fill a pipe.
        thread::spawn(move || lines.count());
        TaskService { child, runtime }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn target(&self) -> String {
        self.child.id().to_string()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.runtime.path().join(format!("dormouse/{}.sock", self.child.id()))
    }

    pub(crate) fn runtime(&self) -> &Path {
        self.runtime.path()
    }

    pub(crate) fn tasks(&self, args: &[&str]) -> Run {
        run(["tasks", &self.target()].iter().chain(args))
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let run = self.tasks(&[args, &["--json"]].concat());
        assert_eq!(run.code, Some(0), "{run:?}");
        run.json()
    }
}

impl Drop for TaskService {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The service: it ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn service() {
    let parked: usize = std::env::var("TEST_PARKED").expect("a number").parse().expect("a number");
    dormouse::init().expect("an agent");
    let mut context = Context::from_waker(Waker::noop());
    let mut tasks: Vec<_> =
        (0..parked).map(|_| Box::pin(Group::new("parked").instrument(pending::<()>()))).collect();
    for task in &mut tasks {
        assert!(task.as_mut().poll(&mut context).is_pending());
    }
    let mut woken = Box::pin(Group::new("woken").instrument(poll_fn(|context| {
        context.waker().wake_by_ref();
        Poll::<()>::Pending
    })));
    assert!(woken.as_mut().poll(&mut context).is_pending());
    let mut other = Box::pin(Group::new(LONG).instrument(pending::<()>()));
    assert!(other.as_mut().poll(&mut context).is_pending());
    thread::spawn(|| {
        // In a poll for ever.
        let mut stuck = Box::pin(Group::new("stuck").instrument(poll_fn(|_| -> Poll<()> {
            loop {
                thread::park();
            }
        })));
        stuck.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    });
    thread::spawn(|| {
        let (mut often, mut sleepy) = (leaf("often"), leaf("sleepy"));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(sleepy.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        loop {
            if woken.0.swap(false, Ordering::Relaxed) {
                assert!(sleepy.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
            let mut short = Box::pin(Group::new("short").instrument(pending::<()>()));
            assert!(short.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert!(often.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            thread::sleep(Duration::from_micros(100));
        }
    });
    while ["stuck", "short"].iter().any(|name| Group::new(name).read().started == 0) {
        thread::yield_now();
    }
    println!("ready");
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

/// Whether the runtime's waker was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A task whose leaf takes a waker in each poll, and keeps it.
fn leaf(group: &str) -> Pin<Box<impl Future<Output = ()>>> {
    let mut kept = Vec::new();
    let leaf = poll_fn(move |context| {
        kept.clear();
        kept.push(context.waker().clone());
        Poll::Pending
    });
    Box::pin(Group::new(group).instrument(leaf))
}

fn of_group<'a>(document: &'a Value, group: &str) -> Vec<&'a Value> {
    let tasks = document["tasks"].as_array().unwrap_or_else(|| panic!("{document}"));
    tasks.iter().filter(|task| task["group"] == group).collect()
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_else(|| panic!("no {field} in {of}"))
}

#[test]
fn each_state_is_listed_with_its_time() {
    let service = TaskService::start(3, true);
    let document = service.json(&["--for", "0s"]);
    for (group, state, polls) in [("parked", "awaiting", 1), ("woken", "runnable", 1), ("stuck", "polled", 0)]
    {
        let tasks = of_group(&document, group);
        assert_eq!(tasks.len(), if group == "parked" { 3 } else { 1 }, "{document}");
        for task in tasks {
            assert_eq!((&task["state"], number(task, "polls")), (&state.into(), polls), "{task}");
            let [age, poll, runnable, awaited] =
                ["age_ns", "poll_ns", "runnable_ns", "await_ns"].map(|field| number(task, field));
            // Each time is rounded by itself.
            assert!(age.abs_diff(poll + runnable + awaited) <= 3, "{task}");
            assert!(number(task, "for_ns") <= age, "{task}");
        }
    }
    assert_eq!(document["unlisted"], Value::Array(Vec::new()), "{document}");
    let polled = service.json(&["--for", "0s", "--state", "polled", "--group", "stuck"]);
    assert_eq!(polled["tasks"].as_array().unwrap().len(), 1, "{polled}");
    let none = service.tasks(&["--for", "0s", "--group", "nobody"]);
    assert_eq!((none.code, none.stdout.lines().count()), (Some(1), 1), "{none:?}");
}

#[test]
fn cancelled_requests_name_who_dropped_them() {
    let service = TaskService::start(1, false);
    let asking = Running::start(["tasks", &service.target(), "--for", "10m"]);
    // The first stacks have functions that are not learned yet.
    let short = || {
        let document = service.json(&["--for", "0s"]);
        let rows = document["cancelled"]["rows"].as_array().expect("rows").clone();
        rows.into_iter().find(|row| row["group"] == "short" && row["dropped_by"] == "function")
    };
    eventually(|| short().is_some());
    let row = short().expect("it was there");
    let file = row["dropped_at"]["file"].as_str().expect("a file");
    assert!(file.ends_with("tests/tasks.rs") && number(&row, "requests") > 0, "{row}");
    assert!(number(&row, "age_p50_ns") <= number(&row, "age_max_ns"), "{row}");
    let text = service.tasks(&["--for", "0s", "--group", "short"]).stdout;
    let line = text.lines().find(|line| line.contains("(tasks.rs:"));
    assert!(
        text.contains("cancelled in the last") && line.is_some_and(|line| line.contains("short")),
        "{text}"
    );
    asking.end_by(Signal::INT);
}

#[test]
fn text_has_the_tasks_in_order() {
    let service = TaskService::start(30, true);
    let text = service.tasks(&["--group", "parked,woken", "-n", "3", "--sort", "group"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    let lines: Vec<&str> = text.stdout.lines().collect();
    assert!(lines[0].contains("31 of ") && lines[0].contains("times are taken for "), "{text:?}");
    for part in ["TASK", "GROUP", "AGE", "STATE", "FOR", "POLLS", "WAKES", "BUSY"] {
        assert!(lines[1].contains(part), "no {part:?} in {text:?}");
    }
    assert!(lines[2..5].iter().all(|line| line.contains("parked") && line.contains("awaiting")), "{text:?}");
    assert_eq!(lines[5], "and 28 more tasks", "{text:?}");
    let tree = service.tasks(&["--tree", "--group", "!short"]);
    for part in ["TASKS", "LONGEST", "PLACE", "parked", "woken", "stuck", "(polled)"] {
        assert!(tree.stdout.contains(part), "no {part:?} in {tree:?}");
    }
    let tree = service.json(&["--tree", "--group", "parked"]);
    assert_eq!((&tree["tree"]["tasks"], &tree["tree"]["inner"][0]["group"]), (&30.into(), &"parked".into()));
}

#[test]
fn tasks_from_before_are_known_by_a_poll() {
    let service = TaskService::start(5, false);
    // As long as it takes on a machine that does other things, too: the functions of the place are
    // learned after a first poll.
    let has_place = |task: &&Value| !task["places"].as_array().unwrap().is_empty();
    let document = (0..40)
        .map(|_| service.json(&["--for", "500ms"]))
        .find(|document| of_group(document, "often").iter().any(has_place))
        .expect("a place");
    let often = of_group(&document, "often")[0];
    assert_eq!(often["age_ns"], Value::Null, "{often}");
    assert!(number(often, "polls") > 0 && number(&document, "taken_ns") >= 500_000_000, "{document}");
    // The stack is known where the code has frame pointers.
    assert_eq!((&often["has_waker"], often["places"].as_array().unwrap().len()), (&true.into(), 1));
    let mut places = document["places"].as_array().unwrap().iter();
    let place = places.find(|place| place["place"] == often["places"][0]);
    assert!(place.is_some_and(|place| !place["frames"].as_array().unwrap().is_empty()), "{document}");
    assert!(of_group(&document, "parked").is_empty(), "nobody polls them: {document}");
    let unlisted = document["unlisted"].as_array().unwrap();
    let of = |group: &str| unlisted.iter().find(|of| of["group"] == group).map(|of| number(of, "tasks"));
    assert_eq!([of("parked"), of("stuck"), of("woken"), of("often")], [Some(5), Some(1), Some(1), None]);
    let text = service.tasks(&["--group", "parked"]);
    assert_eq!(text.code, Some(1), "{text:?}");
    assert!(text.stdout.contains("5 tasks of parked are not known"), "{text:?}");
}

#[test]
fn places_from_before_are_known_by_a_wake() {
    let service = TaskService::start(0, true);
    let sleepy = |args: &[&str]| {
        let document = service.json(&[&["--group", "sleepy"], args].concat());
        let places = document["tasks"][0]["places"].as_array().unwrap().len();
        (places, number(&document["tasks"][0], "polls"))
    };
    assert_eq!(sleepy(&["--for", "0s"]), (0, 1));
    assert_eq!(sleepy(&["--for", "0s"]), (0, 1), "nobody wakes it");
    let woken = service.tasks(&["--wake", "--for", "0s", "--group", "sleepy"]);
    assert!(woken.code == Some(0) && woken.stderr.contains("woken"), "{woken:?}");
    dormouse_testkit::eventually(|| sleepy(&["--for", "0s"]).1 == 2);
    let again = || sleepy(&["--wake", "--for", "100ms"]).0 == 1;
    dormouse_testkit::eventually(again);
}

#[test]
fn places_are_waited_for_where_times_are_taken() {
    let service = TaskService::start(1, true);
    let taken = || number(&service.json(&["--for", "0s"]), "taken_ns");
    dormouse_testkit::eventually(|| taken() > 1_000_000_000);
    // A stamp of places is rounded to less than a millisecond.
    for (args, noted) in [(&["--for", "200ms"][..], 199_000_000), (&[], 999_000_000)] {
        let mut document = serde_json::Value::Null;
        // While it is polled it has no place.
        dormouse_testkit::eventually(|| {
            document = service.json(args);
            of_group(&document, "often")[0]["places"].as_array().unwrap().len() == 1
        });
        assert!(number(&document, "noted_ns") >= noted, "{document}");
        assert_eq!(number(&document, "unplaced"), 1, "sleepy has its waker since before: {document}");
    }
    for more in [&["-n", "1"][..], &["--tree"]] {
        let text = service.tasks(&[&["--group", "sleepy"], more].concat());
        for part in ["PLACE", "not noted)", "1 task took a waker before places were noted: --wake"] {
            assert!(text.stdout.contains(part), "no {part:?} in {text:?}");
        }
    }
    // Another client has had places noted for long.
    let other = Running::start(["tasks", &service.target(), "--for", "10m"]);
    let noted = || number(&service.json(&["--for", "0s"]), "noted_ns");
    dormouse_testkit::eventually(|| noted() > 1_000_000_000);
    let document = service.json(&["--for", "200ms"]);
    assert!(number(&document, "noted_ns") >= 1_200_000_000, "{document}");
    other.end_by(rustix::process::Signal::INT);
}

#[test]
fn tasks_have_their_cpu_time_if_asked() {
    let service = TaskService::start(1, true);
    let document = service.json(&["--cpu", "--for", "300ms"]);
    // Polled all the time, never, and since before.
    let cpu = |group: &str| of_group(&document, group)[0]["cpu_ns"].as_u64();
    assert!(cpu("often") > Some(0), "{document}");
    assert_eq!((cpu("parked"), cpu("stuck")), (Some(0), None), "{document}");
    let text = service.tasks(&["--cpu", "--sort", "cpu", "--for", "100ms"]);
    let lines: Vec<&str> = text.stdout.lines().collect();
    assert!(lines[1].contains("BUSY") && lines[1].contains("CPU"), "{text:?}");
    let without = service.json(&["--for", "0s"]);
    assert_eq!(of_group(&without, "often")[0].get("cpu_ns"), None, "{without}");
    service.tasks(&["--sort", "cpu"]).assert_fails(2, &["--cpu"]);
}

#[test]
fn very_many_tasks_are_all_listed() {
    let many = short_or_long(20_000, 100_000);
    let service = TaskService::start(many, true);
    let document = service.json(&["--for", "0s", "--group", "parked", "--timeout", "60s"]);
    // Others come and go meanwhile.
    let parked = of_group(&document, "parked");
    let numbers: HashSet<u64> = parked.iter().map(|task| number(task, "task")).collect();
    assert_eq!((parked.len(), numbers.len()), (many, many));
    // A reader that has seen enough.
    let mut running = Running::start(["tasks", &service.target(), "--for", "0s", "--timeout", "60s"]);
    assert!(running.line().contains("tasks, seen within"));
    let ended = running.end_by_closing_stdout();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_service_that_dies_meanwhile_is_named() {
    let mut service = TaskService::start(1, false);
    let running = Running::start(["tasks", &service.target(), "--for", "10m"]);
    let taking =
        || run(["--json", "keys", &service.target(), "dormouse.waits"]).json()["keys"][0]["on"] == true;
    dormouse_testkit::eventually(taking);
    service.child.kill().expect("a service to kill");
    running.end().assert_fails(1, &["ended, or closed the connection"]);
}

#[test]
fn ctrl_c_lists_what_there_is() {
    let service = TaskService::start(1, false);
    let running = Running::start(["tasks", &service.target(), "--for", "10m", "--group", "often", "--json"]);
    let taking =
        || run(["--json", "keys", &service.target(), "dormouse.waits"]).json()["keys"][0]["on"] == true;
    dormouse_testkit::eventually(taking);
    let ended = running.end_by(rustix::process::Signal::INT);
    assert!(ended.json()["taken_ns"].as_u64().is_some(), "{ended:?}");
    // It leaves nothing on.
    dormouse_testkit::eventually(|| !taking());
}

#[test]
fn a_server_lists_its_tasks() {
    let service = Service::busy();
    let run = run(["tasks", &service.target(), "--for", "500ms", "--json"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(!run.json()["tasks"].as_array().unwrap().is_empty(), "{run:?}");
    service.assert_alive();
}

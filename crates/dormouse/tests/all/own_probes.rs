//! Probes of dormouse's own: polls and tasks, as a trace sees them. Each test in its own process,
//! because keys and rings are the process's.

use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use dormouse::record::{Field, RecordKind};
use dormouse::{Group, NumberedTask, Trace, TraceContext, Waiting, trace};
use dormouse_testkit::in_child;

/// A record of a probe of dormouse's own.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    probe: &'static str,
    kind: RecordKind,
    thread: u64,
    task: u64,
    group: u32,
    /// As text.
    values: Vec<String>,
}

fn seen(trace: &mut Trace) -> Vec<Seen> {
    let mut all = Vec::new();
    trace.poll(|key, thread, record| {
        all.push(Seen {
            probe: key.name(),
            kind: record.phase,
            thread: thread.start,
            task: record.task,
            group: record.group,
            values: record.values.iter().map(Field::to_string).collect(),
        });
    });
    all
}

/// The polls of each thread are nested, and none is left open.
fn assert_balanced(seen: &[Seen]) {
    let mut open: HashMap<u64, Vec<u64>> = HashMap::new();
    for it in seen.iter().filter(|it| it.probe == "dormouse.poll") {
        let open = open.entry(it.thread).or_default();
        match it.kind {
            RecordKind::Enter => open.push(it.task),
            RecordKind::Exit => assert_eq!(open.pop(), Some(it.task), "{seen:?}"),
            RecordKind::Point => panic!("{it:?}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?} are open");
}

fn polls(seen: &[Seen], task: u64) -> usize {
    let is_enter = |it: &&Seen| it.kind == RecordKind::Enter && it.task == task;
    seen.iter().filter(|it| it.probe == "dormouse.poll").filter(is_enter).count()
}

/// The begin and the end of each task.
fn tasks(seen: &[Seen]) -> Vec<(u64, RecordKind, Vec<String>)> {
    let of = |it: &Seen| (it.task, it.kind, it.values.clone());
    seen.iter().filter(|it| it.probe == "dormouse.task").map(of).collect()
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Pending once.
fn yields() -> impl Future<Output = ()> + Send {
    let mut has = false;
    poll_fn(move |_| if std::mem::replace(&mut has, true) { Poll::Ready(()) } else { Poll::Pending })
}

#[test]
fn nested_polls_on_several_threads_are_balanced() {
    in_child(|| {
        let mut trace = trace("dormouse.poll,dormouse.task").unwrap();
        let (route, database) = (Group::new("route"), Group::new("database"));
        let task = route.task();
        let id = task.id();
        let mut request = Box::pin(task.instrument(async move {
            database.instrument(yields()).await;
            yields().await;
        }));
        assert!(poll_once(request.as_mut()).is_pending());
        let mut request = std::thread::spawn(move || {
            assert!(poll_once(request.as_mut()).is_pending());
            request
        })
        .join()
        .unwrap();
        assert!(poll_once(request.as_mut()).is_ready());
        drop(request);

        let seen = seen(&mut trace);
        assert_balanced(&seen);
        assert_eq!(polls(&seen, id), 3);
        let threads: std::collections::HashSet<u64> = seen.iter().map(|it| it.thread).collect();
        assert_eq!(threads.len(), 2);
        let inner = seen.iter().find(|it| it.group == database.id()).unwrap().task;
        assert_eq!(polls(&seen, inner), 2);
        // The parent, and whether the task came from outside of its group.
        let words = |parent: u64| vec![parent.to_string(), "true".to_owned()];
        let begun: Vec<_> = tasks(&seen).into_iter().filter(|it| it.1 == RecordKind::Enter).collect();
        assert_eq!(begun, [(id, RecordKind::Enter, words(0)), (inner, RecordKind::Enter, words(id))]);
        let mut ended: Vec<_> = tasks(&seen).into_iter().filter(|it| it.1 == RecordKind::Exit).collect();
        ended.sort_unstable_by_key(|it| it.0);
        let mut both = [id, inner].map(|task| (task, RecordKind::Exit, vec!["\"completed\"".to_owned()]));
        both.sort_unstable_by_key(|it| it.0);
        assert_eq!(ended, both);
    });
}

#[test]
fn a_tasks_trace_is_recorded_when_known() {
    in_child(|| {
        let mut trace = trace("dormouse.trace_context").unwrap();
        let context = |span| TraceContext::new([0xab; 16], [span; 8]).unwrap();
        let (route, database) = (Group::new("route"), Group::new("database"));
        dormouse::set_trace_context(context(1));
        // Nobody takes times: the record tells it all the same.
        route.scope(|| assert!(!dormouse::set_trace_context(context(2))));
        let _waiting = Waiting::start().unwrap();
        route.scope(|| {
            assert!(dormouse::set_trace_context(context(3)));
            database.scope(|| ());
        });
        let seen = seen(&mut trace);
        assert!(seen.iter().all(|it| it.kind == RecordKind::Point), "{seen:?}");
        let of =
            |group: Group, span: u8| (group.id(), vec!["ab".repeat(16), format!("{span:02x}").repeat(8)]);
        let all: Vec<_> = seen.into_iter().map(|it| (it.group, it.values)).collect();
        assert_eq!(all, [of(route, 2), of(route, 3), of(database, 3)]);
    });
}

#[test]
fn cancelled_and_panicking_tasks_are_balanced() {
    in_child(|| {
        std::panic::set_hook(Box::new(|_| {}));
        let mut trace = trace("dormouse.*").unwrap();
        let group = Group::new("route");
        {
            let mut cancelled = pin!(group.instrument(pending::<()>()));
            assert!(poll_once(cancelled.as_mut()).is_pending());
        }
        let mut panics = Box::pin(group.instrument(async { panic!("as planned") }));
        assert!(catch_unwind(AssertUnwindSafe(|| poll_once(panics.as_mut()))).is_err());
        drop(panics);
        assert!(catch_unwind(|| group.scope(|| panic!("as planned"))).is_err());
        drop(group.instrument(pending::<()>()));

        let seen = seen(&mut trace);
        assert_balanced(&seen);
        let tasks = tasks(&seen);
        let of = |kind| {
            let mut of: Vec<u64> = tasks.iter().filter(|it| it.1 == kind).map(|it| it.0).collect();
            of.sort_unstable();
            of
        };
        assert_eq!(of(RecordKind::Enter).len(), 4);
        assert_eq!(of(RecordKind::Enter), of(RecordKind::Exit));
        let mut ends: Vec<_> =
            tasks.iter().filter(|it| it.1 == RecordKind::Exit).map(|it| &*it.2[0]).collect();
        ends.sort_unstable();
        assert_eq!(ends, ["\"cancelled\"", "\"cancelled\"", "\"panicked\"", "\"panicked\""]);
    });
}

#[test]
fn scopes_threads_and_stretches_are_polls() {
    in_child(|| {
        let mut trace = trace("dormouse.poll").unwrap();
        let group = Group::new("by.hand");
        group.scope(|| ());
        drop(group.enter());
        let mut fiber = group.task();
        let id = fiber.id();
        fiber.run(|| ());
        std::thread::spawn(move || fiber.run(|| ())).join().unwrap();
        group.spawn_thread(|| ()).unwrap().join().unwrap();
        // As C does.
        let task = NumberedTask::begin(group, false);
        let (mark, entered) = task.enter(group).unwrap();
        assert!(entered.leave(group, mark) && !entered.leave(group, mark));
        task.end(group);

        let seen = seen(&mut trace);
        assert_balanced(&seen);
        assert_eq!((polls(&seen, id), polls(&seen, task.number), seen.len()), (2, 1, 12));
        assert!(seen.iter().all(|it| it.group == group.id()));
    });
}

#[test]
fn a_key_switched_amid_a_poll_hurts_nobody() {
    in_child(|| {
        let group = Group::new("route");
        let mut inside = None;
        group.scope(|| inside = Some(trace("dormouse.poll").unwrap()));
        let mut trace = inside.unwrap();
        let kinds = |seen: Vec<Seen>| seen.iter().map(|it| it.kind).collect::<Vec<_>>();
        assert_eq!(kinds(seen(&mut trace)), [RecordKind::Exit]);
        group.scope(|| ());
        assert_eq!(kinds(seen(&mut trace)), [RecordKind::Enter, RecordKind::Exit]);
        group.scope(|| drop(trace));
    });
}

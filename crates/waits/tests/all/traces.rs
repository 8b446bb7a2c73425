//! The traces of tasks, from their callers, tracers and services to exemplars.

use std::task::{Context, Waker};
use std::thread;

use dormouse_waits::{
    ActiveSpan, Exemplar, LivingTask, Nesting, SpanSwitch, TaskEnd, TaskWaits, TraceContext, Waiting, Who,
    exemplars, living, note_slow, observe, set_trace_context, take_slow,
};

fn context(trace: u8, span: u8) -> TraceContext {
    TraceContext::new([trace; 16], [span; 8]).unwrap()
}

fn local(context: TraceContext) -> ActiveSpan {
    ActiveSpan { context, is_remote: false }
}

fn enter(context: TraceContext, nesting: Nesting) {
    observe(|| SpanSwitch { to: Some(local(context)), entered: Some(nesting) });
}

/// A span was left, and what was around it is current again.
fn leave(around: Option<ActiveSpan>) {
    observe(|| SpanSwitch { to: around, entered: None });
}

fn poll(waits: &mut TaskWaits, who: Who, inside: impl FnOnce()) {
    waits.poll(who, &mut Context::from_waker(Waker::noop()), |_| inside());
}

fn trace_of(task: u64) -> Option<TraceContext> {
    living().find(|of| of.task == task).unwrap().trace
}

fn only(group: u32) -> Exemplar {
    match exemplars(group, |it| it)[..] {
        [only] => only,
        ref all => panic!("{all:?}"),
    }
}

#[test]
fn a_request_ends_with_its_trace() {
    let _waiting = Waiting::start().unwrap();
    let (who, own) = (Who { task: 101, group: 60 }, context(1, 1));
    let mut waits = TaskWaits::begun(who);
    waits.call(|| Some(context(2, 2)));
    assert_eq!(trace_of(101), Some(context(2, 2)));
    poll(&mut waits, who, || {
        enter(own, Nesting::Outermost);
        enter(context(1, 7), Nesting::Nested);
        leave(Some(local(own)));
        leave(None);
    });
    assert_eq!(trace_of(101), Some(own), "its first span, also when no span is current");
    waits.end(TaskEnd::Answered);
    let it = only(60);
    assert_eq!((it.task, it.trace), (101, Some(own)));
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let ago = since_1970.as_nanos() as u64 - it.unix_ns;
    assert!(ago < 60_000_000_000, "{ago}");
}

#[test]
fn a_task_begins_in_the_span_around_it() {
    let _waiting = Waiting::start().unwrap();
    let (own, connection) = (context(3, 3), Who { task: 201, group: 61 });
    let mut outer = TaskWaits::begun(connection);
    let mut inner = None;
    poll(&mut outer, connection, || {
        enter(own, Nesting::Outermost);
        inner = Some(TaskWaits::begun(Who { task: 203, group: 62 }));
        leave(None);
        // The next request of the connection has another trace, and the third has none.
        enter(context(4, 4), Nesting::Outermost);
        leave(None);
        let _third = TaskWaits::begun(Who { task: 205, group: 62 });
        assert_eq!(trace_of(205), None);
    });
    assert_eq!((trace_of(203), trace_of(201)), (Some(own), None));
}

#[test]
fn parts_have_what_their_request_was_given() {
    let _waiting = Waiting::start().unwrap();
    let who = Who { task: 301, group: 63 };
    let mut waits = TaskWaits::begun(who);
    waits.call(|| Some(context(5, 5)));
    poll(&mut waits, who, || {
        let _called = TaskWaits::begun(Who { task: 302, group: 63 });
        assert_eq!(trace_of(302), Some(context(5, 5)));
        assert!(set_trace_context(context(6, 6)));
        let part = Who { task: 304, group: 63 };
        let mut set = TaskWaits::begun(part);
        assert_eq!(trace_of(304), Some(context(6, 6)));
        poll(&mut set, part, || enter(context(6, 9), Nesting::Outermost));
        leave(None);
        assert_eq!((trace_of(304), trace_of(301)), (Some(context(6, 9)), Some(context(6, 6))));
    });
}

#[test]
fn a_slow_request_has_its_trace() {
    let _waiting = Waiting::start().unwrap();
    note_slow(Some(0));
    let who = Who { task: 401, group: 64 };
    let mut waits = TaskWaits::begun(who);
    let unsampled = context(8, 8).sampled(false);
    poll(&mut waits, who, || assert!(set_trace_context(unsampled)));
    waits.end(TaskEnd::Answered);
    note_slow(None);
    let mut seen = None;
    take_slow(|request| seen = seen.or((request.task == 401).then_some(request.trace)));
    assert_eq!(seen, Some(Some(unsampled)), "a log may have it, though no backend has");
    assert_eq!(only(64).trace, None);
}

#[test]
fn a_forked_child_has_no_exemplars() {
    dormouse_testkit::in_child(|| {
        let request = |task| {
            let who = Who { task, group: 66 };
            let mut waits = TaskWaits::begun(who);
            poll(&mut waits, who, || _ = set_trace_context(context(task as u8, 1)));
            waits.end(TaskEnd::Answered);
        };
        let _waiting = Waiting::start().unwrap();
        request(1);
        let status = dormouse_testkit::fork(|| {
            assert_eq!(exemplars(66, |it| it), []);
            let _waiting = Waiting::start().unwrap();
            request(3);
            assert_eq!((only(66).task, only(66).trace), (3, Some(context(3, 1))));
        });
        assert!(status.success());
        assert_eq!(only(66).task, 1);
    });
}

#[test]
fn nobody_is_asked_while_times_sleep() {
    // Other tests of the process have times taken.
    dormouse_testkit::in_child(|| {
        let who = Who { task: 501, group: 65 };
        let mut waits = TaskWaits::begun(who);
        waits.call(|| unreachable!());
        observe(|| unreachable!());
        poll(&mut waits, who, || assert!(!set_trace_context(context(1, 1))));
        // A span that became current before is not known, and one of another thread is not.
        let _waiting = Waiting::start().unwrap();
        thread::scope(|scope| _ = scope.spawn(|| enter(context(9, 9), Nesting::Outermost)));
        let _begun = TaskWaits::begun(who);
        let LivingTask { trace, .. } = living().find(|of| of.task == 501).unwrap();
        assert_eq!(trace, None);
        assert!(!set_trace_context(context(1, 1)), "the thread is in no task");
    });
}

//! `end/NAME`: a task from its begin to its end, with one stretch in between, while times are
//! taken.

use std::hint::black_box;
use std::time::Duration;

use dormouse_waits::{Frames, Head, TaskEnd, TaskWaits, TraceContext, Waiting, Who, set_trace_context};

use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::Spec;
use crate::runner::Failure;

/// A group that no other row has.
const GROUP: u32 = 1_000;

/// Some outcome, as each request has one.
const OUTCOME: Option<u8> = Some(0);

/// Adds the rows.
pub(crate) fn rows(bench: &mut Bench) {
    row(bench, "part", Waiting::start, |who| once(who, TaskEnd::NoRequest, || ()));
    row(bench, "request", Waiting::start, |who| once(who, TaskEnd::Answered, || ()));
    row(bench, "request-again", Waiting::start, |who| once(who, TaskEnd::Answered, || ()));
    row(bench, "unanswered", Waiting::start, |who| once(who, TaskEnd::Unanswered, || ()));
    row(bench, "answered", Waiting::start, answered);
    row(bench, "asleep", || Ok::<_, Failure>(()), |who| once(who, TaskEnd::Answered, || ()));
    row(bench, "asleep-answered", || Ok::<_, Failure>(()), answered);
    row(bench, "traced", Waiting::start, |who| {
        once(who, TaskEnd::Answered, || _ = set_trace_context(trace(who.task)));
    });
    let spec = Spec::new("trace/asleep", "ns").per("call").cpu();
    bench.per_iteration(spec, |calls| {
        let began = thread_cpu_ns();
        (0..calls).for_each(|call| _ = black_box(set_trace_context(trace(call))));
        Ok(Duration::from_nanos(thread_cpu_ns() - began))
    });
}

fn row<H, E: Into<Failure>>(
    bench: &mut Bench,
    name: &str,
    ready: impl Fn() -> Result<H, E> + 'static,
    task: impl Fn(Who) + 'static,
) {
    let spec = Spec::new(format!("end/{name}"), "ns").per("task").cpu();
    bench.per_iteration(spec, move |tasks| {
        let _held = ready().map_err(Into::into)?;
        let began = thread_cpu_ns();
        (0..tasks).for_each(|task_number| task(Who { task: task_number * 2 + 1, group: GROUP }));
        Ok(Duration::from_nanos(thread_cpu_ns() - began))
    });
}

fn once(who: Who, end: TaskEnd, inside: impl FnOnce()) {
    let mut waits = TaskWaits::begun(who);
    let stretch = waits.run(who);
    inside();
    drop(stretch);
    waits.end_with(end, OUTCOME);
}

/// A request whose poll makes the head and the body of its response.
fn answered(who: Who) {
    let mut waits = TaskWaits::begun(who);
    drop(waits.run(who));
    waits.head(Head::Answer);
    waits.frames(Frames { frames: 1, bytes: 100, is_stream: false });
    waits.end_with(TaskEnd::Answered, OUTCOME);
}

/// A trace of its own for each.
fn trace(task: u64) -> TraceContext {
    let id = (u128::from(task) << 64 | 1).to_be_bytes();
    TraceContext::new(id, (task | 1).to_be_bytes()).expect("the id is not zero")
}

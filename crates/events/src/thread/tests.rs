use std::sync::atomic::Ordering;

use super::stack::with;
use super::token::Token;
use super::*;
use crate::control::{Counting, Mode};
use crate::ledger::Context;
use crate::pmu::{CountingPmu, Event};
use crate::span;

mod announced;
mod asleep;

static PMU: CountingPmu = CountingPmu::new();

fn happenings() -> Event {
    PMU.event("happenings", 0)
}

fn pass(times: u64) {
    CountingPmu::happen(0, times);
}

/// A context that counts happenings.
fn context() -> (&'static Context, Counting) {
    let context = Context::new();
    (context, Counting::of(context, &[happenings()], Mode::GroupExact).unwrap())
}

fn value(context: &Context) -> (u64, u64) {
    let counts = context.read();
    let count = counts.iter().find(|count| count.event == happenings());
    count.map_or((0, 0), |count| (count.value, count.nested))
}

#[test]
fn the_innermost_task_is_charged() {
    let ((a, _a), (b, _b)) = (context(), context());
    pass(100);
    let outer = enter(&mut Task::new(a, 1), Kind::Poll);
    pass(10);
    let inner = enter(&mut Task::new(b, 2), Kind::Poll);
    assert_eq!((current_task(), current_context()), (2, b.id()));
    pass(5);
    assert_eq!(value(b), (5, 0), "what is pending is seen");
    let again = enter(&mut Task::new(a, 3), Kind::Poll);
    pass(2);
    drop(again);
    drop(inner);
    assert_eq!(current_task(), 1);
    pass(1);
    drop(outer);
    pass(1000);
    assert_eq!((current_task(), current_context()), (0, 0));
    assert_eq!((value(a), value(b)), ((13, 5), (5, 2)));
    assert_eq!((a.entries(), b.entries()), (2, 1));
}

#[test]
fn scopes_may_end_in_any_order() {
    let ((a, _a), (b, _b)) = (context(), context());
    let first = enter(&mut Task::new(a, 1), Kind::Scope);
    pass(1);
    let second = enter(&mut Task::new(b, 2), Kind::Scope);
    pass(10);
    drop(first);
    pass(100);
    drop(second);
    pass(1000);
    assert_eq!((value(a).0, value(b).0), (1, 110));
    assert_eq!(current_task(), 0);
}

#[test]
fn a_poll_ends_its_scopes_despite_late_guards() {
    let ((a, _a), (b, _b)) = (context(), context());
    let poll = enter(&mut Task::new(a, 1), Kind::Poll);
    let kept = enter(&mut Task::new(b, 2), Kind::Scope);
    std::mem::forget(enter(&mut Task::new(b, 3), Kind::Scope));
    pass(7);
    drop(poll);
    pass(100);
    let next = enter(&mut Task::new(a, 4), Kind::Poll);
    pass(1);
    drop(kept);
    assert_eq!(current_task(), 4);
    pass(1);
    drop(next);
    assert_eq!((value(a).0, value(b).0), (2, 7));
}

#[test]
fn too_deep_tasks_charge_the_outer_one() {
    let ((a, _a), (b, _b)) = (context(), context());
    let before = overflows();
    let guards: Vec<_> = (0..MAX_DEPTH).map(|_| enter(&mut Task::new(a, 1), Kind::Scope)).collect();
    let too_deep = enter(&mut Task::new(b, 2), Kind::Scope);
    pass(3);
    drop(too_deep);
    drop(guards);
    assert_eq!((value(a).0, value(b).0), (3, 0));
    assert_eq!(overflows(), before + 1);
    assert_eq!(current_task(), 0);
}

#[test]
fn a_panic_ends_the_task() {
    let (a, _a) = context();
    let caught = std::panic::catch_unwind(|| {
        let _guard = enter(&mut Task::new(a, 1), Kind::Poll);
        pass(4);
        std::panic::resume_unwind(Box::new("of the test"));
    });
    assert!(caught.is_err());
    pass(100);
    assert_eq!(value(a).0, 4);
    assert_eq!(current_task(), 0);
}

#[test]
fn a_running_task_is_counted_per_counting() {
    let a = Context::new();
    let guard = enter(&mut Task::new(a, 1), Kind::Scope);
    pass(1);
    let counting = Counting::of(a, &[happenings()], Mode::GroupExact).unwrap();
    pass(10);
    assert_eq!(value(a).0, 10);
    let more = Counting::of(a, &[PMU.event("others", 1)], Mode::GroupExact).unwrap();
    CountingPmu::happen(1, 7);
    pass(100);
    assert_eq!(value(a).0, 110);
    drop(counting);
    pass(1000);
    assert_eq!(value(a).0, 110);
    let counting = Counting::of(a, &[happenings()], Mode::GroupExact).unwrap();
    pass(10_000);
    drop(guard);
    pass(100_000);
    drop(counting);
    assert_eq!(value(a).0, 10_110);
    assert_eq!(a.read().iter().find(|count| count.event.name() == "others").unwrap().value, 7);
    drop(more);
}

#[test]
fn a_lazy_thread_charges_its_last_task() {
    let ((a, _a), (b, _b)) = (context(), context());
    set_lazy(true);
    drop(enter(&mut Task::new(a, 1), Kind::Poll));
    pass(1);
    assert_eq!((current_task(), value(a).0), (0, 1));
    for task in 0..10 {
        let poll = enter(&mut Task::new(a, task), Kind::Poll);
        pass(1);
        drop(poll);
    }
    assert_eq!(value(a).0, 11);
    drop(enter(&mut Task::new(b, 1), Kind::Poll));
    pass(100);
    park();
    pass(1000);
    assert_eq!((value(a).0, value(b).0), (11, 100));
    assert_eq!(a.entries(), 11);
    set_lazy(false);
}

#[test]
fn an_eager_again_thread_ends_its_task() {
    let (a, _a) = context();
    set_lazy(true);
    drop(enter(&mut Task::new(a, 1), Kind::Poll));
    let poll = enter(&mut Task::new(a, 2), Kind::Poll);
    pass(1);
    set_lazy(false);
    drop(poll);
    pass(10);
    assert_eq!(value(a).0, 1);
}

#[test]
fn a_customized_task_is_apart_and_stoppable() {
    let (a, _a) = context();
    let mut pinned = Task::new(a, 1);
    pinned.pin();
    let mut plain = Task::new(a, 2);
    assert!(!pinned.is_equivalent(&plain));
    assert!(plain.is_equivalent(&Task::new(a, 3)));
    switch(Some(&mut pinned));
    pass(1);
    switch(Some(&mut plain));
    pass(10);
    plain.disable_all();
    pass(100);
    assert!(plain.is_equivalent(&plain.inherit(4)));
    plain.enable_all();
    assert!(plain.is_equivalent(&Task::new(a, 3)));
    pass(1000);
    plain.add(PMU.event("others", 1)).unwrap();
    assert!(plain.add(PMU.event("others", 1)).is_err());
    CountingPmu::happen(1, 3);
    switch(None);
    pass(10_000);
    assert_eq!(value(a).0, 1011);
    assert_eq!(pinned.counts(), [(happenings(), 1)]);
    assert!(plain.counts().contains(&(PMU.event("others", 1), 3)));
    assert!(!a.read().iter().any(|count| count.event.name() == "others"));
}

#[test]
fn a_guard_that_has_entered_nothing_ends_nothing() {
    let (a, _a) = context();
    std::thread::spawn(move || {
        with(|stack| {
            // The lowest frame, whose token is not written yet when a handler comes that is too
            // deep.
            stack.frames[0].context.set(Some(a));
            stack.top.set(stack.top.get().next(Kind::Poll));
            stack.leave(Token::NONE);
            assert_eq!((stack.depth(), stack.frames[0].context.get().is_some()), (1, true));
            stack.top.set(stack.top.get().gone());
        });
    })
    .join()
    .unwrap();
}

#[test]
fn a_task_left_at_thread_end_is_charged() {
    let a = Context::new();
    let (entered, is_entered) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        std::mem::forget(enter(&mut Task::new(a, 1), Kind::Scope));
        entered.send(()).unwrap();
        let _ = gone.recv();
        pass(10);
    });
    is_entered.recv().unwrap();
    let counting = Counting::of(a, &[happenings()], Mode::GroupExact).unwrap();
    drop(go);
    thread.join().unwrap();
    drop(counting);
    assert_eq!(value(a).0, 10);
}

#[test]
fn a_disabled_task_stays_so_when_counting_begins() {
    // Somebody counts, so that the hook is awake.
    let (_other, _awake) = context();
    let a = Context::new();
    let mut task = Task::new(a, 1);
    task.disable_all();
    let guard = enter(&mut task, Kind::Scope);
    let _counting = Counting::of(a, &[happenings()], Mode::GroupExact).unwrap();
    pass(10);
    drop(guard);
    assert_eq!(value(a).0, 0);
}

#[test]
fn an_added_event_is_the_tasks_alone() {
    let (a, _a) = context();
    let others = PMU.event("others", 1);
    let mut task = Task::new(a, 1);
    task.add(others).unwrap();
    let guard = enter(&mut task, Kind::Scope);
    CountingPmu::happen(1, 100);
    let counting = Counting::of(a, &[others], Mode::GroupExact).unwrap();
    CountingPmu::happen(1, 7);
    pass(3);
    drop(counting);
    CountingPmu::happen(1, 1000);
    drop(guard);
    let of = |event| a.read().iter().find(|count| count.event == event).map(|count| count.value);
    assert_eq!((of(others), of(happenings())), (Some(7), Some(3)));
    assert_eq!(task.counts(), [(happenings(), 3), (others, 1107)]);
}

#[test]
fn own_and_nested_counts_survive_changes() {
    let ((a, _a), (b, _b)) = (context(), context());
    let outer = enter(&mut Task::new(a, 1), Kind::Scope);
    let mut task = Task::new(b, 2);
    task.pin();
    let inner = enter(&mut task, Kind::Scope);
    for _ in 0..3 {
        pass(10);
        drop(Counting::of(b, &[PMU.event("others", 1)], Mode::GroupExact).unwrap());
    }
    pass(1);
    drop(inner);
    drop(outer);
    assert_eq!((value(a), value(b)), ((0, 31), (31, 0)));
    assert_eq!(task.counts(), [(happenings(), 31)]);
}

#[test]
fn a_running_delta_is_seen_beside_busy_threads() {
    use std::sync::atomic::AtomicBool;
    let (a, _a) = context();
    let stop = &AtomicBool::new(false);
    let (entered, is_entered) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _guard = enter(&mut Task::new(a, 1), Kind::Scope);
            pass(1_000_000_000);
            entered.send(()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        is_entered.recv().unwrap();
        for _ in 0..2 {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _guard = enter(&mut Task::new(a, 2), Kind::Poll);
                    pass(1);
                }
            });
        }
        for _ in 0..200 {
            assert!(consistently(a) >= 1_000_000_000);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn threads_in_a_change_are_waited_for_together() {
    const THREADS: u32 = 50;
    let (_, _counting) = context();
    let (arrived, has_arrived) = std::sync::mpsc::channel();
    let stop = &std::sync::Barrier::new(THREADS as usize + 1);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let arrived = arrived.clone();
            scope.spawn(move || {
                // As if it had been descheduled there.
                with(|stack| {
                    let span = stack.here().unwrap().span;
                    let number = span.begin();
                    arrived.send(()).unwrap();
                    stop.wait();
                    span.end_alike(number);
                });
            });
        }
        (0..THREADS).for_each(|_| has_arrived.recv().unwrap());
        let other = PMU.event("others", 1);
        let took = || {
            let start = std::time::Instant::now();
            let counting = Counting::everywhere(std::slice::from_ref(&other), Mode::GroupExact).unwrap();
            let took = start.elapsed();
            drop(counting);
            took
        };
        // One after the other they would take a second. A busy machine may once take half of it.
        let mut tries = (0..10).map(|_| took());
        let is_fast = tries.any(|took| took < std::time::Duration::from_millis(500));
        stop.wait();
        assert!(is_fast);
    });
}

#[test]
#[cfg_attr(miri, ignore = "the kernel's list of mappings")]
fn the_table_of_spans_lies_in_bss() {
    let middle = (&raw const span::SPANS).addr() + size_of_val(&span::SPANS) / 2;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let holds = |line: &&str| {
        let bounds = line.split_once(' ').and_then(|(bounds, _)| bounds.split_once('-'));
        let bounds = bounds.map(|(from, to)| [from, to].map(|at| usize::from_str_radix(at, 16).unwrap()));
        bounds.is_some_and(|[from, to]| (from..to).contains(&middle))
    };
    let line = maps.lines().find(holds).unwrap();
    // A mapping of no file: `.bss`.
    assert_eq!(line.split_whitespace().nth(4), Some("0"), "{line}");
}

/// A first read of these counts: no earlier sum hides what this read misses.
fn consistently(context: &'static Context) -> u64 {
    context.forget_reported();
    value(context).0
}

#[test]
fn a_multiplexing_unit_reports_running_time() {
    #[derive(Debug)]
    struct Turns;

    impl crate::Pmu for Turns {
        fn name(&self) -> &'static str {
            "turns"
        }

        fn read(&self, _: &[u32], values: &mut [u64]) {
            values.fill(0);
        }

        fn share(&self, _: u32) -> Option<crate::Times> {
            Some(crate::Times { enabled_ns: 400, running_ns: 100 })
        }
    }

    static TURNS: Turns = Turns;
    let context = Context::new();
    let _counting = Counting::of(context, &[Event::new("turns", &TURNS, 0)], Mode::GroupExact).unwrap();
    let count = context.read().into_iter().find(|count| count.event.name() == "turns").unwrap();
    assert!(count.enabled_ns > 0 && count.running_ns == count.enabled_ns / 4, "{count:?}");
}

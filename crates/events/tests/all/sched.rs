//! A unit that is told when threads come to its events and leave them.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use dormouse_events::{Context, Counting, Event, Kind, Mode, Pmu, Task, enter, park, set_lazy, switch};
use dormouse_sys::thread::on_thread_exit;
use dormouse_testkit::{fork, in_child};

#[derive(Debug)]
struct Armed;

thread_local! {
    /// The events that are in, by bits.
    static IN: Cell<u32> = const { Cell::new(0) };
    /// How often that has changed.
    static CHANGES: Cell<u32> = const { Cell::new(0) };
    /// The counter's value at its last read.
    static READ_WHILE: Cell<u32> = const { Cell::new(0) };
}

fn set(bits: u32) {
    if IN.replace(bits) != bits {
        CHANGES.set(CHANGES.get() + 1);
    }
}

fn bits(events: &[u32]) -> u32 {
    events.iter().fold(0, |bits, event| bits | 1 << event)
}

impl Pmu for Armed {
    fn name(&self) -> &'static str {
        "armed"
    }

    fn read(&self, _: &[u32], values: &mut [u64]) {
        READ_WHILE.set(IN.get());
        values.fill(0);
    }

    fn is_scheduled(&self) -> bool {
        true
    }

    fn sched_in(&self, events: &[u32]) {
        set(IN.get() | bits(events));
    }

    fn sched_out(&self, events: &[u32]) {
        set(IN.get() & !bits(events));
    }
}

static ARMED: Armed = Armed;

fn event(number: u32) -> Event {
    const NAMES: [&str; 4] = ["zero", "one", "two", "three"];
    Event::new(NAMES[number as usize], &ARMED, number)
}

fn count(context: &'static Context, number: u32) -> Counting {
    Counting::of(context, &[event(number)], Mode::GroupExact).unwrap()
}

/// A context that counts this event and another one that counts the clock.
fn contexts(number: u32) -> (&'static Context, &'static Context, [Counting; 2]) {
    let (armed, other) = (Context::new(), Context::new());
    let clock = Counting::of(other, &[Event::TASK_CLOCK], Mode::GroupExact).unwrap();
    (armed, other, [count(armed, number), clock])
}

fn poll(context: &'static Context, task: u64) -> u32 {
    let _current = enter(&mut Task::new(context, task), Kind::Poll);
    IN.get()
}

#[test]
fn events_are_in_for_their_context_alone() {
    let (armed, other, _counting) = contexts(0);
    for task in 1..5 {
        assert_eq!((poll(armed, 2 * task), poll(other, 2 * task + 1)), (1, 0));
    }
    assert_eq!((poll(armed, 11), poll(Context::new(), 12)), (1, 0), "also where nothing is counted");
}

#[test]
fn tasks_of_one_context_change_nothing() {
    let (armed, other, _counting) = contexts(0);
    for lazy in [false, true] {
        set_lazy(lazy);
        poll(armed, 1);
        let before = CHANGES.get();
        for task in 2..9 {
            assert_eq!(poll(armed, task), 1);
        }
        switch(Some(&mut Task::new(armed, 10)));
        switch(Some(&mut Task::new(armed, 11)));
        switch(None);
        park();
        assert_eq!((poll(armed, 12), CHANGES.get()), (1, before));
        poll(other, 13);
        assert_eq!((IN.get(), CHANGES.get()), (0, before + 1));
    }
}

#[test]
fn the_counter_is_read_before_and_after() {
    let (armed, other, _counting) = contexts(0);
    let both = Counting::of(other, &[event(3)], Mode::GroupExact).unwrap();
    poll(armed, 1);
    assert_eq!(READ_WHILE.get(), 1, "charged with its events in");
    let _outer = enter(&mut Task::new(armed, 2), Kind::Poll);
    assert_eq!((poll(other, 3), READ_WHILE.get()), (1 << 3, 0), "neither set is in as it is left");
    drop(both);
}

#[test]
fn the_innermost_task_decides() {
    let (outer, inner, _counting) = contexts(0);
    let more = count(inner, 1);
    let _outer = enter(&mut Task::new(outer, 1), Kind::Poll);
    let before = CHANGES.get();
    assert_eq!(poll(inner, 2), 1 << 1);
    assert_eq!((IN.get(), CHANGES.get()), (1, before + 4));
    drop(more);
    assert_eq!((poll(inner, 3), IN.get()), (0, 1));
    let same = enter(&mut Task::new(outer, 4), Kind::Poll);
    drop(same);
    assert_eq!((IN.get(), CHANGES.get()), (1, before + 6));
}

#[test]
fn events_begun_amid_tasks_wait_for_switches() {
    let context = Context::new();
    let _current = enter(&mut Task::new(context, 1), Kind::Poll);
    let first = count(context, 0);
    assert_eq!(IN.get(), 0);
    assert_eq!(poll(context, 2), 1);
    let second = count(context, 2);
    assert_eq!(poll(context, 3), 1 | 1 << 2);
    drop(first);
    assert_eq!(poll(context, 4), 1 << 2);
    drop(second);
    assert_eq!(poll(context, 5), 0);
}

#[test]
fn an_ended_event_comes_in_again() {
    let (armed, _, [counting, _clock]) = contexts(1);
    poll(armed, 1);
    drop(counting);
    // As a unit does at its end, on all threads.
    set(0);
    let _counting = count(armed, 1);
    assert_eq!(poll(armed, 2), 1 << 1);
}

#[test]
fn a_task_without_its_counters_is_out() {
    let (armed, _, _counting) = contexts(0);
    let mut task = Task::new(armed, 1);
    let _current = enter(&mut task, Kind::Poll);
    task.disable_all();
    assert_eq!(IN.get(), 0);
    task.enable_all();
    assert_eq!(IN.get(), 1);
}

#[test]
fn a_panic_leaves_as_an_end_does() {
    let (armed, other, _counting) = contexts(0);
    let _outer = enter(&mut Task::new(other, 1), Kind::Poll);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _current = enter(&mut Task::new(armed, 2), Kind::Poll);
        assert_eq!(IN.get(), 0, "it is 1");
    }));
    assert!(panicked.is_err());
    assert_eq!(IN.get(), 0);
}

#[test]
fn a_moved_task_is_in_elsewhere() {
    let (armed, other, _counting) = contexts(0);
    let mut task = Task::new(armed, 1);
    switch(Some(&mut task));
    assert_eq!(IN.get(), 1);
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            switch(Some(&mut task));
            IN.get()
        });
        assert_eq!(there.join().unwrap(), 1);
    });
    switch(Some(&mut Task::new(other, 2)));
    assert_eq!(IN.get(), 0);
    switch(None);
}

#[test]
fn the_end_of_a_thread_takes_all_out() {
    /// The changes of a thread that has ended with nothing in.
    static ENDED_AFTER: AtomicU32 = AtomicU32::new(0);
    let (armed, _, _counting) = contexts(0);
    // Hooks run in the order in which they come: ours after that of the thread's tasks.
    poll(armed, 1);
    let note = || {
        if IN.get() == 0 {
            ENDED_AFTER.fetch_max(CHANGES.get(), Ordering::Relaxed);
        }
    };
    assert!(on_thread_exit(note));
    std::thread::spawn(move || (0..2).for_each(|task| _ = poll(armed, 2 + task))).join().unwrap();
    assert!(ENDED_AFTER.load(Ordering::Relaxed) >= 2);
}

#[test]
fn a_child_begins_with_nothing_in() {
    in_child(|| {
        let (armed, _, _counting) = contexts(0);
        poll(armed, 1);
        let child = fork(|| {
            let before = CHANGES.get();
            // As a unit does in a child.
            IN.set(0);
            assert_eq!(poll(armed, 2), 0, "nobody counts here");
            assert_eq!(CHANGES.get(), before);
            let _counting = count(armed, 0);
            assert_eq!(poll(armed, 3), 1);
        });
        assert!(child.success());
        assert_eq!(poll(armed, 4), 1);
    });
}

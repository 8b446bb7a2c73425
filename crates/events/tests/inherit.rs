//! Inherited contexts and the switch between them, on a PMU that counts its reads.

use std::sync::Arc;
use std::sync::mpsc::channel;

use dormouse_events::pmu::CountingPmu;
use dormouse_events::{Error, Event, Parent, Switched, TaskContext, switch, switch_eager};

/// A PMU of the test's own, and two of its events.
fn pmu() -> (&'static CountingPmu, [Event; 2]) {
    let pmu: &'static CountingPmu = Box::leak(Box::new(CountingPmu::new()));
    (pmu, [pmu.event("sips", 0), pmu.event("bites", 1)])
}

/// Has the thread do something: so many sips.
fn sip(times: u64) {
    CountingPmu::happen(0, times);
}

fn counted(parent: &Parent, event: Event) -> u64 {
    parent.ledger().value(event).unwrap()
}

/// What switching `task` in does, from nothing.
fn switch_in(task: &mut TaskContext) -> Switched {
    switch(&mut TaskContext::none(), task)
}

fn switch_out(task: &mut TaskContext) -> Switched {
    switch(task, &mut TaskContext::none())
}

#[test]
fn a_switch_between_clones_of_one_parent_reads_nothing_and_loses_nothing() {
    let (pmu, events) = pmu();
    let parent = Parent::new(&events).unwrap();
    let mut tasks: Vec<TaskContext> = (0..8).map(|_| parent.context()).collect();
    assert_eq!(switch_in(&mut tasks[0]), Switched::Read);
    let reads = pmu.reads();
    for turn in 0..1000 {
        sip(1);
        let (now, next) = (turn % 8, (turn + 1) % 8);
        let [previous, next] = tasks.get_disjoint_mut([now, next]).unwrap();
        assert_eq!(switch(previous, next), Switched::Exchanged);
    }
    assert_eq!(pmu.reads(), reads);
    sip(1);
    switch_out(&mut tasks[1000 % 8]);
    assert_eq!(pmu.reads(), reads + 2);
    assert_eq!(counted(&parent, events[0]), 1001);
    drop(tasks);
    assert_eq!(counted(&parent, events[0]), 1001);
}

#[test]
fn a_task_resumes_on_another_thread_with_the_context_that_it_got_in_exchange() {
    let (pmu, events) = pmu();
    let parent = Parent::new(&events).unwrap();
    let (mut first, mut second) = (parent.context(), parent.context());
    switch_in(&mut first);
    sip(1);
    assert_eq!(switch(&mut first, &mut second), Switched::Exchanged);
    // `second` runs here with what was `first`'s; `first` goes on elsewhere at the same time.
    let third = parent.context();
    let mut third = std::thread::spawn(move || {
        let mut third = third;
        // Counts of threads differ: one that was mixed up with another's would show.
        sip(1_000_000);
        assert_eq!(switch_in(&mut first), Switched::Read);
        sip(10);
        let reads = pmu.reads();
        assert_eq!(switch(&mut first, &mut third), Switched::Exchanged);
        assert_eq!(pmu.reads(), reads);
        sip(100);
        switch_out(&mut third);
        third
    })
    .join()
    .unwrap();
    sip(1000);
    assert_eq!(switch(&mut second, &mut third), Switched::Exchanged);
    switch_out(&mut third);
    assert_eq!(counted(&parent, events[0]), 1111);
}

#[test]
fn equivalent_are_clones_of_one_parent_and_generation_and_no_others() {
    let (_, events) = pmu();
    let (parent, twin) = (Parent::new(&events).unwrap(), Parent::new(&events).unwrap());
    let (a, b) = (parent.context(), parent.context());
    assert!(a.is_equivalent(&b) && b.is_equivalent(&a));
    assert!(a.is_equivalent(&b.inherit()));
    assert!(!a.is_equivalent(&twin.context()), "another parent with the same counters");
    assert!(!a.is_equivalent(&TaskContext::none()));
    assert!(!TaskContext::none().is_equivalent(&TaskContext::none()));
}

#[test]
fn adding_or_removing_on_either_side_ends_equivalence() {
    let (pmu, events) = pmu();
    let parent = Parent::new(&events).unwrap();
    let (old, old_too) = (parent.context(), parent.context());
    parent.add(pmu.event("crumbs", 2)).unwrap();
    let new = parent.context();
    assert!(old.is_equivalent(&old_too), "both lack the new counter");
    assert!(!old.is_equivalent(&new));
    parent.remove(pmu.event("crumbs", 2)).unwrap();
    assert!(!parent.context().is_equivalent(&old), "the same counters, but a later generation");

    let (mut a, mut b) = (parent.context(), parent.context());
    a.add(pmu.event("spoons", 3)).unwrap();
    assert!(!a.is_equivalent(&b));
    b.add(pmu.event("spoons", 3)).unwrap();
    assert!(!a.is_equivalent(&b), "each of them is its own");
    b.remove(pmu.event("spoons", 3)).unwrap();
    assert!(!b.is_equivalent(&parent.context()));
}

#[test]
fn re_enabled_clones_are_equivalent_again() {
    let (pmu, events) = pmu();
    let parent = Parent::new(&events).unwrap();
    let (mut a, mut b) = (parent.context(), parent.context());
    switch_in(&mut a);
    sip(1);
    a.disable_all();
    sip(10);
    assert!(!a.is_equivalent(&b));
    assert!(!a.inherit().is_equivalent(&b), "children of a task with all disabled have all disabled");
    b.disable_all();
    assert!(a.is_equivalent(&b));
    let reads = pmu.reads();
    assert_eq!(switch(&mut a, &mut b), Switched::Exchanged);
    b.enable_all();
    sip(100);
    a.enable_all();
    assert!(a.is_equivalent(&b));
    assert_eq!(pmu.reads(), reads + 2, "one read in of two counters, of the one that is on");
    assert_eq!(switch(&mut b, &mut a), Switched::Exchanged);
    switch_out(&mut a);
    assert_eq!(counted(&parent, events[0]), 101);
}

#[test]
fn contexts_that_are_not_equivalent_are_read_out_and_in_with_one_reading_where_one_does() {
    let (pmu, events) = pmu();
    let (parent, other) = (Parent::new(&events).unwrap(), Parent::new(&events).unwrap());
    let fewer = Parent::new(&events[..1]).unwrap();
    let (mut a, mut b, mut c) = (parent.context(), other.context(), fewer.context());
    switch_in(&mut a);
    sip(1);
    let reads = pmu.reads();
    assert_eq!(switch(&mut a, &mut b), Switched::Read);
    assert_eq!(pmu.reads() - reads, 2, "the same counters");
    sip(10);
    assert_eq!(switch(&mut b, &mut c), Switched::Read);
    assert_eq!(pmu.reads() - reads, 2 + 2 + 1, "two out, another one in");
    sip(100);
    switch_out(&mut c);
    assert_eq!([&parent, &other, &fewer].map(|parent| counted(parent, events[0])), [1, 10, 100]);
}

#[test]
fn pinned_and_eager_tasks_keep_their_own_counts() {
    let (_, events) = pmu();
    let parent = Parent::new(&events).unwrap();
    let own = |task: &TaskContext| task.counts()[0].value;
    let (mut a, mut b) = (parent.context(), parent.context());
    switch_in(&mut a);
    sip(1);
    assert_eq!(switch_eager(&mut a, &mut b), Switched::Read);
    sip(10);
    b.pin();
    assert_eq!(switch(&mut b, &mut a), Switched::Read);
    sip(100);
    assert_eq!(switch(&mut a, &mut b), Switched::Read);
    assert_eq!((own(&a), own(&b)), (101, 10));
    b.unpin();
    assert_eq!(switch(&mut b, &mut a), Switched::Exchanged);
    switch_out(&mut a);
    assert_eq!(counted(&parent, events[0]), 111);
}

#[test]
fn a_parent_that_is_gone_is_never_taken_for_a_new_one_at_its_address() {
    let (_, events) = pmu();
    let old = Parent::new(&events).unwrap();
    let survivor = old.context();
    drop(old);
    // Were the reference not counted, one of these would come to lie where the old parent was, with the
    // same generation and the same enabled counters.
    for _ in 0..1000 {
        let new = Parent::new(&events).unwrap();
        assert!(!survivor.is_equivalent(&new.context()));
    }
}

#[test]
fn tasks_count_on_when_their_parent_has_gone_first() {
    let (_, events) = pmu();
    let parent = Parent::new(&events).unwrap();
    let ledger = parent.ledger();
    let (mut a, mut b) = (parent.context(), parent.context());
    switch_in(&mut a);
    sip(1);
    drop(parent);
    let mut late = a.inherit();
    assert_eq!(switch(&mut a, &mut b), Switched::Exchanged);
    sip(10);
    drop(a);
    assert_eq!(switch(&mut b, &mut late), Switched::Exchanged);
    sip(100);
    drop((b, late));
    assert_eq!((ledger.value(events[0]), ledger.alive()), (Some(111), 0));
}

#[test]
fn a_task_that_ends_while_it_runs_is_counted_to_its_end() {
    let (_, events) = pmu();
    let parent = Parent::new(&events).unwrap();
    let mut task = parent.context();
    switch_in(&mut task);
    sip(5);
    assert_eq!(counted(&parent, events[0]), 0, "not published");
    task.publish();
    assert_eq!(counted(&parent, events[0]), 5);
    sip(2);
    drop(task);
    assert_eq!(counted(&parent, events[0]), 7);
}

#[test]
fn a_panic_in_a_task_loses_nothing() {
    let (_, events) = pmu();
    let parent = Parent::new(&events).unwrap();
    let mut task = parent.context();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        switch_in(&mut task);
        sip(4);
        panic!("of the test");
    }));
    assert!(caught.is_err());
    assert_eq!((counted(&parent, events[0]), parent.ledger().alive()), (4, 0));
}

#[test]
fn a_task_that_changes_its_counters_while_it_runs_leaves_the_parents_count_whole() {
    let (pmu, events) = pmu();
    let spoons = pmu.event("spoons", 2);
    let parent = Parent::new(&events).unwrap();
    let mut task = parent.context();
    switch_in(&mut task);
    sip(1);
    task.add(spoons).unwrap();
    sip(10);
    CountingPmu::happen(2, 3);
    task.remove(events[0]).unwrap();
    sip(100);
    switch_out(&mut task);
    assert_eq!(counted(&parent, events[0]), 11);
    let own = task.counts().into_iter().find(|count| count.event == spoons).unwrap();
    assert_eq!(own.value, 3);
    assert_eq!(task.add(spoons), Err(Error::Twice { event: "spoons" }));
    assert_eq!(parent.ledger().value(spoons), None, "the parent never had it");
}

#[test]
fn a_removed_counter_is_no_longer_shown_and_one_added_again_begins_at_zero() {
    let (_, events) = pmu();
    let parent = Parent::new(&events).unwrap();
    let mut task = parent.context();
    switch_in(&mut task);
    sip(1);
    parent.remove(events[0]).unwrap();
    switch_out(&mut task);
    let ledger = parent.ledger();
    assert_eq!(ledger.read().into_iter().map(|count| count.event).collect::<Vec<_>>(), [events[1]]);
    parent.add(events[0]).unwrap();
    assert_eq!(ledger.value(events[0]), Some(0));
    assert_eq!(parent.remove(pmu().1[0]), Err(Error::NotCounted { event: "sips" }));
}

#[test]
fn a_context_that_is_taken_up_elsewhere_while_it_is_on_loses_its_pending_count_and_says_so() {
    let (_, events) = pmu();
    let parent = Parent::new(&events).unwrap();
    let mut task = parent.context();
    switch_in(&mut task);
    sip(3);
    let before = dormouse_events::strayed();
    let mut task = std::thread::spawn(move || {
        sip(1_000_000);
        switch_in(&mut task);
        sip(1);
        task
    })
    .join()
    .unwrap();
    assert_eq!(switch_out(&mut task), Switched::Read);
    assert_eq!(dormouse_events::strayed(), before + 2);
    assert_eq!(counted(&parent, events[0]), 0);
}

/// Threads pass tasks round and switch between them, tasks begin and end, and a reader looks on.
#[test]
fn nothing_is_lost_or_counted_twice_while_tasks_move_and_end_and_somebody_reads() {
    const THREADS: u64 = 3;
    let turns: u64 =
        std::env::var("DORMOUSE_STRESS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(20_000);
    let (_, events) = pmu();
    let parent = Arc::new(Parent::new(&events).unwrap());
    let ledger = parent.ledger();
    let (send, receive) = channel::<TaskContext>();
    let receive = Arc::new(std::sync::Mutex::new(receive));
    (0..2 * THREADS).for_each(|_| send.send(parent.context()).unwrap());
    let workers: Vec<_> = (0..THREADS)
        .map(|worker| {
            let (parent, send, receive) = (Arc::clone(&parent), send.clone(), Arc::clone(&receive));
            std::thread::spawn(move || {
                sip(worker << 32);
                let mut random = worker + 1;
                let mut now = TaskContext::none();
                for _ in 0..turns {
                    // xorshift: any mixture of what can happen to a task.
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let mut next = receive.lock().unwrap().recv().unwrap();
                    switch(&mut now, &mut next);
                    sip(1);
                    match random % 8 {
                        0 => next = parent.context(),
                        1 => next = next.inherit(),
                        2 => next.publish(),
                        3 => next.pin(),
                        4 => next.unpin(),
                        _ => {}
                    }
                    if random % 8 < 2 {
                        // The old one ended on the spot, running; the new one is not on yet.
                        switch(&mut TaskContext::none(), &mut next);
                    }
                    let previous = std::mem::replace(&mut now, next);
                    if previous.counts().is_empty() {
                        continue;
                    }
                    send.send(previous).unwrap();
                }
                switch(&mut now, &mut TaskContext::none());
                send.send(now).unwrap();
            })
        })
        .collect();
    let mut last = 0;
    while !workers.iter().all(std::thread::JoinHandle::is_finished) {
        let now = ledger.value(events[0]).unwrap();
        assert!((last..=THREADS * turns).contains(&now), "{now} after {last}");
        last = now;
    }
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(ledger.alive() as u64, 2 * THREADS);
    drop((receive, send));
    assert_eq!((ledger.value(events[0]), ledger.alive()), (Some(THREADS * turns), 0));
}

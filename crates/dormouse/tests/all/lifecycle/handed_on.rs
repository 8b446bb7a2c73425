//! Work that is handed to threads and pools, and threads that end.

use std::cell::RefCell;

use dormouse::{Entered, Group, carry, inherit_fn, thread};
use rayon::prelude::*;

use super::work::{Slow, WORK, assert_cpu, assert_tasks, counting, current, entries};
use dormouse_testkit::spin_for;

#[test]
fn threads_inherit_however_they_are_spawned() {
    counting();
    let group = Group::new("threads");
    group.scope(|| {
        let spawned = thread::spawn(|| {
            spin_for(WORK);
            current()
        });
        assert_eq!(spawned.join().unwrap(), "threads");
        let named = thread::Builder::new().name("a name".into()).stack_size(1 << 20);
        let named = named.spawn(|| (current(), std::thread::current().name().map(str::to_owned)));
        assert_eq!(named.unwrap().join().unwrap(), ("threads", Some("a name".into())));
        let borrowed = String::from("borrowed");
        thread::scope(|scope| {
            scope.spawn(move || assert_eq!(scope.spawn(current).join().unwrap(), "threads"));
            let borrows = thread::Builder::new().spawn_scoped(scope, || borrowed.len()).unwrap();
            assert_eq!(borrows.join().unwrap(), 8);
        });
    });
    assert_eq!(thread::spawn(current).join().unwrap(), "none");
    assert_tasks("threads", 6, 0, 6);
    assert_cpu("threads", WORK);
}

#[test]
fn rayon_pools_work_for_the_group_that_asks() {
    counting();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let group = Group::new("rayon");
    group.scope(|| {
        let carried = carry();
        assert_eq!(carried.group(), Some(group));
        let who = || {
            spin_for(WORK);
            current()
        };
        assert_eq!(pool.join(inherit_fn(who), inherit_fn(who)), ("rayon", "rayon"));
        pool.scope(|scope| {
            for _ in 0..2 {
                scope.spawn(move |_| carried.run(|| assert_eq!(who(), "rayon")));
            }
        });
        let all = pool.install(|| (0..4).into_par_iter().all(|_| carried.run(who) == "rayon"));
        assert!(all);
        // Without carrying, a pool's thread works for nobody.
        assert_eq!(pool.install(current), "none");
    });
    assert_tasks("rayon", 9, 0, 9);
    assert_eq!(entries("rayon"), 9);
    assert_cpu("rayon", WORK * 8);
}

#[test]
fn outside_any_group_nothing_is_carried() {
    counting();
    assert_eq!((carry().group(), carry().run(current), inherit_fn(current)()), (None, "none", "none"));
}

#[test]
fn a_closure_that_never_runs_is_finished() {
    counting();
    let slow = Slow(WORK);
    let unrun = Group::new("unrun").scope(|| inherit_fn(move || drop(slow)));
    assert_tasks("unrun", 2, 1, 1);
    std::thread::spawn(|| drop(unrun)).join().unwrap();
    assert_tasks("unrun", 2, 0, 2);
    assert_eq!(entries("unrun"), 1, "that of the scope");
    assert_cpu("unrun", WORK);
}

#[test]
fn nested_scopes_each_get_their_own_time() {
    counting();
    let (outer, inner) = (Group::new("scope around"), Group::new("scope inside"));
    outer.scope(|| {
        spin_for(WORK);
        inner.scope(|| {
            spin_for(WORK);
            // A group inside itself is charged once, and two tasks.
            outer.scope(|| spin_for(WORK));
            assert_eq!(current(), "scope inside");
        });
        assert_eq!(current(), "scope around");
    });
    assert_cpu("scope around", WORK * 2);
    assert_cpu("scope inside", WORK);
    assert_tasks("scope around", 2, 0, 2);
}

#[test]
fn a_threads_last_destructors_are_charged() {
    counting();
    thread_local! {
        static KEPT: RefCell<Option<Entered>> = const { RefCell::new(None) };
    }
    std::thread::spawn(|| {
        KEPT.with(|kept| *kept.borrow_mut() = Some(Group::new("kept").enter()));
        spin_for(WORK);
    })
    .join()
    .unwrap();
    assert_tasks("kept", 1, 0, 1);
    assert_cpu("kept", WORK);
}

#[test]
fn a_thread_leaves_no_group_to_the_next() {
    counting();
    let group = Group::new("forgotten");
    std::thread::spawn(move || {
        std::mem::forget(group.enter());
        spin_for(WORK);
    })
    .join()
    .unwrap();
    // Forgotten guards are tasks that never end.
    assert_tasks("forgotten", 1, 1, 0);
    let before = group.read().cpu;
    // As like as not it gets the place that the other has left.
    std::thread::spawn(|| {
        assert_eq!(current(), "none");
        spin_for(WORK * 8);
        assert_eq!(Group::new("forgotten").scope(current), "forgotten");
    })
    .join()
    .unwrap();
    // An emulated processor takes milliseconds for the scope.
    assert!(group.read().cpu < before + WORK * 4, "{:?} after {before:?}", group.read());
}

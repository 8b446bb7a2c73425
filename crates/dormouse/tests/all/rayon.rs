//! rayon: each part is charged to its own group, and no waiting worker pays for what it steals.
#![cfg(feature = "rayon")]

use crate::happenings;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse::events::overflows;
use dormouse::rayon::{InGroup as _, PoolScope, install, join, scope, spawn};
use dormouse::{Counting, Event, Group, Waiting};
use dormouse_testkit::{spin_for, thread_cpu};
use rayon::ThreadPool;
use rayon::prelude::*;

use happenings::{FOREIGN, counted, happen, value};

fn pool(threads: usize) -> ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

/// A waiting worker takes this job before those that are given to it earlier.
fn stranger() {
    rayon::spawn(|| {
        assert_eq!(Group::current(), None);
        happen(FOREIGN);
    });
}

/// Runs in the group on the only worker of a pool, and returns how much happened in the group.
fn on_one_worker(name: &str, work: impl FnOnce() + Send) -> u64 {
    let (group, _counting) = counted(name);
    let pool = pool(1);
    pool.install(|| {
        group.scope(|| {
            work();
            assert_eq!(Group::current(), Some(group));
            happen(1);
        });
    });
    // Its last jobs are strangers, where nobody waited.
    pool.install(|| while rayon::yield_now() == Some(rayon::Yield::Executed) {});
    let stat = group.read();
    assert_eq!((stat.requests, stat.alive), (1, 0), "parts are no requests");
    value(group)
}

#[test]
fn a_join_pays_for_both_halves_alone() {
    let halves = || {
        join(
            || {
                stranger();
                happen(10);
            },
            || happen(100),
        );
    };
    assert_eq!(on_one_worker("join", halves), 111);
}

#[test]
fn work_for_strangers_is_no_stall() {
    let _waiting = Waiting::start().unwrap();
    let group = Group::new("a join whose worker is busy");
    let (took, taken) = std::sync::mpsc::channel();
    let stranger = move || {
        let begun = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        took.send(begun.elapsed()).unwrap();
    };
    let begun = Instant::now();
    pool(1).install(|| group.scope(|| join(|| rayon::spawn(stranger), || ())));
    let polled = Duration::from_nanos(group.read_waits().poll_ns);
    let (lasted, strangers) = (begun.elapsed() + Duration::from_micros(100), taken.recv().unwrap());
    assert!(polled > Duration::ZERO && polled + strangers <= lasted, "{polled:?} {strangers:?} {lasted:?}");
}

#[test]
fn a_scope_pays_for_its_spawns_alone() {
    let parts = |parts: PoolScope<'_, '_>| {
        parts.spawn(|parts| {
            happen(10);
            parts.spawn(|_| happen(1000));
            stranger();
        });
        stranger();
        happen(100);
    };
    assert_eq!(on_one_worker("scope", || scope(parts)), 1111);
}

#[test]
fn pieces_pay_for_themselves_alone() {
    let piece = |n: usize| {
        if n.is_multiple_of(2) {
            stranger();
        }
        happen(10);
    };
    let pieces = || (0..8).into_par_iter().with_max_len(1);
    assert_eq!(on_one_worker("for_each", || pieces().in_group().for_each(piece)), 81);
    assert_eq!(on_one_worker("before", || pieces().map(piece).in_group().for_each(drop)), 81);
    assert_eq!(on_one_worker("producer", || pieces().in_group().rev().map(piece).collect()), 81);
}

#[test]
fn other_pools_work_for_the_group() {
    let (other, is_stranger) = (pool(2), AtomicU64::new(0));
    let who = |group: Option<Group>| is_stranger.fetch_add(group.is_none().into(), Ordering::Relaxed);
    let asks = || {
        install(&other, || {
            who(Group::current());
            (0..100).into_par_iter().in_group().for_each(|_| {
                who(Group::current());
                happen(1);
            });
        });
    };
    assert_eq!(on_one_worker("install", asks), 101);
    assert_eq!(is_stranger.into_inner(), 0);
}

#[test]
fn a_spawn_pays_until_it_has_run() {
    let (group, _counting) = counted("spawn");
    let pool = pool(1);
    pool.install(|| group.scope(|| spawn(|| happen(5))));
    dormouse_testkit::eventually(|| group.read().alive == 0);
    assert_eq!((value(group), group.read().started), (5, 2));
}

/// How often both sides of a chain ran, if each run is something that happens.
fn counted_calls<T: Send>(name: &str, chain: impl FnOnce(&(dyn Fn() + Sync)) -> T + Send) -> (T, u64, u64) {
    let (group, _counting) = counted(name);
    let calls = AtomicU64::new(0);
    let call = || {
        calls.fetch_add(1, Ordering::Relaxed);
        happen(1);
    };
    let result = pool(4).install(|| group.scope(|| chain(&call)));
    (result, calls.into_inner(), value(group))
}

#[test]
fn chains_give_what_they_give_without() {
    let numbers: Vec<u64> = (0..1000).collect();
    let (sum, calls, charged) = counted_calls("reduce", |call| {
        let plus = |a, b| {
            call();
            a + b
        };
        numbers.par_iter().copied().with_max_len(10).in_group().reduce(|| 0, plus)
    });
    assert_eq!((sum, charged), (499_500, calls), "results are put together in the group");
    assert!(calls > 1000);
    let (all, calls, charged) = counted_calls("indexed", |call| {
        let seen = numbers.par_iter().in_group().enumerate().zip(numbers.par_iter().in_group().rev());
        seen.map(|((place, number), last)| (call(), place as u64 + number + last).1).collect::<Vec<_>>()
    });
    let right: Vec<_> = (0..1000_u64).map(|n| n + 999).collect();
    assert_eq!((all, calls, charged), (right, 1000, 1000));
    let (some, _, _) = counted_calls("unindexed", |_| {
        let some = numbers.par_iter().filter(|number| **number % 3 == 0).in_group();
        some.opt_len().is_none() && some.clone().find_first(|number| **number > 10) == Some(&12)
    });
    assert!(some);
    assert_eq!(numbers.par_iter().in_group().len(), 1000);
    assert_eq!(numbers.par_iter().in_group().map(|_| Group::current()).flatten().count(), 0);
}

#[test]
fn nested_joins_need_no_room_for_tasks() {
    fn halves(pieces: u64) {
        if pieces == 1 {
            return happen(1);
        }
        join(|| halves(pieces / 2), || halves(pieces - pieces / 2));
    }
    let before = overflows();
    assert_eq!(counted_calls("nested", |_| halves(32_000)).2, 32_000);
    assert_eq!(overflows(), before);
}

#[test]
fn a_panic_leaves_nothing_behind() {
    for name in ["folder", "producer", "join", "scope"] {
        let panics = || -> () { std::panic::resume_unwind(Box::new("of the test")) };
        let fails = |n: u32| if n == 7 { panics() } else { happen(1) };
        let pieces = || (0..20_u32).into_par_iter().in_group();
        let ((), _, charged) = counted_calls(&format!("a panic in a {name}"), |_| {
            let caught = std::panic::catch_unwind(|| match name {
                "folder" => pieces().for_each(fails),
                "producer" => pieces().rev().for_each(fails),
                "join" => _ = join(panics, || happen(1)),
                _ => scope(|scope| scope.spawn(move |_| panics())),
            });
            assert!(caught.is_err());
            happen(100);
        });
        let stat = Group::new(&format!("a panic in a {name}")).read();
        assert!(stat.alive == 0 && (100..120).contains(&charged), "{name}: {stat:?}, {charged}");
    }
}

#[test]
fn groups_pay_for_their_work_on_one_pool() {
    // Long beside the code around it.
    const PIECE: Duration = Duration::from_millis(5);
    let _counting: Counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
    let pool = pool(2);
    let own = [("a share", 20), ("four shares", 80)].map(|(name, pieces)| {
        let group = Group::new(name);
        (group, pieces, AtomicU64::new(0))
    });
    std::thread::scope(|threads| {
        for (group, pieces, own) in &own {
            threads.spawn(|| {
                group.scope(|| {
                    install(&pool, || {
                        (0..*pieces).into_par_iter().in_group().for_each(|_| {
                            assert_eq!(Group::current(), Some(*group));
                            let begun = thread_cpu();
                            spin_for(PIECE);
                            own.fetch_add(
                                thread_cpu().saturating_sub(begun).as_nanos() as u64,
                                Ordering::Relaxed,
                            );
                        });
                    });
                });
            });
        }
    });
    for (group, pieces, own) in own {
        let (own, cpu) = (own.into_inner() as f64, group.read().cpu.as_nanos() as f64);
        // The code around a group's pieces is charged to the group, too.
        assert!(
            own >= f64::from(pieces) * PIECE.as_nanos() as f64 && (0.99..1.15).contains(&(cpu / own)),
            "{cpu} for {own}"
        );
    }
}

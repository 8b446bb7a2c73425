//! CPU time of tasks with the real clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dormouse_events::{Context, Counting, Event, Kind, Mode, Task, enter};
use dormouse_testkit::{assert_about, short_or_long, spin_for, thread_cpu};

/// Taken by tests that need the processors for themselves.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spin_until(end: Instant) {
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn count(context: &'static Context) -> Counting {
    Counting::of(context, &[Event::TASK_CLOCK], Mode::GroupExact).unwrap()
}

#[test]
fn a_running_tasks_time_grows_for_others() {
    let _alone = alone();
    let context = Context::new();
    let _counting = count(context);
    let (entered, is_entered) = channel();
    let (stop, is_stopped) = channel::<()>();
    let worker = std::thread::spawn(move || {
        let guard = enter(&mut Task::new(context, 1), Kind::Scope);
        entered.send(()).unwrap();
        while is_stopped.try_recv().is_err() {
            spin_until(Instant::now() + Duration::from_millis(1));
        }
        drop(guard);
    });
    is_entered.recv().unwrap();
    let mut last = 0;
    let give_up = Instant::now() + Duration::from_secs(20);
    while last < 10_000_000 {
        let now = context.cpu_ns();
        assert!(now >= last, "{now} after {last}");
        assert!(Instant::now() < give_up, "{last} ns of a running task seen");
        last = now;
    }
    stop.send(()).unwrap();
    worker.join().unwrap();
    assert!(context.cpu_ns() >= last);
}

#[test]
fn a_sleeping_task_is_charged_nothing() {
    let _alone = alone();
    let context = Context::new();
    let _counting = count(context);
    let whole = thread_cpu();
    let guard = enter(&mut Task::new(context, 1), Kind::Scope);
    let inside = thread_cpu();
    spin_for(Duration::from_millis(20));
    std::thread::sleep(Duration::from_millis(100));
    let since = |begin| thread_cpu().checked_sub(begin).unwrap();
    let least = since(inside);
    let charged = Duration::from_nanos(context.cpu_ns());
    assert_about(charged, charged.clamp(least, since(whole)));
    drop(guard);
    let charged = Duration::from_nanos(context.cpu_ns());
    assert_about(charged, charged.clamp(least, since(whole)));
}

#[test]
fn all_contexts_add_up_to_the_kernels_time() {
    const WORKERS: usize = 4;
    let _alone = alone();
    let contexts: [&'static Context; 3] = std::array::from_fn(|_| Context::new());
    // The work outside of all others is a task, too: what is not in one of the three is there.
    let outside = Context::new();
    let _counting = Counting::everywhere(&[Event::TASK_CLOCK], Mode::GroupExact).unwrap();
    let end = Instant::now() + Duration::from_secs(1);
    let kernel: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                scope.spawn(move || {
                    let (mut tasks, mut round) = (contexts.map(|context| Task::new(context, 1)), number);
                    let begin = thread_cpu();
                    let whole = enter(&mut Task::new(outside, 2), Kind::Scope);
                    while Instant::now() < end {
                        round += 1;
                        let poll = enter(&mut tasks[round % 3], Kind::Poll);
                        match round % 100 {
                            0 => std::thread::sleep(Duration::from_micros(300)),
                            1 => std::thread::yield_now(),
                            n => spin_until(Instant::now() + Duration::from_micros(n as u64)),
                        }
                        drop(poll);
                        if round.is_multiple_of(7) {
                            spin_until(Instant::now() + Duration::from_micros(20));
                        }
                    }
                    drop(whole);
                    thread_cpu().checked_sub(begin).unwrap().as_nanos() as u64
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let inside: u64 = contexts.iter().map(|context| context.cpu_ns()).sum();
    let all = inside + outside.cpu_ns();
    assert!(inside > 0 && outside.cpu_ns() > 0);
    assert!(all.abs_diff(kernel) <= kernel / 100, "{all} ns charged, {kernel} by the kernel");
}

#[test]
fn known_work_is_charged_beside_competitors() {
    const WORKERS: usize = 4;
    let _alone = alone();
    let contexts: [&'static Context; 3] = std::array::from_fn(|_| Context::new());
    // Inside of the polls, and around them: where a virtual processor is taken away in between, the
    // kernel takes that for work.
    let known = [const { AtomicU64::new(0) }; 3];
    let around = [const { AtomicU64::new(0) }; 3];
    let _counting = Counting::everywhere(&[Event::TASK_CLOCK], Mode::GroupExact).unwrap();
    let (rounds, is_over) = (short_or_long(10, 200), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let work = || {
            for round in 0..rounds * 3 {
                let since = |begin| thread_cpu().checked_sub(begin).unwrap().as_nanos() as u64;
                let whole = thread_cpu();
                let poll = enter(&mut Task::new(contexts[round % 3], 1), Kind::Poll);
                let begin = thread_cpu();
                spin_for(Duration::from_millis(1 + round as u64 % 3));
                known[round % 3].fetch_add(since(begin), Ordering::Relaxed);
                drop(poll);
                around[round % 3].fetch_add(since(whole), Ordering::Relaxed);
            }
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for ((context, known), around) in contexts.iter().zip(known).zip(around) {
        let (charged, known, around) = (context.cpu_ns(), known.into_inner(), around.into_inner());
        println!("{charged} ns charged for {known} ns of work, {around} ns with beginnings and ends");
        let work = charged.clamp(known, around);
        assert!(charged.abs_diff(work) <= work / 50, "{charged} ns charged for {work} ns of work");
    }
}

//! A million tasks: none is lost, and none leaves anything behind. A program of its own, because it
//! looks at the memory of the process.
#![cfg(feature = "tokio")]

use dormouse::tokio::JoinSet;
use dormouse::{Group, thread};
use tokio::task::yield_now;

const TASKS: u64 = 1_000_000;
/// Threads are dearer than futures.
const THREADS: u64 = 2_000;

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Starts `tasks` tasks of `group`, a thousand at a time, and waits for them.
fn run(group: Group, tasks: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(group.instrument(async move {
        let mut set = JoinSet::new();
        for n in 0..tasks {
            if set.len() == 1000 {
                set.join_next().await.unwrap().unwrap();
            }
            set.spawn(async move {
                if n % 2 == 0 {
                    yield_now().await;
                }
            });
        }
        set.join_all().await;
    }));
}

#[test]
fn a_million_tasks_come_and_go() {
    // The kernel would count what lies beside the memory that is used.
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    counting();
    let group = Group::new("million");
    run(group, 10_000);
    group.scope(|| (0..100).for_each(|_| thread::spawn(|| ()).join().unwrap()));
    let before = (group.read(), resident());
    run(group, TASKS);
    let after_tasks = resident();
    group.scope(|| (0..THREADS).for_each(|_| thread::spawn(|| ()).join().unwrap()));
    let after = (group.read(), resident());
    // The root future and the scope are tasks, too.
    assert_eq!(after.0.started - before.0.started, TASKS + THREADS + 2);
    assert_eq!((after.0.alive, after.0.finished), (0, after.0.started));
    // A word for each would be 8 MB, a context far more. The allowance is the allocator's and the
    // runtime's.
    let grown = after.1.saturating_sub(before.1);
    let of_tasks = after_tasks.saturating_sub(before.1);
    assert!(grown < 6 << 20, "{grown} bytes more, {of_tasks} after {TASKS} tasks");
    eprintln!("{grown} bytes more");
}

/// Has CPU time and entries counted for all groups from now on.
fn counting() {
    static COUNT: std::sync::Once = std::sync::Once::new();
    COUNT.call_once(|| dormouse::start_counting(&[dormouse::Event::TASK_CLOCK]).unwrap().keep());
}

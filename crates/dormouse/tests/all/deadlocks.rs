//! A report on locks has the stacks of threads that wait for one another. Each test is a child,
//! whose stuck threads end with it.
#![cfg(all(target_os = "linux", not(dormouse_fallback)))]

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

use dormouse::Group;
use dormouse::profile::{Node, Profile};
use dormouse::sync::tokio::Mutex as AsyncMutex;
use dormouse::sync::{Holds, LockTimes, Mutex, lock_cycles, lock_waiters, parking_lot};
use dormouse_profile::NameFinder;
use dormouse_protocol::{LockBlockedRow, LockReport, LockReportRequest, LocksBegun, LocksRequest};
use dormouse_testkit::{Filter, eventually, in_child};

use crate::tasks_agent::{Client, client};

static STD: [Mutex<u8>; 2] = [const { Mutex::new(0) }; 2];
static PARKING_LOT: [parking_lot::Mutex<u8>; 2] = [const { parking_lot::Mutex::new(0) }; 2];
static BOTH: Barrier = Barrier::new(2);

thread_local! {
    static FINDER: RefCell<NameFinder> = NameFinder::own().unwrap().into();
}

/// Takes the lock of this number, and then the other one.
fn of_std(own: usize) {
    let _own = STD[own].lock();
    BOTH.wait();
    let _other = STD[1 - own].lock();
}

fn of_parking_lot(own: usize) {
    let _own = PARKING_LOT[own].lock();
    BOTH.wait();
    let _other = PARKING_LOT[1 - own].lock();
}

#[inline(never)]
fn goes_left(take: fn(usize)) {
    take(0);
    black_box(());
}

#[inline(never)]
fn goes_right(take: fn(usize)) {
    take(1);
    black_box(());
}

/// Has two threads wait for one another for good.
fn deadlock(client: &mut Client, take: fn(usize)) {
    let _begun: LocksBegun = client.ask(LocksRequest { all: false });
    for (name, goes) in [("left", goes_left as fn(fn(usize))), ("right", goes_right)] {
        thread::spawn(move || Group::new(name).scope(|| goes(take)));
    }
    eventually(|| !lock_cycles().is_empty());
}

fn report(client: &mut Client, stacks: bool) -> LockReport {
    client.ask(LockReportRequest { stacks })
}

/// The two who wait for one another, with their stacks.
fn stuck(client: &mut Client) -> Vec<LockBlockedRow> {
    let mut cycles = report(client, true).cycles;
    assert_eq!((cycles.len(), cycles[0].blocked.len()), (1, 2), "{cycles:?}");
    cycles.remove(0).blocked
}

/// Whether a function is on a stack.
fn has(of: &LockBlockedRow, function: &str) -> bool {
    let stacks = of.stack.iter().map(|&address| Node { parent: 0, address }).collect();
    let profile = Profile { stacks, ..Profile::default() };
    let symbols = FINDER.with_borrow_mut(|finder| finder.symbols(&profile));
    of.stack.iter().flat_map(|&at| symbols.get(at)).any(|frame| frame.function.contains(function))
}

/// Whether both stacks are there, each with its own function.
fn have_their_stacks(all: &[LockBlockedRow]) -> bool {
    all.iter().all(|of| {
        let (own, other) = match of.waiter.group.as_deref() {
            Some("left") => ("goes_left", "goes_right"),
            _ => ("goes_right", "goes_left"),
        };
        assert_eq!(of.stack.is_empty(), of.no_stack.is_some(), "{of:?}");
        assert_eq!(of.stack.is_empty(), of.way.is_empty(), "{of:?}");
        assert!(!has(of, other), "{of:?}");
        has(of, own)
    })
}

/// How often threads have gone to sleep, and have been taken off their processors.
fn switches(of: &[LockBlockedRow]) -> Vec<String> {
    let lines = |tid| std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
    let all = of.iter().map(|of| lines(of.waiter.tid));
    all.map(|all| all.lines().filter(|line| line.contains("ctxt_switches")).collect()).collect()
}

/// The stacks come, and at last without the threads running for it.
fn stacks_are_read(take: fn(usize)) {
    in_child(|| {
        let mut client = client();
        deadlock(&mut client, take);
        // It may still be on its way to sleep, on a busy machine.
        eventually(|| have_their_stacks(&stuck(&mut client)));
        eventually(|| {
            let before = switches(&stuck(&mut client));
            let read = stuck(&mut client);
            have_their_stacks(&read) && before == switches(&read) && !before[0].is_empty()
        });
    });
}

#[test]
fn threads_in_a_deadlock_show_their_stacks() {
    stacks_are_read(of_std);
}

#[test]
fn so_do_those_in_parking_lots_locks() {
    stacks_are_read(of_parking_lot);
}

#[test]
fn nothing_is_read_without_a_cycle() {
    in_child(|| {
        let is_there = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let names = tasks.filter_map(|it| std::fs::read_to_string(it.ok()?.path().join("comm")).ok());
            names.filter(|name| name.starts_with("dormouse-look")).count() > 0
        };
        let mut client = client();
        let _begun: LocksBegun = client.ask(LocksRequest { all: false });
        assert!(report(&mut client, true).cycles.is_empty() && !is_there());
        deadlock(&mut client, of_std);
        let [cycle] = &report(&mut client, false).cycles[..] else { panic!("a cycle") };
        assert!(cycle.blocked.iter().all(|of| of.stack.is_empty() && of.no_stack.is_none()), "{cycle:?}");
        assert!(!is_there(), "nobody has asked for stacks");
    });
}

#[test]
fn no_signal_is_sent_for_a_stack() {
    in_child(|| {
        let mut client = client();
        deadlock(&mut client, of_std);
        eventually(|| have_their_stacks(&stuck(&mut client)));
        Filter::kill(&[
            libc::SYS_tgkill,
            libc::SYS_rt_tgsigqueueinfo,
            libc::SYS_timer_create,
            libc::SYS_ptrace,
        ])
        .install_on_all_threads();
        eventually(|| have_their_stacks(&stuck(&mut client)));
    });
}

/// Where a call is refused, the reason is there instead.
fn is_refused(call: libc::c_long, part: &str) {
    let mut client = client();
    deadlock(&mut client, of_std);
    eventually(|| have_their_stacks(&stuck(&mut client)));
    Filter::refuse(&[call]).install_on_all_threads();
    for of in stuck(&mut client) {
        assert!(of.stack.is_empty(), "{of:?}");
        let why = of.no_stack.unwrap_or_default();
        assert!(why.contains(part) && why.contains("not permitted"), "{why}");
    }
}

#[test]
fn without_reads_of_memory_the_reason_is_shown() {
    in_child(|| is_refused(libc::SYS_pread64, "cannot be read"));
}

#[test]
fn without_the_memory_file_the_reason_is_shown() {
    in_child(|| is_refused(libc::SYS_openat, "memory file"));
}

static AWAITED: [AsyncMutex<u8>; 2] = [const { AsyncMutex::const_new(0) }; 2];

/// Awaits this number of waits for locks.
async fn are_waiting(number: usize) {
    while lock_waiters().len() < number {
        tokio::task::yield_now().await;
    }
}

#[test]
fn tasks_that_wait_in_nested_groups_are_found() {
    in_child(|| {
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for own in 0..2 {
                dormouse::tokio::spawn_in(Group::new("outer"), async move {
                    let _own = AWAITED[own].lock().await;
                    tokio::task::yield_now().await;
                    let inner = async { Group::new("inner").instrument(AWAITED[1 - own].lock()).await };
                    let _other = Group::new("between").instrument(inner).await;
                });
            }
            are_waiting(2).await;
            let cycles = lock_cycles();
            assert_eq!((cycles.len(), cycles[0].len()), (1, 2), "{cycles:?}");
            for blocked in &cycles[0] {
                let groups = [blocked.waiter.group, blocked.holder.group];
                assert_eq!(groups, ["inner", "outer"].map(|name| Group::new(name).id()));
            }
        });
    });
}

#[test]
fn futures_beside_one_another_are_no_deadlock() {
    in_child(|| {
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let find = || async {
            are_waiting(1).await;
            assert_eq!(lock_cycles(), Vec::<Vec<_>>::new());
        };
        let waits = || Group::new("waits").instrument(async { drop(AWAITED[0].lock().await) });
        let holds = || {
            Group::new("holds").instrument(async {
                let _guard = AWAITED[0].lock().await;
                find().await;
            })
        };
        // In one task, and in tasks of a runtime that is driven in a scope.
        Group::new("main").scope(|| {
            runtime.block_on(Group::new("task").instrument(async { tokio::join!(holds(), waits()) }));
            runtime.block_on(async {
                let guard = AWAITED[0].lock().await;
                let waiting = tokio::spawn(waits());
                find().await;
                drop(guard);
                waiting.await.unwrap();
            });
        });
    });
}

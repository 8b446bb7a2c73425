//! Profiles of wall time: each state has the time that a program has measured itself. Each test is
//! a child: samples are signals.
#![cfg(not(dormouse_fallback))]

use std::collections::HashMap;
use std::future::{Future as _, pending};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use dormouse::profile::{NO_GROUP, Profile, WallState};
use dormouse::waits::{TaskState, Waiting, living};
use dormouse::{Group, ProfileRun, ProfileSpec};
use dormouse_testkit::{eventually, in_child, spin_for};

/// The time of a group by state.
fn states(profile: &Profile, name: &str) -> HashMap<WallState, u64> {
    let mut states = HashMap::new();
    for row in profile.samples.iter().filter(|row| profile.groups[row.group as usize].name == name) {
        let outermost = profile.stack(row.stack).last().unwrap();
        *states.entry(WallState::at(outermost).unwrap()).or_default() += row.values[1];
    }
    states
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// The times that a task has measured of itself.
#[derive(Debug, Default)]
struct Measured {
    all: Duration,
    waited: Duration,
    blocked: Duration,
    spun: Duration,
}

async fn naps(measured: &mut Measured) {
    for _ in 0..4 {
        let begin = Instant::now();
        tokio::time::sleep(Duration::from_millis(50)).await;
        measured.waited += begin.elapsed();
    }
}

async fn route() -> Measured {
    let begin = Instant::now();
    let mut measured = Measured::default();
    naps(&mut measured).await;
    let begins = Instant::now();
    std::thread::sleep(Duration::from_millis(100));
    measured.blocked = begins.elapsed();
    let begins = Instant::now();
    spin_for(Duration::from_millis(100));
    measured.spun = begins.elapsed();
    measured.all = begin.elapsed();
    measured
}

#[test]
fn a_task_has_at_most_the_length() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let mut waits = pin!(Group::new("waits").instrument(pending::<()>()));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let run = ProfileRun::start(&ProfileSpec::wall()).unwrap();
        for _ in 0..3 {
            let profile = run.read();
            let total = profile.groups.iter().find(|group| group.name == "waits").unwrap().total.unwrap();
            assert!((1..=profile.duration_ns).contains(&total), "{total} in {}", profile.duration_ns);
        }
    });
}

#[test]
fn each_state_has_its_time() {
    in_child(|| {
        let run = ProfileRun::start(&ProfileSpec::wall().hz(250)).unwrap();
        let begin = Instant::now();
        let measured = runtime().block_on(Group::new("GET /nap").instrument(route()));
        let around = ns(begin.elapsed());
        let profile = run.read();
        let states = states(&profile, "GET /nap");
        let of = |state| states.get(&state).copied().unwrap_or(0);
        let all: u64 = states.values().sum();
        assert!((ns(measured.all)..=around).contains(&all), "{states:?} {measured:?} {around}");
        let group = profile.groups.iter().find(|group| group.name == "GET /nap").unwrap();
        assert_eq!(group.total, Some(all));
        // A wait ends with its wake; what comes until the poll is runnable.
        let awaiting = of(WallState::Awaiting);
        let waited = awaiting + of(WallState::Runnable);
        let polls = of(WallState::OnCpu) + of(WallState::Stalled);
        // A nap begins in its poll, whose end takes long where a processor is emulated.
        let beside = polls.saturating_sub(ns(measured.blocked + measured.spun));
        // Until its first poll it is runnable, and measures nothing.
        let before = around - ns(measured.all);
        assert!(
            awaiting + beside >= 4 * 49_000_000 && waited <= ns(measured.waited) + before,
            "{states:?} {measured:?} {around}"
        );
        assert!(of(WallState::Stalled) >= 98_000_000, "{states:?}");
        let used = of(WallState::OnCpu);
        assert!(used >= 98_000_000 && used <= around - 290_000_000, "{states:?} {measured:?}");
        assert!(polls >= ns(measured.blocked + measured.spun), "{states:?} {measured:?}");
    });
}

#[test]
fn waits_that_go_on_are_in_it() {
    in_child(|| {
        let runtime = runtime();
        // From before; and one that no profile knows of.
        let _waiting = Waiting::start().unwrap();
        let old = Group::new("old");
        let (begun, has_begun) = std::sync::mpsc::channel();
        runtime.spawn(old.instrument(async move {
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        }));
        has_begun.recv().unwrap();
        // Its poll may not be over yet.
        eventually(|| living().any(|task| task.group == old.id() && task.state == TaskState::Awaiting));
        let begin = Instant::now();
        let run = ProfileRun::start(&ProfileSpec::wall().groups("old")).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let profile = run.read();
        let elapsed = ns(begin.elapsed());
        let states = states(&profile, "old");
        let awaiting = states[&WallState::Awaiting];
        assert!((200_000_000..=elapsed).contains(&awaiting), "{states:?} {elapsed}");
        assert_eq!(profile.groups.len(), 2, "{:?}", profile.groups);
        assert!(profile.samples.iter().all(|row| row.group != NO_GROUP));
    });
}

#[test]
fn a_forked_child_reads_nothing_of_the_parents() {
    in_child(|| {
        let run = ProfileRun::start(&ProfileSpec::wall()).unwrap();
        runtime().block_on(Group::new("parent").instrument(naps(&mut Measured::default())));
        let child = dormouse_testkit::fork(|| {
            let profile = run.read();
            assert!(profile.samples.is_empty(), "{profile:?}");
        });
        assert!(child.success(), "{child}");
        // Each nap begins in a poll, which may take a part of it.
        assert!(states(&run.read(), "parent").values().sum::<u64>() >= 4 * 49_000_000);
    });
}

#[test]
fn places_share_the_time_of_a_wait() {
    in_child(|| {
        let run = ProfileRun::start(&ProfileSpec::wall()).unwrap();
        let both = Group::new("both");
        runtime().block_on(both.instrument(async {
            let nap = || tokio::time::sleep(Duration::from_millis(60));
            let first = async { nap().await };
            tokio::join!(first, async { nap().await });
        }));
        let waits = both.read_waits();
        let profile = run.read();
        let awaiting = states(&profile, "both")[&WallState::Awaiting];
        assert_eq!(awaiting, waits.await_ns);
        let rows = profile.samples.iter().filter(|row| {
            let stack: Vec<u64> = profile.stack(row.stack).collect();
            profile.groups[row.group as usize].name == "both"
                && stack.len() > 1
                && stack.last() == Some(&WallState::Awaiting.address())
        });
        let rows: Vec<u64> = rows.map(|row| row.values[1]).collect();
        // Both wait together for what is left of the nap when the poll ends that has begun it.
        let least = 59_000_000_u64.saturating_sub(waits.poll_ns) / 2;
        // Without frame pointers there is none.
        let is_shared = |rows: &[u64]| least == 0 || rows.len() == 2 && rows.iter().all(|ns| *ns >= least);
        assert!(rows.is_empty() || is_shared(&rows), "{rows:?}");
    });
}

//! Runtimes that a service shows, and the queue of blocking work.
#![cfg(feature = "tokio")]

use std::future::pending;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use dormouse::metrics::{MetricsFormat, exposition};
use dormouse::tokio::{RuntimeError, runtime, spawn_blocking};
use dormouse::{Group, Waiting};
use dormouse_testkit::{eventually, fork, in_child};
use tokio::runtime::{Builder, Runtime};

fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).max_blocking_threads(1).build().unwrap()
}

/// The value in the line of metrics that begins so.
fn value(line: &str) -> Option<f64> {
    let text = String::from_utf8(exposition().encode(MetricsFormat::Text)).unwrap();
    text.lines().find_map(|of| of.strip_prefix(line)?.strip_prefix(' ')?.parse().ok())
}

fn of(figure: &str, name: &str) -> Option<f64> {
    value(&format!("dormouse_runtime_{figure}{{runtime=\"{name}\"}}"))
}

#[test]
fn a_runtime_is_shown_until_its_end() {
    in_child(|| {
        let [main, other] = [two_workers(), two_workers()];
        runtime("main", main.handle()).unwrap();
        runtime("other", other.handle()).unwrap();
        let taken = RuntimeError::Name { name: "main".to_owned() };
        assert_eq!(runtime("main", other.handle()), Err(taken));
        let tasks: Vec<_> = (0..3).map(|_| main.spawn(pending::<()>())).collect();
        assert_eq!([of("workers", "main"), of("tasks", "main")], [Some(2.0), Some(3.0)], "without our own");
        assert_eq!(of("tasks", "other"), Some(0.0));
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        eventually(|| of("tasks", "main") == Some(0.0));
        let parks = || of("parks_total", "main").unwrap();
        let before = parks();
        eventually(|| {
            main.block_on(async { tokio::spawn(async {}).await.unwrap() });
            parks() > before && of("busy_time_seconds_total", "main").unwrap() > 0.0
        });
        let is_unstable = cfg!(tokio_unstable);
        assert_eq!(of("blocking_threads", "main").is_some(), is_unstable, "only where it is built so");
        drop(main);
        assert_eq!([of("workers", "main"), of("workers", "other")], [None, Some(2.0)]);
        other.shutdown_background();
        eventually(|| of("workers", "other").is_none());
    });
}

#[cfg(tokio_unstable)]
#[test]
fn an_unstable_tokio_shows_threads_and_polls() {
    in_child(|| {
        let main = two_workers();
        runtime("main", main.handle()).unwrap();
        let figures = |names: [&str; 3]| names.map(|name| of(name, "main"));
        let blocking = || figures(["blocking_threads", "blocking_idle", "blocking_queue"]);
        let (release, wait) = channel::<()>();
        let first = main.spawn_blocking(move || _ = wait.recv());
        let second = main.spawn_blocking(|| ());
        eventually(|| blocking() == [Some(1.0), Some(0.0), Some(1.0)]);
        drop(release);
        main.block_on(async {
            first.await.unwrap();
            second.await.unwrap();
        });
        eventually(|| blocking() == [Some(1.0), Some(1.0), Some(0.0)]);
        let [before, steals, queues] = figures(["polls_total", "steals_total", "own_queues"]);
        assert!(steals.is_some() && queues == Some(0.0), "{steals:?}, {queues:?}");
        const TASKS: u32 = 10;
        main.block_on(async {
            for _ in 0..TASKS {
                tokio::spawn(async {}).await.unwrap();
            }
        });
        eventually(|| of("polls_total", "main") >= before.map(|before| before + f64::from(TASKS)));
    });
}

#[test]
fn a_runtime_that_has_ended_is_not_shown() {
    in_child(|| {
        let ended = Builder::new_current_thread().build().unwrap();
        let handle = ended.handle().clone();
        runtime("alone", &handle).unwrap();
        assert_eq!(of("workers", "alone"), Some(1.0));
        drop(ended);
        assert_eq!(of("workers", "alone"), None);
        runtime("late", &handle).unwrap();
        assert_eq!(of("workers", "late"), None);
    });
}

#[test]
fn a_forked_child_shows_no_runtime() {
    in_child(|| {
        let main = two_workers();
        runtime("main", main.handle()).unwrap();
        let child = fork(|| {
            assert_eq!(of("workers", "main"), None);
            let own = Builder::new_current_thread().build().unwrap();
            runtime("main", own.handle()).unwrap();
            assert_eq!(of("workers", "main"), Some(1.0));
        });
        assert!(child.success(), "{child}");
        assert_eq!(of("workers", "main"), Some(2.0));
    });
}

#[test]
fn blocking_work_waits_for_a_thread() {
    const DELAY: Duration = Duration::from_millis(20);
    in_child(|| {
        let main = two_workers();
        let group = Group::new("reports");
        let figure = |name: &str| value(&format!("dormouse_blocking_{name}_total{{group=\"reports\"}}"));
        let both = async || {
            let (release, wait) = channel::<()>();
            let first = spawn_blocking(move || _ = wait.recv());
            let second = spawn_blocking(|| {});
            // The only thread has the first.
            thread::sleep(DELAY);
            drop(release);
            first.await.unwrap();
            second.await.unwrap();
        };
        main.block_on(group.instrument(both()));
        assert_eq!(figure("started"), None, "no times are taken");
        let waiting = Waiting::start().unwrap();
        main.block_on(group.instrument(both()));
        assert_eq!(figure("started"), Some(2.0));
        assert!(figure("queued_time_seconds").unwrap() >= DELAY.as_secs_f64());
        drop(waiting);
        main.block_on(group.instrument(both()));
        assert_eq!(figure("started"), Some(2.0));
    });
}

//! The flight recorder, in-process: what it keeps, who may end it, and what a child has of it.

use std::collections::HashMap;
use std::fs;

use dormouse::recorder::{self, DEFAULT_MEMORY, Recorder, RecorderError};
use dormouse::{Key, probe, trace};
use dormouse_testkit::{eventually, fork, in_child};

const SMALL: usize = 256 * 1024;

fn hit(number: u64) {
    probe!("recorder.hit", number);
}

/// The numbers that it has, by thread.
fn kept(recorder: &Recorder) -> HashMap<u32, Vec<u64>> {
    let mut all: HashMap<u32, Vec<u64>> = HashMap::new();
    recorder
        .each(|key, thread, record| {
            assert_eq!(key.name(), "recorder.hit");
            all.entry(thread.tid).or_default().push(record.values[0].to_string().parse().unwrap());
        })
        .unwrap();
    all
}

fn is_on(name: &str) -> bool {
    dormouse::keys::list(|used| (used.key.name().to_owned(), Key::is_enabled(used.key)))
        .into_iter()
        .any(|(other, on)| other == name && on)
}

fn lookouts() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name == "dormouse-look\n").count()
}

#[test]
fn the_newest_records_are_kept() {
    in_child(|| {
        let recorder = recorder::start("recorder.hit", SMALL).unwrap();
        let written = 200_000;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..written).for_each(hit));
            }
        });
        let kept = kept(&recorder);
        let stat = recorder.stat().unwrap();
        assert!(!kept.is_empty());
        for numbers in kept.values() {
            assert!(numbers.is_sorted(), "out of order");
        }
        assert_eq!(kept.values().filter_map(|numbers| numbers.last()).max(), Some(&(written - 1)));
        let seen: u64 = kept.values().map(|numbers| numbers.len() as u64).sum();
        assert_eq!((stat.records, stat.records + stat.aged + stat.dropped), (seen, 2 * written));
        assert!(stat.held <= SMALL && stat.kept.is_some(), "{stat:?}");
    });
}

#[test]
fn a_recorder_ends_with_its_handle() {
    in_child(|| {
        assert!(!is_on("recorder.hit") && recorder::stat().is_none());
        let first = recorder::start("recorder.hit", SMALL).unwrap();
        assert!(is_on("recorder.hit") && lookouts() == 1);
        assert_eq!(first.stat().unwrap().glob, "recorder.hit");
        let second = recorder::start("*", SMALL).unwrap_err();
        assert!(matches!(&second, RecorderError::Running { glob } if glob == "recorder.hit"), "{second}");
        drop(first);
        assert!(!is_on("recorder.hit") && recorder::stat().is_none());
        eventually(|| lookouts() == 0);
        recorder::start("recorder.hit", DEFAULT_MEMORY).unwrap().keep();
        assert!(is_on("recorder.hit") && recorder::stat().is_some());
    });
}

#[test]
fn requests_that_no_recorder_meets_are_refused() {
    in_child(|| {
        for (glob, memory, part) in [
            ("recorder.hit", 1000, "from 256 KiB to 1024 MiB"),
            ("recorder.hit", usize::MAX, "from 256 KiB to 1024 MiB"),
            ("no.such.key", SMALL, "no key matches `no.such.key`"),
            ("recorder.[", SMALL, "["),
        ] {
            let refused = recorder::start(glob, memory).unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        }
        assert!(recorder::stat().is_none() && !is_on("recorder.hit"));
        eventually(|| lookouts() == 0);
    });
}

#[test]
fn a_trace_beside_it_loses_nothing() {
    in_child(|| {
        let recorder = recorder::start("recorder.hit", SMALL).unwrap();
        let mut trace = trace("recorder.hit").unwrap();
        let mut seen = 0;
        for number in 0..1000 {
            hit(number);
            trace.poll(|_, _, _| seen += 1);
        }
        trace.poll(|_, _, _| seen += 1);
        assert_eq!(seen, 1000);
        assert_eq!(kept(&recorder).into_values().next().unwrap(), (0..1000).collect::<Vec<_>>());
    });
}

#[test]
fn a_child_has_no_recorder_of_its_parents() {
    in_child(|| {
        let recorder = recorder::start("recorder.hit", SMALL).unwrap();
        (0..10).for_each(hit);
        let child = fork(|| {
            assert!(recorder.stat().is_none() && recorder::stat().is_none());
            assert!(recorder.each(|_, _, _| panic!("the parent's")).is_err());
            let own = recorder::start("recorder.hit", SMALL).unwrap();
            (10..13).for_each(hit);
            assert_eq!(kept(&own).into_values().next(), Some(vec![10, 11, 12]));
            assert!(own.stat().is_some());
        });
        assert!(child.success(), "{child}");
        assert_eq!(kept(&recorder).into_values().next(), Some((0..10).collect()));
    });
}

//! A file that an earlier build has written is read by this one.

use crate::support::run;

/// A recorder's file of the tea house under load, with records of `menu.read` and times of tasks.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/recorded/0.1.0.dormouse");

#[test]
fn files_of_earlier_builds_are_read() {
    let tasks = run(["--json", "tasks", FILE]);
    assert_eq!(tasks.code, Some(0), "{tasks:?}");
    assert!(tasks.stderr.contains("recorded: a command"), "{tasks:?}");
    let tasks = tasks.json();
    let rows = tasks["tasks"].as_array().expect("tasks");
    assert_eq!(rows.len(), 10, "{tasks}");
    assert!(rows.iter().any(|row| row["group"] == "restock" && row["state"] == "awaiting"), "{tasks}");
    let profile = run(["profile", FILE]);
    assert_eq!(profile.code, Some(0), "{profile:?}");
    assert!(profile.stdout.contains("(unattributed)  99.1 ms, 80.5 % of the process"), "{profile:?}");
    let trace = run(["trace", FILE]);
    assert_eq!(trace.code, Some(0), "{trace:?}");
    assert_eq!(trace.stdout.lines().count(), 47, "{trace:?}");
    assert!(trace.stdout.contains("menu.read items=6 fancy=false"), "{trace:?}");
}

//! The tasks of stacks that were recorded in real programs, in folders of `tests/stacks` by the way
//! in which the programs were built.
//!
//! A file has stacks, each after a line `= ` with the name of its task, its outermost function
//! first.

use std::fs;

use dormouse_profile::{Node, Profile, Sample, SourceFrame, Symbols, Tasks};

const STACKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stacks");

/// The tasks of stacks of these functions, the outermost first.
fn tasks(stacks: &[Vec<&str>]) -> (Profile, Tasks) {
    let (mut profile, mut symbols) = (Profile::default(), Symbols::default());
    for stack in stacks {
        let mut parent = 0;
        for function in stack {
            let address = 0x1000 + profile.stacks.len() as u64;
            profile.stacks.push(Node { parent, address });
            parent = profile.stacks.len() as u32;
            symbols.insert(
                address,
                vec![SourceFrame { function: (*function).to_owned(), ..SourceFrame::default() }],
            );
        }
        profile.samples.push(Sample { stack: parent, values: [1, 10, 0, 0], ..Sample::default() });
    }
    let tasks = Tasks::of(&profile, &symbols);
    (profile, tasks)
}

#[test]
fn recorded_stacks_have_their_tasks() {
    let mut seen = 0;
    for file in fs::read_dir(STACKS).expect("stacks") {
        let file = file.expect("a file").path();
        let text = fs::read_to_string(&file).expect("a text");
        let text = format!("\n{text}");
        let parts: Vec<&str> = text.split("\n= ").skip(1).collect();
        let stacks: Vec<Vec<&str>> = parts.iter().map(|part| part.lines().skip(1).collect()).collect();
        let (_, tasks) = tasks(&stacks);
        let named: Vec<_> = (0..parts.len()).map(|index| tasks.name(index)).collect();
        let right: Vec<_> = parts.iter().map(|part| part.lines().next()).collect();
        assert_eq!(named, right, "{}", file.display());
        seen += named.len();
    }
    assert!(seen > 20, "{seen} stacks");
}

#[test]
fn what_has_no_name_is_counted_by_reason() {
    let tokio = "tokio::runtime::task::core::Core<T,S>::poll";
    let (profile, tasks) = tasks(&[
        vec!["start_thread", tokio, "shop::brew"],
        vec!["start_thread", tokio],
        vec!["start_thread", "memcpy"],
        vec!["tokio::runtime::task::core::poll<shop::brew::{async_fn_env#0}, S>", "memcpy"],
    ]);
    assert_eq!(
        [0, 1, 2, 3].map(|it| tasks.name(it).unwrap()),
        ["task in shop::brew", "(no task)", "(no task)", "task shop::brew"]
    );
    assert_eq!(tasks.named(), (10, 40));
    let notes = tasks.notes();
    assert_eq!(notes[0], "tasks: 25.0 % of it has the name of its task");
    assert!(
        notes[1].starts_with("no task is known for 50.0 %: its functions have names without types"),
        "{notes:?}"
    );
    let by_task = tasks.regroup(&profile);
    let groups: Vec<&str> =
        by_task.samples.iter().map(|row| &*by_task.groups[row.group as usize].name).collect();
    assert_eq!(groups, ["task in shop::brew", "(no task)", "(no task)", "task shop::brew"]);
}

//! Waits that are not real: those of tasks that have only yielded.
//!
//! If a task yields, its worker keeps the waker, and wakes it at the worker's own next turn. Until
//! then the service has seen no wake, and counts the time as awaiting, though the task only lacks a
//! worker. The leaf's name shows that.

use std::collections::HashMap;

use dormouse_protocol::profile::{Node, Profile, WallState};

use crate::symbols::Symbols;

/// The function of tokio that keeps the wakers of tasks that yield: by `yield_now`, or because they
/// have used up their budget. In both forms in which Rust writes names.
const DEFERS: [&str; 2] = ["scheduler::defer::Defer::defer", "scheduler::defer::Defer>::defer"];

/// Whether a waker that `function` has taken belongs to a task that yields.
pub fn is_yield(function: &str) -> bool {
    DEFERS.iter().any(|name| function.contains(name))
}

/// Moves time at places where tasks yield to the state runnable. Its stacks stay below that state.
pub(crate) fn make_yields_runnable(profile: &mut Profile, symbols: &Symbols) {
    let yields = |address: &u64| symbols.get(*address).iter().any(|frame| is_yield(&frame.function));
    let mut numbers: HashMap<Node, u32> = profile.stacks.iter().copied().zip(1..).collect();
    for at in 0..profile.samples.len() {
        let mut stack: Vec<u64> = profile.stack(profile.samples[at].stack).collect();
        if stack.last() != Some(&WallState::Awaiting.address()) || !stack.iter().any(yields) {
            continue;
        }
        stack.pop();
        stack.push(WallState::Runnable.address());
        profile.samples[at].stack = stack.iter().rev().fold(0, |parent, &address| {
            let node = Node { parent, address };
            *numbers.entry(node).or_insert_with(|| {
                profile.stacks.push(node);
                profile.stacks.len() as u32
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProfileKind, Sample, SourceFrame};

    #[test]
    fn yields_are_runnable_and_waits_awaiting() {
        let [awaiting, runnable] = [WallState::Awaiting, WallState::Runnable].map(WallState::address);
        let node = |parent, address| Node { parent, address };
        let mut profile = Profile {
            kind: ProfileKind::Wall,
            stacks: vec![node(0, awaiting), node(1, 10), node(2, 20), node(2, 30), node(0, 20)],
            samples: [3, 4, 1, 5].map(|stack| Sample { stack, ..Sample::default() }).into(),
            ..Profile::default()
        };
        let mut symbols = Symbols::default();
        for (address, function) in [
            (10, "shop::brew"),
            (20, "tokio::runtime::scheduler::defer::Defer::defer"),
            (30, "tokio::sync::notify::Notified::poll"),
        ] {
            symbols
                .insert(address, vec![SourceFrame { function: function.into(), ..SourceFrame::default() }]);
        }
        let stacks = |profile: &Profile| -> Vec<Vec<u64>> {
            profile.samples.iter().map(|sample| profile.stack(sample.stack).collect()).collect()
        };
        let right = [vec![20, 10, runnable], vec![30, 10, awaiting], vec![awaiting], vec![20]].map(Vec::from);
        for _ in 0..2 {
            make_yields_runnable(&mut profile, &symbols);
            assert_eq!(stacks(&profile), right, "a second time, too");
        }
        for (at, node) in profile.stacks.iter().enumerate() {
            assert!(node.parent as usize <= at, "a node after its parent: {:?}", profile.stacks);
        }
        assert!(is_yield("<tokio::runtime::scheduler::defer::Defer>::defer"));
    }
}

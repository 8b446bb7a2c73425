//! Leaks as a profile: `/debug/pprof/taskleak`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dormouse_profile::encode::{CountedStack, pprof_counted};
use dormouse_profile::{Column, SourceFrame};

use super::{Leak, Leaks, with_leaks};
use crate::client::session::Subject;
use crate::cmd::tasks::Request;
use crate::cmd::tasks::choice::Choice;
use crate::duration::short;
use crate::exit::{Exit, Outcome};
use crate::output::Context;

const COLUMN: Column = Column { name: "taskleak", unit: "count" };
/// The innermost frame of a task that has no place, because all its wakers are gone.
const LOST: &str = "(nothing can wake it)";

/// Watches a service for `length`, or for as long as it takes, and writes its leaks for pprof: a
/// stack is the place where tasks wait, below the line that has spawned them. The label `leak` is
/// `proven` or `suspected`.
pub(crate) fn encoded(subject: &Subject, length: Option<Duration>, context: &mut Context) -> Outcome {
    let choice = Choice::new(&Request::default())?;
    with_leaks(length, &choice, &subject.target, context, |leaks, context| {
        context.bytes(&encode(leaks)).map(|()| Exit::Ok)
    })
}

fn encode(leaks: &Leaks<'_>) -> Vec<u8> {
    let proven = leaks.proven.iter().flat_map(|leak| stacks(leaks, leak, "proven"));
    let stacks: Vec<_> =
        proven.chain(leaks.suspected.iter().flat_map(|leak| stacks(leaks, leak, "suspected"))).collect();
    let judged = match leaks.judged_ns {
        Some(ns) => format!("growth was judged over {}", short(ns)),
        None => "growth was not judged: numbers of tasks were compared for too short a time".to_owned(),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    pprof_counted(COLUMN, u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), &stacks, &[judged])
}

/// The tasks of a line, by group and place.
fn stacks(leaks: &Leaks<'_>, leak: &Leak<'_>, is: &str) -> Vec<CountedStack> {
    let mut counts: BTreeMap<(u32, Option<u32>), u64> = BTreeMap::new();
    for task in &leak.tasks {
        *counts.entry((task.group, task.places.first().copied())).or_default() += 1;
    }
    let spawn = leak.line.as_ref().map(|line| SourceFrame {
        function: format!("spawn {}", line.short()),
        file: line.file.clone(),
        line: line.line,
        inlined: false,
    });
    let stack = |((group, place), count): ((u32, Option<u32>), u64)| {
        let place = place.map(|place| leaks.places.frames(place)).unwrap_or_default();
        let frames = place.iter().map(|frame| SourceFrame {
            function: frame.function.clone(),
            file: frame.file.clone().unwrap_or_default(),
            line: frame.line.unwrap_or_default(),
            inlined: frame.inlined,
        });
        let lost = || SourceFrame { function: LOST.to_owned(), ..SourceFrame::default() };
        let lost = leak.growth.is_none().then(lost);
        let labels = vec![("group", leaks.group(group).to_owned()), ("leak", is.to_owned())];
        CountedStack { frames: lost.into_iter().chain(frames).chain(spawn.clone()).collect(), count, labels }
    };
    counts.into_iter().map(stack).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::leaks;
    use super::*;

    #[test]
    fn a_stack_is_the_place_below_its_spawn() {
        let stacks = leaks(|leaks| {
            let of = |leaks: &Leaks<'_>, of: &[Leak<'_>], is| stacks(leaks, &of[0], is);
            [of(leaks, &leaks.proven, "proven"), of(leaks, &leaks.suspected, "suspected")].concat()
        });
        let functions =
            |of: &CountedStack| -> Vec<_> { of.frames.iter().map(|it| it.function.clone()).collect() };
        assert_eq!(functions(&stacks[0]), [LOST, "spawn src/tea.rs:10"]);
        assert_eq!(functions(&stacks[1]), ["shop::brew", "spawn src/tea.rs:20"]);
        assert_eq!((stacks[0].count, stacks[1].count, stacks.len()), (2, 9, 2));
        assert_eq!(stacks[1].labels, [("group", "GET /tea".to_owned()), ("leak", "suspected".to_owned())]);
    }
}

//! `group-watch/…`: the price of a poll if a group has a watch that follows its tasks.
//!
//! The tasks are those of `bench poll`, CPU time is counted for all groups, and nothing hits the
//! watch: this is the price of arming it for the group's tasks.
//!
//! | row | the polls are of |
//! |---|---|
//! | `none` | a group; no watch is there |
//! | `other` | a group; another one has a watch, and had tasks on the thread before |
//! | `same` | the group with the watch |
//! | `none-in-turn` | two groups in turn; no watch is there |
//! | `in-turn` | the group with the watch and another one in turn |
//!
//! `kernel/rearm` is a breakpoint of this thread switched on and off by its descriptor: the
//! kernel's part of the cost of a poll that comes and goes.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;

use dormouse::events::Mode;
use dormouse::{Access as WatchAccess, Counting, Event, Group, Watch, WatchSpec};
use dormouse_sys::perf::{Access, Attr, Breakpoint, WatchLen, bare, open_here};

use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;
use crate::table::value;
use crate::workloads::poll::tasks;

static WATCHED: AtomicU64 = AtomicU64::new(0);

/// The rows: the group that has a watch, and the groups of tasks with even and odd numbers.
const ROWS: [(&str, Option<usize>, [usize; 2]); 5] = [
    ("none", None, [0, 0]),
    ("other", Some(1), [0, 0]),
    ("same", Some(0), [0, 0]),
    ("none-in-turn", None, [0, 1]),
    ("in-turn", Some(0), [0, 1]),
];

fn name(row: &str) -> String {
    format!("group-watch/{row}")
}

pub(super) fn rows(bench: &mut Bench) {
    let groups = ["bench group-watch", "bench group-watch, the other"].map(Group::new);
    for (row, watched, of) in ROWS {
        let spec = Spec::new(name(row), "ns").per("poll").cpu().with("tasks", tasks::TASKS);
        let ready = move || begin(groups, watched.map(|group| groups[group]));
        tasks::row(bench, spec, ready, move |number, task| groups[of[number as usize % 2]].instrument(task));
    }
    rearm(bench);
}

/// Watched, where there is a watch, after the group has had a task on this thread.
fn begin(groups: [Group; 2], watched: Option<Group>) -> Result<([Counting; 2], Option<Watch>), Failure> {
    let count = |group: Group| group.start_counting(&[Event::TASK_CLOCK], Mode::GroupExact);
    let counting = [count(groups[0])?, count(groups[1])?];
    let Some(group) = watched else { return Ok((counting, None)) };
    let spec = WatchSpec::new(WATCHED.as_ptr().addr(), 8, WatchAccess::Write);
    let watch = Watch::for_group(group, &spec.named("bench group-watch"))?;
    group.scope(|| ());
    Ok((counting, Some(watch)))
}

/// Adds `kernel/rearm`.
fn rearm(bench: &mut Bench) {
    let spec = Spec::new("kernel/rearm", "ns").per("switch on and off").cpu();
    let watched = Breakpoint::watch(WATCHED.as_ptr().addr(), WatchLen::Eight, Access::Write);
    let opened = watched.map_err(|error| error.to_string());
    let opened = opened.and_then(|watched| {
        // With a signal, as a watch has it; nothing writes the variable.
        open_here(&Attr::breakpoint(watched).trapping(0).disabled()).map_err(|error| error.to_string())
    });
    let Some(event) = bench.need(spec.clone(), opened) else { return };
    bench.per_iteration(spec, move |times| {
        let (took, result) = cpu(|| {
            (0..times).try_for_each(|_| {
                bare::set_enabled(event.as_fd(), true)?;
                bare::set_enabled(event.as_fd(), false)
            })
        });
        result?;
        Ok::<_, Failure>(took)
    });
}

pub(super) fn compare(bench: &mut Bench) {
    for row in ["other", "same"] {
        bench.minus(format!("group-watch-added/{row}"), &name(row), &name("none"));
    }
    // One poll of each group: on and off.
    let of_two = |a: f64, b: f64| 2.0 * (a - b);
    let spec = Spec::new("group-watch-added/in-turn", "ns").per("two polls");
    bench.paired(spec, &name("in-turn"), &name("none-in-turn"), of_two);
    bench.at_most(
        "a poll pays nothing for another group's watch (5 ns are noise)",
        "group-watch-added/other",
        5.0,
    );
    let rearm = bench.median("kernel/rearm");
    let text = format!(
        "a poll of the watched group and one of another pay at most kernel/rearm and 20 %, {} ns in this run",
        value(rearm.map(|rearm| 1.2 * rearm))
    );
    bench.at_most(&text, "group-watch-added/in-turn", rearm.map_or(f64::NAN, |rearm| 1.2 * rearm));
    let text = "polls of the watched group in a row call no kernel: at most a fifth of kernel/rearm";
    bench.at_most(text, "group-watch-added/same", rearm.map_or(f64::NAN, |rearm| rearm / 5.0));
}

//! Deadlocks: threads and tasks that wait for one another, with the place where each is stuck.
//!
//! A thread has a stack, which the service reads. A task that waits has none, but the place where
//! it took its waker, if places were recorded by then.
//!
//! A thread that waits can free no lock. A task can: `join!` and sets of futures let one future
//! wait while another one holds a lock and goes on. So a circle with tasks is certain only if each
//! of them waits at one place, which is in a lock, and for one lock there. A task that waits for
//! itself is never certain: its guard may have been moved elsewhere. Nor is one that waits in a
//! nested group, so as another task than it holds its lock: a future between the two may go on. If
//! a task that holds a lock is known to wait elsewhere, too, that place is shown: there it goes on.

use std::borrow::Cow;

use dormouse_profile::NameFinder;
use dormouse_protocol::{LockBlockedRow, LockCycleRow, LockUserRow};
use serde::Serialize;

use crate::client::Client;
use crate::render::frame::CodeFrame;
use crate::waiting::queues::WaitingTasks;
use crate::waiting::stacks::names_of;

/// Why a circle with tasks in it may be no deadlock.
const UNSURE: &str = "another future of a task in it may go on, and free its lock";

/// Threads and tasks that wait for one another, in a circle.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct Deadlock<'a> {
    /// Why it may be no deadlock; absent if it is one for certain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unsure: Option<Cow<'static, str>>,
    /// Each waits for the next one; the last one for the first.
    pub(super) blocked: Vec<Stuck<'a>>,
}

/// One of those who wait for one another.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct Stuck<'a> {
    /// Its wait.
    pub(super) waiter: &'a LockUserRow,
    /// The hold for which it waits.
    pub(super) holder: &'a LockUserRow,
    /// The way by which a thread's stack was found: `tables`, `frame-pointers`, `search`. Absent
    /// for a task.
    #[serde(skip_serializing_if = "str::is_empty")]
    way: &'a str,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_stack: Option<&'a str>,
    /// The functions in which it is stuck, the innermost first: those of the thread's stack, or
    /// from the place where the task waits to its poll.
    pub(super) frames: Vec<CodeFrame>,
    #[serde(skip)]
    row: &'a LockBlockedRow,
}

impl<'a> Deadlock<'a> {
    pub(super) fn new(of: &'a LockCycleRow) -> Self {
        let has_tasks = of.blocked.iter().any(|of| of.waiter.place.awaited);
        Self {
            unsure: has_tasks.then_some(UNSURE.into()),
            blocked: of.blocked.iter().map(Stuck::new).collect(),
        }
    }

    /// Finds the functions in which each is stuck, and whether it is for certain; `waiters`: the
    /// present waits.
    pub(super) fn find_stacks(
        all: &mut [Self],
        client: &Client,
        tasks: Option<&WaitingTasks>,
        waiters: &[LockUserRow],
    ) {
        if all.is_empty() {
            return;
        }
        let mut finder = client.names().ok();
        for of in all {
            for stuck in &mut of.blocked {
                stuck.find_stack(finder.as_mut(), tasks);
            }
            of.judge(tasks, waiters);
        }
    }

    /// Whether it is certain, by the places of its tasks.
    fn judge(&mut self, tasks: Option<&WaitingTasks>, waiters: &[LockUserRow]) {
        if self.unsure.is_none() {
            return;
        }
        let is_stuck = |of: &Stuck<'_>| {
            let task = of.waiter.task;
            let waits = || waiters.iter().filter(|waiter| waiter.task == task).count();
            !of.waiter.place.awaited || tasks.is_some_and(|tasks| tasks.is_only_at_lock(task)) && waits() < 2
        };
        // Each waits for the next one, the last one for the first.
        let next = self.blocked.iter().cycle().skip(1).map(|next| next.waiter);
        let holds_it =
            |(of, next): (&Stuck<'_>, &LockUserRow)| !next.place.awaited || of.holder.task == next.task;
        let are_whole = self.blocked.iter().zip(next).all(holds_it);
        if self.blocked.len() > 1 && are_whole && self.blocked.iter().all(is_stuck) {
            self.unsure = None;
            return;
        }
        let mut holders = self.blocked.iter().map(|of| of.holder.task);
        let elsewhere = holders.find_map(|task| Some((task, tasks?.elsewhere(task)?)));
        if let Some((task, place)) = elsewhere {
            let why = format!("task {task} waits at {place}, too, and may free its lock from there");
            self.unsure = Some(why.into());
        }
    }
}

impl<'a> Stuck<'a> {
    fn new(row: &'a LockBlockedRow) -> Self {
        let LockBlockedRow { waiter, holder, way, no_stack, .. } = row;
        Self { waiter, holder, way, no_stack: no_stack.as_deref(), frames: Vec::new(), row }
    }

    fn find_stack(&mut self, finder: Option<&mut NameFinder>, tasks: Option<&WaitingTasks>) {
        let found = if self.waiter.place.awaited {
            let tasks = tasks.ok_or("the service records no places of tasks");
            tasks.and_then(|tasks| tasks.stuck_at(self.waiter.task))
        } else if self.row.stack.is_empty() {
            Err("the service's dormouse is older, and reads no stacks for this")
        } else {
            Ok(names_of(finder, &self.row.stack))
        };
        match found {
            Ok(frames) => self.frames = frames,
            Err(why) => self.no_stack = self.no_stack.or(Some(why)),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use dormouse_protocol::LockPlaceRow;

    use super::super::listing::tests::place;
    use super::*;
    use crate::waiting::place::tests::frame;

    pub(in crate::cmd::locks) fn row(awaited: bool, stack: &[u64], no_stack: Option<&str>) -> LockBlockedRow {
        let user = |line| LockUserRow {
            place: LockPlaceRow { awaited, ..place("cache.rs", line, "mutex", "shop::Index") },
            group: Some("GET /menu".to_owned()),
            tid: 9,
            ..LockUserRow::default()
        };
        LockBlockedRow {
            waiter: user(41),
            holder: user(90),
            stack: stack.to_vec(),
            way: if stack.is_empty() { String::new() } else { "tables".to_owned() },
            no_stack: no_stack.map(str::to_owned),
        }
    }

    /// With these functions.
    pub(in crate::cmd::locks) fn stuck(row: &LockBlockedRow) -> Stuck<'_> {
        let frames = vec![
            frame("syscall", "", 0),
            frame("std::sys::sync::mutex::futex::Mutex::lock_contended", "/rustc/1/library/std/src/m.rs", 9),
            frame("shop::menu", "/src/menu.rs", 41),
            frame("shop::main", "/src/main.rs", 3),
        ];
        Stuck { frames, ..Stuck::new(row) }
    }

    #[test]
    fn a_stack_or_the_reason_is_there() {
        let found = |row: &LockBlockedRow| {
            let mut stuck = Stuck::new(row);
            stuck.find_stack(None, None);
            serde_json::to_value(stuck).unwrap()
        };
        let read = found(&row(false, &[7, 8], None));
        assert_eq!((&read["way"], &read["frames"][1]["function"]), (&"tables".into(), &"0x8".into()));
        assert!(read["no_stack"].is_null(), "{read}");
        for (row, part) in [
            (row(false, &[], Some("it has ended")), "it has ended"),
            (row(false, &[], None), "older"),
            (row(true, &[], None), "no places"),
        ] {
            let without = found(&row);
            assert!(without["no_stack"].as_str().is_some_and(|why| why.contains(part)), "{without}");
            assert!(without["way"].is_null() && without["frames"] == serde_json::json!([]), "{without}");
        }
    }

    #[test]
    fn tasks_are_stuck_by_their_places() {
        let thread = || row(false, &[7], None);
        let task = |number| {
            let mut row = row(true, &[], None);
            row.waiter.task = number;
            row
        };
        let at_lock = WaitingTasks::at_locks(&[5]);
        let circle = |mut blocked: Vec<LockBlockedRow>| {
            for at in 0..blocked.len() {
                blocked[at].holder.task = blocked[(at + 1) % blocked.len()].waiter.task;
            }
            blocked
        };
        // Task 6 holds the lock, and waits in a nested group.
        let mut nested = circle(vec![task(5), thread()]);
        nested[1].holder.task = 6;
        for (blocked, tasks, waits, is_certain) in [
            (vec![thread(), thread()], None, 1, true),
            (circle(vec![task(5), thread()]), None, 1, false),
            (circle(vec![task(5), thread()]), Some(&at_lock), 1, true),
            // Two futures of it wait for locks at one place.
            (circle(vec![task(5), thread()]), Some(&at_lock), 2, false),
            (circle(vec![task(5), task(6)]), Some(&at_lock), 1, false),
            (nested, Some(&at_lock), 1, false),
            (circle(vec![task(5)]), Some(&at_lock), 1, false),
        ] {
            let cycle = LockCycleRow { blocked };
            let mut deadlock = Deadlock::new(&cycle);
            deadlock.judge(tasks, &vec![task(5).waiter; waits]);
            assert_eq!(deadlock.unsure.is_none(), is_certain, "{cycle:?}");
        }
    }
}

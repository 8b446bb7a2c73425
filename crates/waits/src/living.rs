//! The tasks that are alive.

use std::panic::catch_unwind;
use std::sync::atomic::Ordering;

use dormouse_clock::{stamp, ticks_to_ns};

use crate::cpu;
use crate::known::Known;
use crate::places;
use crate::primitive::{AtomicU64, fence};
use crate::rows::{self, Going};
use crate::run::run;
use crate::sites::{self, Site};
use crate::slab;
use crate::slot::Slot;
use crate::stretch::DEPTH;
use crate::trace_context::TraceContext;
use crate::wait::Wait;
use crate::waiting::is_on;
use crate::waker;

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// It is being polled.
    Polled,
    /// It was woken, and is not polled yet.
    Runnable,
    /// It awaits something.
    Awaiting,
}

/// The state of a living task a moment ago. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct LivingTask {
    /// The task's number.
    pub task: u64,
    /// The number of the task's group.
    pub group: u32,
    /// The task's age, since the arrival of the request that it answers; `None` if it began before
    /// times were taken. Before the task began, the request was queued for the age minus
    /// `poll_ns`, `runnable_ns` and `await_ns`.
    pub age_ns: Option<u64>,
    /// For how long the head of the task's response has been there: the request is answered.
    /// `None` if it has no answer yet, or began before times were taken.
    pub answered_ns: Option<u64>,
    /// The task's present state.
    pub state: TaskState,
    /// For how long the task has been in that state.
    pub for_ns: u64,
    /// The task's time in polls so far.
    pub poll_ns: u64,
    /// The task's time from wakes to polls so far.
    pub runnable_ns: u64,
    /// The task's time in neither state so far.
    pub await_ns: u64,
    /// The task's CPU time since CPU times are measured ([`CpuTaking`](crate::CpuTaking)). `None`
    /// if it is not, or if the present poll began before.
    pub cpu_ns: Option<u64>,
    /// How many polls of the task have ended.
    pub polls: u64,
    /// How many wakes made the task runnable.
    pub wakes: u64,
    /// The numbers of the [places](crate::places) where the task's leaves (innermost futures) have
    /// taken wakers that still exist. A runnable task has only the place that has woken it, unless
    /// it yields. Empty if the task is in a poll, or if its leaves have taken their wakers before
    /// places were requested.
    pub places: Vec<u32>,
    /// How many polls ago these wakers were taken; 0 for the last poll. If a leaf keeps a waker
    /// from an earlier poll, its place is that of the earlier poll, and it may wait elsewhere by
    /// now.
    pub polls_ago: u32,
    /// Whether the task's leaves have taken wakers at more places than a task has room for.
    pub has_more_places: bool,
    /// Whether a waker of the task exists outside of it. If a task awaits and has none, nothing can
    /// wake it, unless it is entered by hand.
    pub has_waker: bool,
    /// Whether the task was entered by hand ([`TimesId::enter`](crate::TimesId::enter),
    /// [`Stretch::enters_by_hand`](crate::Stretch::enters_by_hand)): it goes on when it is entered
    /// again, and needs no waker for that.
    pub is_by_hand: bool,
    /// The trace to which the task belongs, if that is known.
    pub trace: Option<TraceContext>,
    /// Where the task was spawned; [`Site::NONE`] if it was not spawned as a whole, or before times
    /// were taken.
    pub site: Site,
    /// Whether nothing can wake the task any more. This is proved: every waker that it has ever
    /// been given was counted, and is gone. It can still be aborted, and ends with its runtime.
    pub is_unwakeable: bool,
}

/// All tasks that have been polled, or have begun, while times were taken.
///
/// # Cost
///
/// Reads each task. No thread is stopped.
pub fn living() -> impl Iterator<Item = LivingTask> {
    let run = run();
    slab::all().filter_map(move |slot| look(slot, run))
}

/// A part of [`living`], so that a reader of very many tasks can do something else in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivingPart {
    /// The tasks.
    pub tasks: Vec<LivingTask>,
    /// Where the next part begins; `None` if this part is past the last task, and empty.
    pub next: Option<usize>,
}

/// A part of all living tasks, from `from` on: 0, or [`LivingPart::next`] of the part before. It
/// has at most `most` tasks.
///
/// A task stays in its place. So a task that lives all the time is in exactly one part, in the
/// state that it had when that part was read.
///
/// # Cost
///
/// Reads at most `most` places.
pub fn living_part(from: usize, most: usize) -> LivingPart {
    let run = run();
    let (slots, all) = slab::part(from, most);
    let tasks = slots.filter_map(|slot| look(slot, run)).collect();
    LivingPart { tasks, next: (from < all).then(|| all.min(from.saturating_add(most))) }
}

/// A task that a thread polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolledTask {
    /// The index of the thread's block.
    pub block: usize,
    /// The task's number.
    pub task: u64,
    /// The number of the task's group.
    pub group: u32,
    /// When the poll began, as a stamp: together with the task's number it identifies the poll.
    pub begun: u64,
    /// For how long the poll has lasted, in nanoseconds.
    pub for_ns: u64,
}

/// The tasks that threads are polling now, for each thread from the innermost outwards.
///
/// # Cost
///
/// Reads each thread that has polled.
pub fn polled() -> impl Iterator<Item = PolledTask> {
    let run = run();
    rows::shelves().flat_map(move |(block, shelf)| {
        let outwards = std::iter::successors(shelf.polled(), |going| going.outer()).take(DEPTH);
        outwards.map_while(move |Going { slot, begins }| {
            let (stamps, now) = stamps(slot, run)?;
            let for_ns = ticks_to_ns(now.saturating_sub(begins));
            let Stamps { task, group, polling, .. } = stamps;
            (polling == begins).then_some(PolledTask { block, task, group, begun: begins, for_ns })
        })
    })
}

/// A task as its slot has it, of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamps {
    pub(crate) task: u64,
    pub(crate) group: u32,
    pub(crate) known: Known,
    pub(crate) begun: u64,
    pub(crate) head: Option<u64>,
    pub(crate) since: u64,
    pub(crate) polling: u64,
    pub(crate) woken: u64,
    pub(crate) ticks: [u64; 3],
    pub(crate) polls: u64,
    pub(crate) wakes: u64,
    pub(crate) trace: Option<TraceContext>,
    /// Whether that is so: a task that never stops writing is taken as it is seen.
    pub(crate) is_whole: bool,
}

/// A whole look at a slot that a task with times of that run holds, and the present moment.
pub(crate) fn stamps(slot: &Slot, run: u64) -> Option<(Stamps, u64)> {
    // Acquire: pairs with `Slot::turn`.
    let life = slot.life.load(Ordering::Acquire);
    if life.is_multiple_of(2) || slot.run.load(Ordering::Relaxed) != run {
        return None;
    }
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let (stamps, is_whole) = slot.sequence.read(|| Stamps {
        task: load(&slot.task),
        group: slot.group.load(Ordering::Relaxed),
        known: Known::now(slot),
        begun: load(&slot.begun),
        head: slot.response.head(),
        since: load(&slot.since),
        polling: load(&slot.polling),
        woken: load(&slot.woken),
        ticks: slot.ticks.each_ref().map(|ticks| ticks.load(Ordering::Relaxed)),
        polls: slot.polls.load(Ordering::Relaxed),
        wakes: slot.wakes.load(Ordering::Relaxed),
        trace: slot.traced.get(),
        is_whole: true,
    });
    let stamps = Stamps { is_whole, ..stamps };
    fence(Ordering::Acquire);
    (slot.life.load(Ordering::Relaxed) == life).then(|| (stamps, stamp()))
}

impl Stamps {
    /// Whether the task is in the same wait as in the other look, and not woken.
    fn is_same_wait(&self, other: &Self) -> bool {
        let of = |at: &Self| (at.task, at.begun, at.since, at.polling, at.woken, at.polls);
        of(self) == of(other)
    }

    /// The task's state, since when, and the ticks in polls, runnable, and awaiting, until now.
    pub(crate) fn until(&self, now: u64) -> (TaskState, u64, [u64; 3]) {
        let mut ticks = self.ticks;
        if self.polling != 0 {
            ticks[0] += now.saturating_sub(self.polling);
            return (TaskState::Polled, self.polling, ticks);
        }
        let wait = Wait::new(self.since, self.woken, now);
        ticks[1] += wait.runnable();
        ticks[2] += wait.awaited();
        if self.woken == 0 {
            (TaskState::Awaiting, self.since, ticks)
        } else {
            (TaskState::Runnable, wait.woken, ticks)
        }
    }
}

/// Wakes each task that awaits something at an unknown place, and returns their number. They are
/// polled once more, as any runtime may do, and their leaves take wakers again. A task that was
/// woken already, or whose wakers are all gone, is left alone; so are all tasks while places are
/// not requested.
///
/// # Cost
///
/// Reads each task, and wakes those by the runtime's own waker on this thread.
pub fn wake_unplaced() -> usize {
    wake_unplaced_part(0, usize::MAX).woken
}

/// A part of [`wake_unplaced`], so that a caller with very many tasks can do something else in
/// between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WokenPart {
    /// How many tasks were woken.
    pub woken: usize,
    /// Where the next part begins; `None` if all tasks were visited.
    pub next: Option<usize>,
}

/// A part of [`wake_unplaced`], from `from` on: 0, or [`WokenPart::next`] of the part before.
///
/// # Cost
///
/// Reads at most `most` places, and wakes.
pub fn wake_unplaced_part(from: usize, most: usize) -> WokenPart {
    // Otherwise a wake records no place, and the next call would wake them all again.
    if !is_on() || !places::are_asked() {
        return WokenPart { woken: 0, next: None };
    }
    let run = run();
    let is_meant = |slot: &&'static Slot| {
        look(slot, run).is_some_and(|task| task.state == TaskState::Awaiting && is_unplaced(&task.places))
    };
    // The runtime's wake is code of the host's: a panic of one is no reason to leave out the rest.
    let is_woken = |slot: &&'static Slot| catch_unwind(|| waker::wake_task(slot)).unwrap_or(false);
    let (slots, all) = slab::part(from, most);
    let next = from.saturating_add(most);
    WokenPart { woken: slots.filter(is_meant).filter(is_woken).count(), next: (next < all).then_some(next) }
}

/// Whether another poll would show where the task waits.
fn is_unplaced(places: &[u32]) -> bool {
    places.iter().all(|place| *place == places::UNLEARNED_PLACE)
}

/// Whether nothing can wake the task of the slot any more, which `before` has found awaiting. Read
/// in this order:
///
/// 1. `before`: the task is in no poll, and was not woken since its last one.
/// 2. No waker counts, and no thread polls. Only a poll makes a first waker. A wake by the last
///    waker stamps the task before it takes its count away.
/// 3. The stamps have not changed: no poll has begun, and no wake has come before 2.
///
/// So the next poll needs a waker, and the next waker needs a poll. (After a poll's first store a
/// task looks as in 1; then 2 finds its poller, or 3 the old wake or the poll's own stamps.)
fn is_unwakeable(slot: &'static Slot, before: &Stamps, run: u64) -> bool {
    before.is_whole
        && before.begun != 0
        && before.until(before.since).0 == TaskState::Awaiting
        && sites::sees_all_wakers(slot)
        && waker::is_left_alone(slot)
        && stamps(slot, run).is_some_and(|(after, _)| after.is_whole && after.is_same_wait(before))
        && sites::sees_all_wakers(slot)
}

/// A whole look at a slot.
pub(crate) fn look(slot: &'static Slot, run: u64) -> Option<LivingTask> {
    let (stamps, now) = stamps(slot, run)?;
    let (state, from, ticks) = stamps.until(now);
    let [poll_ns, runnable_ns, await_ns] = ticks.map(ticks_to_ns);
    // That with which a task begins is none.
    let is_woken = stamps.woken != 0 && stamps.polls != 0;
    Some(LivingTask {
        task: stamps.task,
        group: stamps.group,
        age_ns: (stamps.begun != 0).then(|| ticks_to_ns(now.saturating_sub(stamps.begun))),
        answered_ns: stamps.head.map(|head| ticks_to_ns(now.saturating_sub(head))),
        state,
        for_ns: ticks_to_ns(now.saturating_sub(from)),
        poll_ns,
        runnable_ns,
        await_ns,
        cpu_ns: cpu::used(slot, state == TaskState::Polled),
        polls: stamps.polls,
        wakes: stamps.wakes + u64::from(is_woken),
        places: stamps.known.places.into_iter().filter(|place| *place != 0).collect(),
        polls_ago: stamps.known.polls_ago,
        has_more_places: stamps.known.has_more,
        has_waker: waker::is_awaited(slot),
        is_by_hand: sites::is_by_hand(slot),
        trace: stamps.trace,
        site: sites::of(slot),
        is_unwakeable: is_unwakeable(slot, &stamps, run),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::{Context, Waker};
    use std::thread;

    use super::*;
    use crate::{TaskWaits, Waiting, Who};

    /// How many whole readings of a task there were, in each of which its times added up.
    fn look_all_the_time(task: u64, ends: &AtomicBool) -> usize {
        let mut looks = 0;
        while !ends.load(Ordering::Relaxed) {
            for slot in slab::all().filter(|slot| slot.task.load(Ordering::Relaxed) == task) {
                let Some((stamps, now)) = stamps(slot, run()).filter(|(stamps, _)| stamps.is_whole) else {
                    continue;
                };
                // The counters of two processors may differ.
                let now = now.max(stamps.since).max(stamps.polling);
                let (_, _, ticks) = stamps.until(now);
                assert_eq!(ticks.iter().sum::<u64>(), now - stamps.begun, "{stamps:?}");
                looks += 1;
            }
        }
        looks
    }

    #[test]
    fn times_add_up_to_the_age() {
        const POLLS: u32 = if cfg!(miri) { 500 } else { 200_000 };
        let _waiting = Waiting::start().unwrap();
        let who = Who { task: 0xdead_0001, group: 900 };
        let mut waits = TaskWaits::begun(who);
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let looking = scope.spawn(|| look_all_the_time(who.task, &ends));
            for n in 0..POLLS {
                let waker = waits.poll(who, &mut Context::from_waker(Waker::noop()), |cx| cx.waker().clone());
                if n % 3 != 0 {
                    waker.wake();
                }
                if n % 64 == 0 {
                    thread::yield_now();
                }
            }
            ends.store(true, Ordering::Relaxed);
            assert!(looking.join().unwrap() > 0);
        });
    }
}

//! The group that a thread is charged for at this moment, as another thread sees it.
//!
//! A reader that comes again later subtracts: for how long the group was polled on that thread.

use std::iter::successors;
use std::sync::atomic::Ordering;

use dormouse_clock::{stamp, ticks_to_ns};

use crate::counts::Time;
use crate::rows::{self, GROUPS, Going, Shelf};
use crate::run::run;
use crate::sites::is_by_hand;
use crate::stretch::DEPTH;

/// The group whose task a thread polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChargedThread {
    /// The number of the group.
    pub group: u32,
    /// For how long tasks of the group were polled on that thread so far, in nanoseconds, with the
    /// present poll.
    pub polled_ns: u64,
    /// For how long the group has been charged without a break, in nanoseconds.
    pub since_ns: u64,
    /// The task that was entered first on the thread, if it and all inside of it were entered by
    /// hand: scopes, threads, runs. `None` in a poll, in the destructor of a task, and in a part of
    /// another group's work, which was handed on to the thread.
    pub by_hand: Option<u64>,
}

/// The group that the thread with that block and start number is charged for. `None` if that is
/// none, or one without a row of its own: groups past the 1,024th. `is_part`: whether the task with
/// that number is a part of another one's work.
///
/// # Cost
///
/// Some loads. No thread is stopped.
pub fn charged(block: usize, start: u64, is_part: impl Fn(u64) -> bool) -> Option<ChargedThread> {
    let shelf = rows::shelf(block).filter(|shelf| shelf.start() == start)?;
    let (number, row) = shelf.charged_row().filter(|(number, _)| *number != 0)?;
    let sums = row.sums(run());
    let since = stamp().saturating_sub(Some(sums.polling).filter(|polling| *polling != 0)?);
    let polled = sums.ticks[Time::Poll as usize].saturating_add(since);
    Some(ChargedThread {
        group: number as u32,
        polled_ns: ticks_to_ns(polled),
        since_ns: ticks_to_ns(since),
        by_hand: by_hand(shelf, is_part),
    })
}

/// See [`ChargedThread::by_hand`].
fn by_hand(shelf: &Shelf, is_part: impl Fn(u64) -> bool) -> Option<u64> {
    let group = |going: Going| going.slot.group.load(Ordering::Relaxed);
    let mut first = None;
    for going in successors(shelf.polled(), |going| going.outer()).take(DEPTH) {
        let task = going.slot.task.load(Ordering::Relaxed);
        let is_handed_on = is_part(task) && going.outer().map(group) != Some(group(going));
        first = (is_by_hand(going.slot) && !is_handed_on).then_some(task);
        first?;
    }
    first
}

/// For how long tasks of a group were polled so far on the thread with that block and start number,
/// in nanoseconds, with the present poll.
///
/// # Cost
///
/// The cost of [`charged`].
pub fn polled_on(block: usize, start: u64, group: u32) -> Option<u64> {
    let shelf = rows::shelf(block).filter(|shelf| shelf.start() == start)?;
    let number = Some(group as usize).filter(|number| (1..GROUPS).contains(number))?;
    let sums = shelf.peek(number)?.0.sums(run());
    let present = if sums.polling == 0 { 0 } else { stamp().saturating_sub(sums.polling) };
    Some(ticks_to_ns(sums.ticks[Time::Poll as usize].saturating_add(present)))
}

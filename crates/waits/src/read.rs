//! The times of groups.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use dormouse_clock::{stamp, ticks_to_ns};

use crate::arrival::QueueTimes;
use crate::buckets::Histogram;
use crate::counts::{Counts, TIMES, Time};
use crate::living::{TaskState, stamps};
use crate::received_gaps;
use crate::response::StreamFrames;
use crate::returned::never_less;
use crate::rows::{self, GROUPS, Shelf, row_of};
use crate::run::run;
use crate::slab;
use crate::slot::Slot;
use crate::traffic::Traffic;
use crate::unanswered::Unanswered;

/// The times of a group since the first [`crate::Waiting`], in nanoseconds. The sums include the
/// present waits of living tasks, and never decrease from one read to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupWaits {
    /// The number of the group.
    pub group: u32,
    /// Time in polls, on a CPU or not, without polls of other tasks inside of them.
    pub poll_ns: u64,
    /// Time from wakes to the polls that followed.
    pub runnable_ns: u64,
    /// Time from the ends of polls to the wakes that followed.
    pub await_ns: u64,
    /// The time that requests waited before their tasks began.
    pub queue: QueueTimes,
    /// The lengths of polls.
    pub polls: Histogram,
    /// The times from a wake to its poll.
    pub delays: Histogram,
    /// The times from the end of a poll to a wake.
    pub awaits: Histogram,
    /// The latencies of requests that were answered: up to the head of the response, if that is
    /// known.
    pub requests: Histogram,
    /// The times from the head of a response to the last frame of its body, for bodies that were
    /// not dropped before their end.
    pub bodies: Histogram,
    /// The times from one frame of a stream to the next.
    pub gaps: Histogram,
    /// The times from one message that a socket has received to the next.
    pub received_gaps: Histogram,
    /// The frames of streams.
    pub streams: StreamFrames,
    /// Bytes and messages of connections, as far as a stream of dormouse's has seen them.
    pub traffic: Traffic,
    /// The bodies of requests that are being sent now, ten seconds after the head or later.
    pub sending: u64,
    /// The requests that ended without an answer.
    pub unanswered: Unanswered,
}

impl GroupWaits {
    fn set_sums(&mut self, sums: [u64; 3]) {
        [self.poll_ns, self.runnable_ns, self.await_ns] = sums;
    }

    /// The times since `before`, an earlier reading of the group.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            group: self.group,
            poll_ns: self.poll_ns.saturating_sub(before.poll_ns),
            runnable_ns: self.runnable_ns.saturating_sub(before.runnable_ns),
            await_ns: self.await_ns.saturating_sub(before.await_ns),
            queue: self.queue.since(&before.queue),
            polls: self.polls.since(&before.polls),
            delays: self.delays.since(&before.delays),
            awaits: self.awaits.since(&before.awaits),
            requests: self.requests.since(&before.requests),
            bodies: self.bodies.since(&before.bodies),
            gaps: self.gaps.since(&before.gaps),
            received_gaps: self.received_gaps.since(&before.received_gaps),
            streams: self.streams.since(&before.streams),
            traffic: self.traffic.since(&before.traffic),
            sending: self.sending,
            unanswered: self.unanswered.since(&before.unanswered),
        }
    }
}

/// The histograms that a reader wants. The others are empty in the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Histograms {
    /// All of them.
    All,
    /// Only those of requests, their bodies and streams.
    Requests,
}

impl Histograms {
    fn times(self) -> &'static [Time] {
        match self {
            Self::All => &[Time::Poll, Time::Runnable, Time::Await, Time::Body, Time::Gap, Time::Request],
            Self::Requests => &[Time::Body, Time::Gap, Time::Request],
        }
    }
}

/// Reads all groups that have times, in order of their numbers. Groups whose numbers are past the
/// table's share number 0.
///
/// # Cost
///
/// Reads each thread's rows, and each living task; takes 65 KB for each group. No thread is
/// stopped.
pub fn read() -> Vec<GroupWaits> {
    let mut all = Vec::new();
    read_each(Histograms::All, |of| all.push(of.clone()));
    all
}

/// Reads as [`read`] does, for a caller that needs one group at a time: the sums of all groups are
/// read at once, the histograms of a group when `tell` is called for it.
///
/// # Cost
///
/// The cost of [`read`], but 65 KB in all; buckets that are not wanted are not read.
pub fn read_each(wanted: Histograms, mut tell: impl FnMut(&GroupWaits)) {
    read_these(wanted, 0..GROUPS as u32, |of| {
        if let Some(of) = of {
            tell(of);
        }
    });
}

/// Reads the groups with these numbers as [`read_each`] does, in that order. `tell` is called for
/// each, with `None` for a group that has no times.
///
/// # Cost
///
/// The cost of [`read_each`].
pub fn read_these(
    wanted: Histograms,
    groups: impl IntoIterator<Item = u32>,
    mut tell: impl FnMut(Option<&GroupWaits>),
) {
    let run = run();
    let shelves: Vec<_> = rows::shelves().map(|(_, shelf)| shelf).collect();
    let sums = |row: usize| (row, (row < GROUPS).then(|| read_sums(row, &shelves, run)).flatten());
    let groups: Vec<_> = groups.into_iter().map(|group| sums(group as usize)).collect();
    let counts = |at: usize| {
        let row = groups.get(at).filter(|(_, sums)| sums.is_some()).map(|(row, _)| *row);
        row.into_iter().flat_map(|row| shelves.iter().filter_map(move |shelf| shelf.peek(row)?.1))
    };
    let mut lasting = HashMap::<usize, Lasting>::new();
    lasting_tasks(run, |_| true, |row, of| lasting.entry(row).or_default().add(of));
    // One for all: to move it costs more than to clear it.
    let mut of = GroupWaits::default();
    let mut filled = Filled::default();
    for (at, &(row, sums)) in groups.iter().enumerate() {
        // None of it is in a cache: what is read for a group is fetched two groups before.
        counts(at + 2).for_each(Counts::fetch);
        counts(at + 1).for_each(|counts| counts.fetch_buckets(wanted.times()));
        let Some(sums) = sums else {
            tell(None);
            continue;
        };
        let lasting = lasting.get(&row).copied().unwrap_or_default();
        let sums = never_less(run, row, split(sums, lasting.runnable));
        read_counts(row, &shelves, wanted, &mut of, &mut filled);
        of.set_sums(sums);
        of.sending = lasting.sending;
        tell(Some(&of));
    }
}

/// Reads one group; `None` if it has no times. A group whose number is past the table's has none of
/// its own.
///
/// # Cost
///
/// Reads one row of each thread, and the group of each living task. No thread is stopped.
pub fn read_group(group: u32) -> Option<GroupWaits> {
    let row = group as usize;
    if row >= GROUPS {
        return None;
    }
    let run = run();
    let shelves: Vec<_> = rows::shelves().map(|(_, shelf)| shelf).collect();
    let sums = read_sums(row, &shelves, run)?;
    let mut lasting = Lasting::default();
    lasting_tasks(run, |other| other == row, |_, of| lasting.add(of));
    let mut of = GroupWaits::default();
    read_counts(row, &shelves, Histograms::All, &mut of, &mut Filled::default());
    of.set_sums(never_less(run, row, split(sums, lasting.runnable)));
    of.sending = lasting.sending;
    Some(of)
}

/// Time in polls, runnable, and in awaits, in nanoseconds. Waits that last are all with the awaits.
fn read_sums(number: usize, shelves: &[&Shelf], run: u64) -> Option<[u64; 3]> {
    let rows = || shelves.iter().filter_map(|shelf| shelf.peek(number));
    rows().next()?;
    let mut ticks = [0_u64; 3];
    let (mut open, mut beginnings) = (0_u64, 0_u64);
    // One moment for all rows: waits that begin in one and end in another add up to theirs.
    let now = stamp();
    for (row, _) in rows() {
        let sums = row.sums(run);
        for (to, from) in ticks.iter_mut().zip(sums.ticks) {
            *to = to.wrapping_add(from);
        }
        if sums.polling != 0 {
            ticks[Time::Poll as usize] += now.saturating_sub(sums.polling);
        }
        open = open.wrapping_add(sums.open);
        beginnings = beginnings.wrapping_add(sums.beginnings);
    }
    let lasting = open.wrapping_mul(now).wrapping_sub(beginnings).cast_signed();
    ticks[Time::Await as usize] += lasting.max(0).cast_unsigned();
    Some(ticks.map(ticks_to_ns))
}

/// So many ticks of the waits that last are of tasks that are runnable.
fn split([poll_ns, runnable_ns, await_ns]: [u64; 3], runnable: u64) -> [u64; 3] {
    let ns = ticks_to_ns(runnable).min(await_ns);
    [poll_ns, runnable_ns + ns, await_ns - ns]
}

/// Which histograms of a group that was read hold any. The last one is that of received messages.
type Filled = [bool; TIMES + 1];

/// Makes `of` the group with that number, with the histograms that are wanted: those that are not
/// have never been read into it. Its sums are another's. `filled`: which of its histograms are to
/// be cleared before; a group has few of them, and each is 9 KB.
fn read_counts(
    number: usize,
    shelves: &[&Shelf],
    wanted: Histograms,
    of: &mut GroupWaits,
    filled: &mut Filled,
) {
    of.group = number as u32;
    of.queue = QueueTimes::default();
    of.unanswered = Unanswered::default();
    of.streams = StreamFrames::default();
    of.traffic = Traffic::default();
    for shelf in shelves.iter().filter(|shelf| shelf.peek(number).is_some()) {
        shelf.queue(of.group).add_to(&mut of.queue);
        shelf.unanswered(of.group).add_to(&mut of.unanswered);
        shelf.streams[number].add_to(&mut of.streams);
        shelf.traffic[number].add_to(&mut of.traffic);
    }
    let is_filled = &mut filled[TIMES];
    if std::mem::take(is_filled) {
        of.received_gaps.clear();
    }
    *is_filled = received_gaps::fill(number, &mut of.received_gaps);
    for &time in wanted.times() {
        let histogram = match time {
            Time::Poll => &mut of.polls,
            Time::Runnable => &mut of.delays,
            Time::Await => &mut of.awaits,
            Time::Body => &mut of.bodies,
            Time::Gap => &mut of.gaps,
            Time::Request => &mut of.requests,
        };
        let is_filled = &mut filled[time as usize];
        if std::mem::take(is_filled) {
            histogram.clear();
        }
        let counts = shelves.iter().filter_map(|shelf| shelf.peek(number)?.1);
        counts.for_each(|counts| *is_filled |= counts.add_to(time, histogram));
    }
}

/// The part of a row's figures that living tasks have.
#[derive(Debug, Clone, Copy, Default)]
struct Lasting {
    /// For how many ticks tasks have been runnable.
    runnable: u64,
    sending: u64,
}

impl Lasting {
    fn add(&mut self, of: Self) {
        self.runnable += of.runnable;
        self.sending += of.sending;
    }
}

/// Calls `add` for the living tasks of such rows that are runnable, or whose bodies are sent for
/// long.
fn lasting_tasks(run: u64, of: impl Fn(usize) -> bool, mut add: impl FnMut(usize, Lasting)) {
    let now = stamp();
    let is_meant = |slot: &&'static Slot| {
        (slot.woken.load(Ordering::Relaxed) != 0 || slot.response.is_long(&slot.answer, now))
            && of(row_of(slot.group.load(Ordering::Relaxed)))
    };
    for slot in slab::all().filter(is_meant) {
        let Some((stamps, now)) = stamps(slot, run) else { continue };
        let (state, from, _) = stamps.until(now);
        let runnable = if state == TaskState::Runnable { now.saturating_sub(from) } else { 0 };
        let sending = slot.response.is_long(&slot.answer, now).into();
        add(row_of(stamps.group), Lasting { runnable, sending });
    }
}

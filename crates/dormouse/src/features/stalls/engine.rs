//! Accounts stalled time of groups to its causes.
//!
//! The kernel adds up for each thread how long it ran and how long it waited for a CPU; for the
//! rest of the time it slept. It does so exactly, whoever reads it, and whenever. The thread itself
//! adds up for how long it polled tasks of each group. So the differences between two samples at a
//! thread, a *window*, show what its polls waited for:
//!
//! ```text
//! window             |--------------- W ---------------|
//! the group's polls       |----------- P -----------|      W - P: anything else
//! the kernel's       | ran R | waited D | slept W - R - D |
//! ```
//!
//! The thread may have spent up to W - P of the wait elsewhere. So at least D - (W - P) of it was
//! in the group's polls. The same bound holds for the time that it slept. A window within one poll
//! loses nothing. For a window with many short polls of several groups, nothing is claimed for any
//! of them.
//!
//! Such a lower bound holds also if the sampler is late: a CPU limit stops it together with the
//! service, and the window becomes longer.
//!
//! # Waits that last
//!
//! The kernel adds a wait for a CPU when it ends. Until then it looks like sleep.
//!
//! 1. A thread that has not run since the last sample, and does not sleep now, may have waited all
//!    the time: its window stays open.
//! 2. If it has run and waits again, the present wait is counted as sleep now, and taken off the
//!    sleep of later windows ([`Window::ahead_ns`]). So all sleep together is too much by one wait
//!    at most. In the next window the thread then has run and waited for longer than that lasted:
//!    the excess was before it, in the poll that the window began in.
//!
//! # Memory
//!
//! Some 150 bytes for each thread in a poll, of at most [`MAX_THREADS`] threads; 400 for each
//! group.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dormouse_clock::{stamp, thread_cpu_ns_of, ticks_to_ns};
use dormouse_sys::process::kernel_view::{KernelState, counts_block_delay};
use dormouse_sys::process::schedstat::Schedstat;
use dormouse_sys::thread::{self, ThreadBlock};
use dormouse_waits::{charged, polled_on};

use super::limit::LimitReader;
use super::sample::{ThreadIn, ThreadSample, ThreadTally};
use crate::lookout::{Engine, own_cpu};

/// The time between two samples while polls stall, and while they do not.
const LOOKS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];

/// Samples become rarer when the last stall, and the last client's coming, are this long ago: so a
/// client that stays for seconds has all its samples.
const LASTING: Duration = Duration::from_secs(5);

/// A stall of one window that is shorter is no reason to sample more often.
const STALL_NS: u64 = 2_000_000;

/// The pause between samples is this many times the CPU time of the last one: at most a twentieth
/// of a processor goes to them.
const RARELY: u32 = 20;

/// The longest time between two samples, however many threads there are.
const LONGEST: Duration = Duration::from_millis(500);

/// Threads in polls that are sampled at once.
const MAX_THREADS: usize = 256;

/// Shorter waits for a CPU, and shorter times for which the process was throttled, are not
/// compared with one another.
const NOTABLE_NS: u64 = 1_000_000;

/// The most of both for which a match is awaited: two periods and more.
const MOST_UNMATCHED_NS: u64 = 250_000_000;

/// Nanoseconds of a tick in which the kernel shows delays by block devices (`USER_HZ`).
const BLOCK_TICK_NS: u64 = 10_000_000;

/// The stalled time of a group by its causes, as far as it is known: lower bounds, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GroupStalls {
    /// Its polls waited for a CPU.
    pub(crate) cpu_wait_ns: u64,
    /// The part of that for which a CPU limit may be the reason; an upper bound. Unknown where no
    /// limit can be seen.
    pub(crate) throttled_ns: Option<u64>,
    /// Its polls slept.
    pub(crate) asleep_ns: u64,
    /// The part of that for block devices; unknown where the kernel does not count it.
    pub(crate) block_io_ns: Option<u64>,
    /// Major page faults of polls, of windows that lay within the group's polls.
    pub(crate) major_faults: u64,
    /// The calls in which the polls slept, by samples at the begin and at the end of each window.
    pub(crate) within: ThreadTally,
}

/// The sums of all groups, which readers share with the sampler of stalls. Held for moments, and
/// never over a fork: a child does not touch it.
#[derive(Debug, Default)]
pub(crate) struct StallSums(Mutex<HashMap<u32, GroupStalls>>);

impl StallSums {
    /// Calls `f` with the sums.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut HashMap<u32, GroupStalls>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The numbers of holders, which no two have, also of two lookouts.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The samples of threads, as long as somebody holds them.
#[derive(Debug, Default)]
pub(crate) struct StallAccount {
    holders: Vec<u64>,
    sums: Arc<StallSums>,
    /// By the index of the thread's block.
    windows: HashMap<usize, Window>,
    limit: LimitReader,
    counts_block_delay: bool,
    /// When polls stalled last, or a client came.
    stalled: Option<Instant>,
    next: Option<Instant>,
}

/// A window of a thread that has begun: what was read then.
#[derive(Debug, Clone, Copy)]
struct Window {
    start: u64,
    begun: Reading,
    /// The group whose task was polled, and for how long tasks of it had been, in nanoseconds.
    polled: Option<(u32, u64)>,
    /// The call or fault in which the thread slept.
    within: Option<ThreadIn>,
    /// Sleep that was counted and turned out to be a wait, or may do so.
    ahead_ns: u64,
    unmatched: Unmatched,
}

/// Waits of a thread for a CPU, and what the kernel counts as throttled meanwhile. The kernel adds
/// the one when the thread runs again and the other when it lifts the limit, which may be in
/// different windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Unmatched {
    /// The group that has waited last.
    group: u32,
    waited_ns: u64,
    throttled_ns: u64,
}

impl Unmatched {
    fn wait(&mut self, group: u32, ns: u64) {
        self.group = group;
        self.waited_ns = self.waited_ns.saturating_add(ns).min(MOST_UNMATCHED_NS);
    }

    /// The process was throttled: the part of the waits for which that may be the reason.
    fn match_throttled(&mut self, ns: u64) -> u64 {
        self.throttled_ns = self.throttled_ns.saturating_add(ns).min(MOST_UNMATCHED_NS);
        let matched = self.waited_ns.min(self.throttled_ns);
        self.waited_ns -= matched;
        self.throttled_ns -= matched;
        matched
    }
}

/// The kernel's account of a thread.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// A stamp.
    at: u64,
    run_ns: u64,
    waited_ns: u64,
    state: u8,
    block_ticks: u64,
    major_faults: u64,
}

/// A part of the time of a group's polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stalled {
    cpu_wait_ns: u64,
    asleep_ns: u64,
}

impl Reading {
    /// Reads the account of a thread; `None` if it has ended, or the kernel has no such account.
    fn of(tid: u32) -> Option<Self> {
        let at = stamp();
        let run_ns = thread_cpu_ns_of(tid)?;
        let waited_ns = Schedstat::of_own(tid)?.runnable_ns?;
        let KernelState { state, block_ticks, major_faults } = KernelState::of_own(tid).ok()?;
        Some(Self { at, run_ns, waited_ns, state, block_ticks, major_faults })
    }

    /// Whether the thread may have waited for a CPU ever since `before`.
    fn may_wait_since(&self, before: &Self) -> bool {
        self.state == b'R' && (self.run_ns, self.waited_ns) == (before.run_ns, before.waited_ns)
    }
}

impl Stalled {
    /// The least that was in a group's polls, of a window of that length.
    fn least(window_ns: u64, polled_ns: u64, cpu_wait_ns: u64, asleep_ns: u64) -> Self {
        let elsewhere = window_ns.saturating_sub(polled_ns);
        let least = |ns: u64| ns.saturating_sub(elsewhere).min(polled_ns);
        Self { cpu_wait_ns: least(cpu_wait_ns), asleep_ns: least(asleep_ns) }
    }
}

/// The sleep in a window in which the thread did not run or wait for `rest_ns`, and how much of
/// later sleep is counted with it then.
fn sleep(rest_ns: i64, ahead_ns: u64) -> (u64, u64) {
    let asleep = rest_ns.saturating_sub_unsigned(ahead_ns);
    (asleep.max(0).unsigned_abs(), asleep.min(0).unsigned_abs())
}

impl Engine for StallAccount {
    fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    fn step(&mut self, now: Instant, _: &mut [Box<dyn Engine>]) -> Option<Instant> {
        if self.holders.is_empty() {
            return None;
        }
        if self.next.is_none_or(|next| next <= now) {
            let began = own_cpu();
            self.sample();
            let took = own_cpu().saturating_sub(began);
            let is_quiet = self.stalled.is_none_or(|at| now.saturating_duration_since(at) >= LASTING);
            let least = LOOKS[usize::from(is_quiet)];
            self.next = Some(Instant::now() + (took * RARELY).clamp(least, LONGEST));
        }
        self.next
    }

    fn end(&mut self, number: u64) {
        self.holders.retain(|holder| *holder != number);
        if self.holders.is_empty() {
            *self = Self::default();
        }
    }
}

impl StallAccount {
    /// Begins for one more holder: its number, and the sums.
    pub(crate) fn begin(&mut self) -> Result<(u64, Arc<StallSums>), String> {
        self.holders.try_reserve(1).map_err(|_| "there is no memory".to_owned())?;
        if self.holders.is_empty() {
            self.limit = LimitReader::begin();
            self.counts_block_delay = counts_block_delay() == Some(true);
        }
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.holders.push(number);
        self.stalled = Some(Instant::now());
        self.next = None;
        Ok((number, Arc::clone(&self.sums)))
    }

    /// Samples each thread that is in a poll, or was at the last sample.
    fn sample(&mut self) {
        self.windows.retain(|index, window| {
            thread::live().any(|block| block.index() == *index && block.start() == window.start)
        });
        for block in thread::live() {
            self.sample_thread(block);
        }
        if self.windows.values().all(|window| window.unmatched.waited_ns < NOTABLE_NS) {
            return;
        }
        let Some(throttled_ns) = self.limit.since() else { return };
        self.sums.with(|sums| {
            for Window { unmatched, .. } in self.windows.values_mut() {
                let matched_ns = unmatched.match_throttled(throttled_ns);
                if let Some(of) = sums.get_mut(&unmatched.group) {
                    *of.throttled_ns.get_or_insert(0) += matched_ns;
                }
            }
        });
    }

    /// Samples a thread, and ends its window if that is possible.
    fn sample_thread(&mut self, block: &ThreadBlock) -> Option<()> {
        let (index, start, tid) = (block.index(), block.start(), block.tid());
        let charged = charged(index, start);
        let is_room = self.windows.len() < MAX_THREADS && self.windows.try_reserve(1).is_ok();
        let window = match self.windows.entry(index) {
            Entry::Occupied(known) if known.get().polled.is_none() && charged.is_none() => {
                known.remove();
                return None;
            }
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let (charged, begun) = (charged.filter(|_| is_room)?, Reading::of(tid)?);
                let polled = Some((charged.group, charged.polled_ns));
                let (within, unmatched) = (asleep_in(tid, &begun), Unmatched::default());
                place.insert(Window { start, begun, polled, within, ahead_ns: 0, unmatched });
                return None;
            }
        };
        let Some(now) = Reading::of(tid) else {
            self.windows.remove(&index);
            return None;
        };
        let before = window.begun;
        if now.may_wait_since(&before) {
            self.stalled = Some(Instant::now());
            return None;
        }
        let window_ns = ticks_to_ns(now.at.saturating_sub(before.at));
        let waited_ns = now.waited_ns.saturating_sub(before.waited_ns);
        let ran_ns = now.run_ns.saturating_sub(before.run_ns);
        let busy_ns = ran_ns.saturating_add(waited_ns);
        let rest_ns = window_ns.cast_signed().saturating_sub_unsigned(busy_ns);
        let (asleep_ns, ahead_ns) = sleep(rest_ns, window.ahead_ns);
        let earlier_ns = busy_ns.saturating_sub(window_ns).min(waited_ns);
        let within = asleep_in(tid, &now);
        let first = window.polled.and_then(|(group, polled_ns)| {
            Some((group, polled_on(index, start, group)?.saturating_sub(polled_ns)))
        });
        // The time that it ran outside of the group's polls hides stalls here, and makes none.
        if first.is_some_and(|(_, polled_ns)| polled_ns >= ran_ns.saturating_add(STALL_NS)) {
            self.stalled = Some(Instant::now());
        }
        let second = charged.map(|charged| (charged.group, charged.since_ns));
        let second = second.filter(|(group, _)| first.is_none_or(|(first, _)| first != *group));
        let slept_in = [window.within.or(within), within.or(window.within)];
        let block_ticks = now.block_ticks.saturating_sub(before.block_ticks);
        let block_io_ns = self.counts_block_delay.then_some(block_ticks * BLOCK_TICK_NS);
        let faults = now.major_faults.saturating_sub(before.major_faults);
        let polled = charged.map(|charged| (charged.group, charged.polled_ns));
        let mut unmatched = window.unmatched;
        let mut longest = None;
        for (group, polled_ns) in first.into_iter().chain(second) {
            let within_ns = waited_ns - earlier_ns;
            let mut stalled = Stalled::least(window_ns, polled_ns.min(window_ns), within_ns, asleep_ns);
            if first.is_some_and(|(first, _)| first == group) {
                stalled.cpu_wait_ns += earlier_ns;
            }
            // Two clocks are read one after the other.
            let is_whole = window_ns.saturating_sub(polled_ns) <= window_ns / 64;
            self.add(group, stalled, slept_in, block_io_ns, if is_whole { faults } else { 0 });
            longest = longest.max(Some((stalled.cpu_wait_ns, group)));
        }
        if let Some((ns, group)) = longest.filter(|(ns, _)| *ns > 0) {
            unmatched.wait(group, ns);
        }
        self.windows.insert(index, Window { start, begun: now, polled, within, ahead_ns, unmatched });
        Some(())
    }

    /// Adds to the sums of a group. `slept_in`: at the begin of the window and at its end. Of sleep
    /// in two calls it is not known when the one ended, so each has half of it. Sleep that is seen
    /// at one of them is of that call; at none of them, of another one.
    fn add(
        &self,
        group: u32,
        stalled: Stalled,
        slept_in: [Option<ThreadIn>; 2],
        block_io_ns: Option<u64>,
        major_faults: u64,
    ) {
        let Stalled { cpu_wait_ns, asleep_ns } = stalled;
        if cpu_wait_ns == 0 && asleep_ns == 0 {
            return;
        }
        self.sums.with(|sums| {
            if sums.try_reserve(1).is_err() {
                return;
            }
            let of = sums.entry(group).or_default();
            of.cpu_wait_ns += cpu_wait_ns;
            of.asleep_ns += asleep_ns;
            of.major_faults += major_faults;
            if asleep_ns > 0 {
                let half = asleep_ns / 2;
                let [first, last] = slept_in;
                let seen = [first.or(last), last.or(first)].map(|within| within.unwrap_or(ThreadIn::Other));
                for (within, ns) in seen.into_iter().zip([half, asleep_ns - half]) {
                    of.within.add(within, ns);
                }
            }
            if let Some(ns) = block_io_ns {
                *of.block_io_ns.get_or_insert(0) += ns.min(asleep_ns);
            }
        });
    }
}

/// The call or fault in which a thread sleeps now.
fn asleep_in(tid: u32, now: &Reading) -> Option<ThreadIn> {
    let within = (now.state != b'R').then(|| ThreadSample::in_state(tid, now.state).within)?;
    // It may have woken meanwhile.
    (!matches!(within, ThreadIn::Cpu | ThreadIn::Runnable)).then_some(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_window_within_a_poll_loses_nothing() {
        let all = Stalled::least(20 * MS, 20 * MS, 15 * MS, 4 * MS);
        assert_eq!(all, Stalled { cpu_wait_ns: 15 * MS, asleep_ns: 4 * MS });
        // A limit has held back the sampler, too.
        let late = Stalled::least(90 * MS, 90 * MS, 80 * MS, 0);
        assert_eq!(late.cpu_wait_ns, 80 * MS);
    }

    #[test]
    fn time_outside_of_polls_is_not_claimed() {
        let least = |polled| Stalled::least(20 * MS, polled * MS, 9 * MS, 8 * MS);
        assert_eq!(least(15), Stalled { cpu_wait_ns: 4 * MS, asleep_ns: 3 * MS });
        assert_eq!(least(11), Stalled { cpu_wait_ns: 0, asleep_ns: 0 });
        // More than its polls no group is charged for.
        assert_eq!(Stalled::least(20 * MS, 18 * MS, 30 * MS, 0).cpu_wait_ns, 18 * MS);
    }

    #[test]
    fn a_late_wait_is_taken_off_sleep() {
        let ms = |ms: i64| ms * 1_000_000;
        // Of three windows of 20 ms the thread ran in the first for 15 ms and then waited for 12.
        let (first, ahead) = sleep(ms(5), 0);
        let (second, ahead) = sleep(ms(20 - 13 - 12), ahead);
        let (third, ahead) = sleep(ms(9), ahead);
        assert_eq!([first, second, third, ahead].map(|ns| ns / MS), [5, 0, 4, 0]);
    }

    #[test]
    fn waits_match_what_was_throttled_meanwhile() {
        let mut unmatched = Unmatched::default();
        unmatched.wait(7, 80 * MS);
        assert_eq!(unmatched.match_throttled(0), 0);
        // The kernel counts it a window later, and more on other processors.
        assert_eq!(unmatched.match_throttled(120 * MS), 80 * MS);
        unmatched.wait(7, 90 * MS);
        assert_eq!(unmatched.match_throttled(0), 40 * MS);
        // Long ago is no reason for a wait of now.
        assert_eq!(unmatched.match_throttled(9_000 * MS), 50 * MS);
        unmatched.wait(7, 9_000 * MS);
        assert_eq!(unmatched.match_throttled(0), MOST_UNMATCHED_NS - 50 * MS);
    }

    #[test]
    fn a_wait_that_lasts_keeps_its_window() {
        let before = Reading { at: 0, run_ns: 5, waited_ns: 7, state: b'R', block_ticks: 0, major_faults: 0 };
        let later = |run_ns, state| Reading { at: 9, run_ns, state, ..before };
        assert!(later(5, b'R').may_wait_since(&before));
        assert!(!later(6, b'R').may_wait_since(&before), "it has run");
        assert!(!later(5, b'S').may_wait_since(&before), "it has slept all the time");
    }
}

//! The windows of a thread: what its polls waited for between two samples.
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
//! The kernel adds a wait for a CPU when it ends; until then it looks like sleep. A wait may last
//! if the thread is runnable, and not on a CPU. So sleep and waits have windows of their own, which
//! begin together:
//!
//! 1. The window of sleep ends only at a sample at which no wait lasts. So no wait is ever counted
//!    as sleep.
//! 2. The window of waits ends at each sample, unless the thread has not run since the last one:
//!    then it may have waited all the time. If the next window shows that the thread ran and waited
//!    for longer than that window lasted, the excess was before, in the poll in which it began.
//!    More of that wait may have been before: at most the time since the window of sleep began in
//!    which the thread neither ran nor is known to have waited.

use dormouse_clock::{stamp, thread_cpu_ns_of, ticks_to_ns};
use dormouse_sys::process::kernel_view::KernelState;
use dormouse_sys::process::schedstat::Schedstat;
use dormouse_waits::ChargedThread;

use super::sample::{ThreadIn, ThreadSample};

/// A poll that lasted for this much longer than its thread ran is a stall.
const STALL_NS: u64 = 2_000_000;

/// Nanoseconds of a tick in which the kernel shows delays by block devices (`USER_HZ`).
const BLOCK_TICK_NS: u64 = 10_000_000;

/// The kernel's account of a thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// A stamp.
    at: u64,
    run_ns: u64,
    waited_ns: u64,
    /// Whether the thread may have been waiting for a CPU.
    may_wait: bool,
    state: u8,
    block_ticks: u64,
    major_faults: u64,
}

/// A sample of a thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) reading: Reading,
    /// The group whose task was polled.
    pub(super) charged: Option<ChargedThread>,
    /// For how long tasks of the groups in which the windows began were polled so far.
    pub(super) polled_ns: [Option<u64>; 2],
    /// How long the sample took. Its numbers are of different moments in this time.
    pub(super) took_ns: u64,
    /// The state of the thread, if a group was charged.
    pub(super) within: Option<Within>,
}

/// The state of a charged thread at an end of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Within {
    /// The call or fault in which it sleeps, if it does.
    pub(super) asleep_in: Option<ThreadIn>,
    /// Whether the work was entered by hand, and no request is known to wait for it.
    pub(super) is_by_hand: bool,
}

/// The beginning of a window.
#[derive(Debug, Clone, Copy)]
struct Start {
    reading: Reading,
    /// The group whose task was polled, and for how long tasks of it had been, in nanoseconds.
    polled: Option<(u32, u64)>,
    took_ns: u64,
    within: Option<Within>,
}

/// The two windows of a thread that have begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    waits: Start,
    sleep: Start,
}

/// Times by group: of that in which the window began, and of that in which it ended.
pub(super) type ByGroup = [Option<(u32, u64)>; 2];

/// The sleep of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slept {
    pub(super) by_group: ByGroup,
    /// The states at the beginning and at the end.
    pub(super) within: [Option<Within>; 2],
    /// The part of each group's that was for block devices, in nanoseconds.
    pub(super) block_ns: [u64; 2],
    /// Major page faults of a group whose polls filled the window.
    pub(super) major_faults: Option<(u32, u64)>,
}

/// The times that the end of windows shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) waited: ByGroup,
    /// `None`: that window goes on.
    pub(super) slept: Option<Slept>,
    /// Whether a poll lasted for longer than its thread ran.
    pub(super) is_stalled: bool,
}

impl Reading {
    /// Reads the account of a thread; `None` if it has ended, or the kernel has no such account.
    ///
    /// The order matters: a wait that is not in `waited_ns` and is not known by `may_wait` has
    /// begun during this reading.
    pub(super) fn of(tid: u32) -> Option<Self> {
        let KernelState { state, block_ticks, major_faults } = KernelState::of_own(tid).ok()?;
        let may_run = state == b'R';
        let before = if may_run { thread_cpu_ns_of(tid)? } else { 0 };
        let at = stamp();
        let run_ns = thread_cpu_ns_of(tid)?;
        let waited_ns = Schedstat::of_own(tid)?.runnable_ns?;
        // The clock of a thread that is on a CPU goes on.
        let may_wait = may_run && run_ns == before;
        Some(Self { at, run_ns, waited_ns, may_wait, state, block_ticks, major_faults })
    }

    /// The call or fault in which the thread sleeps now.
    pub(super) fn asleep_in(&self, tid: u32) -> Option<ThreadIn> {
        let within = (self.state != b'R').then(|| ThreadSample::in_state(tid, self.state).within)?;
        // It may have woken meanwhile.
        (!matches!(within, ThreadIn::Cpu | ThreadIn::Runnable)).then_some(within)
    }

    /// Whether the thread may have waited for a CPU ever since `before`.
    fn may_wait_since(&self, before: &Self) -> bool {
        self.may_wait && self.busy_ns() == before.busy_ns()
    }

    fn busy_ns(&self) -> u64 {
        self.run_ns.saturating_add(self.waited_ns)
    }

    /// The time since `before` in which the thread neither ran nor is known to have waited.
    fn rest_ns(&self, before: &Self) -> u64 {
        self.ns_since(before).saturating_sub(self.busy_ns().saturating_sub(before.busy_ns()))
    }

    fn ns_since(&self, before: &Self) -> u64 {
        ticks_to_ns(self.at.saturating_sub(before.at))
    }
}

impl Start {
    fn at(sample: &Sample) -> Self {
        let polled = sample.charged.map(|charged| (charged.group, charged.polled_ns));
        Self { reading: sample.reading, polled, took_ns: sample.took_ns, within: sample.within }
    }

    /// For how long at least the group in which the window began, and another one in which it
    /// ended, were polled in it. The time that the samples took counts as outside of their polls.
    fn polled(&self, now: &Sample, so_far_ns: Option<u64>) -> ByGroup {
        let window_ns = now.reading.ns_since(&self.reading);
        let least = |ns: u64| ns.min(window_ns).saturating_sub(self.took_ns.saturating_add(now.took_ns));
        let first = self.polled.zip(so_far_ns);
        let first = first.map(|((group, ns), now)| (group, least(now.saturating_sub(ns))));
        let second = now.charged.map(|charged| (charged.group, least(charged.since_ns)));
        [first, second.filter(|(group, _)| first.is_none_or(|(first, _)| first != *group))]
    }
}

/// The least of a time in a window that was in a group's polls.
fn least(ns: u64, window_ns: u64, polled_ns: u64) -> u64 {
    ns.saturating_sub(window_ns.saturating_sub(polled_ns)).min(polled_ns)
}

impl Windows {
    pub(super) fn begin(sample: &Sample) -> Self {
        let start = Start::at(sample);
        Self { waits: start, sleep: start }
    }

    /// The groups whose polls a sample has to read: those in which the windows began.
    pub(super) fn groups(&self) -> [Option<u32>; 2] {
        [&self.waits, &self.sleep].map(|start| start.polled.map(|(group, _)| group))
    }

    /// Ends those windows that can end, and begins the next ones. `None`: neither can.
    pub(super) fn end(&mut self, now: &Sample) -> Option<Shown> {
        if now.reading.may_wait_since(&self.waits.reading) {
            return None;
        }
        let (waited, is_stalled) = self.waited(now);
        let slept = (!now.reading.may_wait).then(|| self.slept(now));
        self.waits = Start::at(now);
        if slept.is_some() {
            self.sleep = self.waits;
        }
        Some(Shown { waited, slept, is_stalled })
    }

    fn waited(&self, now: &Sample) -> (ByGroup, bool) {
        let before = &self.waits.reading;
        let window_ns = now.reading.ns_since(before);
        let waited_ns = now.reading.waited_ns.saturating_sub(before.waited_ns);
        let ran_ns = now.reading.run_ns.saturating_sub(before.run_ns);
        let [first, second] = self.waits.polled(now, now.polled_ns[0]);
        let more_ns = ran_ns.saturating_add(waited_ns).saturating_sub(window_ns);
        let earlier_ns = more_ns.saturating_sub(now.took_ns).min(waited_ns);
        let most_earlier_ns = before.rest_ns(&self.sleep.reading).min(waited_ns);
        let of_first =
            |(group, polled_ns)| (group, earlier_ns + least(waited_ns - earlier_ns, window_ns, polled_ns));
        let of_second =
            |(group, polled_ns)| (group, least(waited_ns - most_earlier_ns, window_ns, polled_ns));
        // The time that it ran outside of the group's polls hides stalls here, and makes none.
        let is_stalled = first.is_some_and(|(_, polled_ns)| polled_ns >= ran_ns.saturating_add(STALL_NS));
        ([first.map(of_first), second.map(of_second)], is_stalled)
    }

    fn slept(&self, now: &Sample) -> Slept {
        let before = &self.sleep.reading;
        let (window_ns, rest_ns) = (now.reading.ns_since(before), now.reading.rest_ns(before));
        let polled = self.sleep.polled(now, now.polled_ns[1]);
        // Two clocks are read one after the other.
        let is_whole = |(_, polled_ns): &(u32, u64)| window_ns - polled_ns <= window_ns / 64;
        let faults = now.reading.major_faults.saturating_sub(before.major_faults);
        let block_ticks = now.reading.block_ticks.saturating_sub(before.block_ticks);
        let block_ns = block_ticks.saturating_mul(BLOCK_TICK_NS).min(rest_ns);
        Slept {
            by_group: polled.map(|of| of.map(|(group, ns)| (group, least(rest_ns, window_ns, ns)))),
            within: [self.sleep.within, now.within],
            block_ns: polled.map(|of| of.map_or(0, |(_, ns)| least(block_ns, window_ns, ns))),
            major_faults: polled[0].filter(is_whole).map(|(group, _)| (group, faults)),
        }
    }
}

#[cfg(test)]
mod tests {
    use dormouse_clock::ns_to_ticks;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Groups, and a time of each.
    type Listed = Vec<(u32, u64)>;

    /// A sample of a thread that sleeps, at a time in milliseconds since the first one.
    fn asleep(at: u64, ran: u64, waited: u64) -> Sample {
        let (run_ns, waited_ns) = (ran * MS, waited * MS);
        // The clock is known once a moment was taken.
        dormouse_clock::point();
        let at = ns_to_ticks(at * MS);
        let reading =
            Reading { at, run_ns, waited_ns, may_wait: false, state: b'S', block_ticks: 0, major_faults: 0 };
        Sample { reading, charged: None, polled_ns: [None; 2], took_ns: 0, within: None }
    }

    /// One of a thread that is runnable, and on no CPU.
    fn runnable(at: u64, ran: u64, waited: u64) -> Sample {
        let sample = asleep(at, ran, waited);
        Sample { reading: Reading { may_wait: true, state: b'R', ..sample.reading }, ..sample }
    }

    impl Sample {
        /// Its thread polls this group; for how many milliseconds on the whole, and since when.
        fn in_poll(self, group: u32, polled: u64, since: u64) -> Self {
            let (polled_ns, since_ns) = (polled * MS, since * MS);
            let charged = ChargedThread { group, polled_ns, since_ns, by_hand: None };
            Self { charged: Some(charged), ..self }.polled(polled, polled)
        }

        /// For how many milliseconds the groups were polled in which the windows began.
        fn polled(self, waits: u64, sleep: u64) -> Self {
            Self { polled_ns: [Some(waits * MS), Some(sleep * MS)], ..self }
        }
    }

    /// In milliseconds; a stamp is no whole number of nanoseconds.
    fn ms(of: ByGroup) -> Listed {
        of.into_iter().flatten().map(|(group, ns)| (group, (ns + MS / 2) / MS)).collect()
    }

    /// The waits and the sleep that the end of windows shows.
    fn shown(windows: &mut Windows, now: Sample) -> (Listed, Option<Listed>) {
        let shown = windows.end(&now).expect("one can end");
        (ms(shown.waited), shown.slept.map(|slept| ms(slept.by_group)))
    }

    #[test]
    fn a_window_within_a_poll_loses_nothing() {
        let mut windows = Windows::begin(&asleep(0, 0, 0).in_poll(7, 0, 0));
        let now = asleep(20, 1, 15).in_poll(7, 20, 20);
        assert_eq!(shown(&mut windows, now), (vec![(7, 15)], Some(vec![(7, 4)])));
        // A limit has held back the sampler, too.
        let late = asleep(110, 11, 95).in_poll(7, 110, 110);
        assert_eq!(shown(&mut windows, late), (vec![(7, 80)], Some(vec![(7, 0)])));
    }

    #[test]
    fn time_outside_of_polls_is_not_claimed() {
        let least = |polled| {
            let mut windows = Windows::begin(&asleep(0, 0, 0).in_poll(7, 0, 0));
            shown(&mut windows, asleep(20, 3, 9).polled(polled, polled))
        };
        assert_eq!(least(15), (vec![(7, 4)], Some(vec![(7, 3)])));
        assert_eq!(least(11), (vec![(7, 0)], Some(vec![(7, 0)])));
    }

    #[test]
    fn disk_time_outside_of_polls_is_not_claimed() {
        let least = |polled| {
            let mut windows = Windows::begin(&asleep(0, 0, 0).in_poll(7, 0, 0));
            let mut now = asleep(40, 4, 0).polled(polled, polled);
            now.reading.block_ticks = 2;
            let slept = windows.end(&now).unwrap().slept.unwrap();
            (ms(slept.by_group), slept.block_ns.map(|ns| (ns + MS / 2) / MS))
        };
        assert_eq!(least(40), (vec![(7, 36)], [20, 0]));
        assert_eq!(least(25), (vec![(7, 21)], [5, 0]));
        assert_eq!(least(15), (vec![(7, 11)], [0, 0]));
    }

    #[test]
    fn the_time_of_a_sample_is_not_claimed() {
        let mut windows = Windows::begin(&Sample { took_ns: 3 * MS, ..asleep(0, 0, 0).in_poll(7, 0, 0) });
        let now = Sample { took_ns: MS, ..asleep(20, 1, 10).in_poll(7, 20, 20) };
        assert_eq!(shown(&mut windows, now), (vec![(7, 6)], Some(vec![(7, 5)])));
    }

    #[test]
    fn a_wait_that_lasts_is_no_sleep() {
        let mut windows = Windows::begin(&asleep(0, 0, 0).in_poll(7, 0, 0));
        // It ran for 15 ms, then waited for 12.
        let first = runnable(20, 15, 0).in_poll(7, 20, 20);
        assert_eq!(shown(&mut windows, first), (vec![(7, 0)], None));
        let second = asleep(40, 28, 12).in_poll(7, 40, 40);
        assert_eq!(shown(&mut windows, second), (vec![(7, 12)], Some(vec![(7, 0)])));
        let third = asleep(60, 39, 12).in_poll(7, 60, 60);
        assert_eq!(shown(&mut windows, third), (vec![(7, 0)], Some(vec![(7, 9)])));
    }

    #[test]
    fn sleep_before_a_wait_is_shown_after_it() {
        let mut windows = Windows::begin(&asleep(0, 0, 0).in_poll(7, 0, 0));
        // It slept for 8 ms, then waited for 14.
        let first = runnable(20, 2, 0).in_poll(7, 20, 20);
        assert_eq!(shown(&mut windows, first), (vec![(7, 0)], None));
        assert_eq!(windows.end(&runnable(22, 2, 0).in_poll(7, 22, 22)), None, "it waits all the time");
        let second = asleep(40, 18, 14).in_poll(7, 40, 40);
        assert_eq!(shown(&mut windows, second), (vec![(7, 14)], Some(vec![(7, 8)])));
    }

    #[test]
    fn an_earlier_wait_is_of_no_other_group() {
        let mut windows = Windows::begin(&asleep(0, 0, 0).in_poll(7, 0, 0));
        // It waits for 12 ms, of which 10 are in this window.
        let first = runnable(20, 10, 0).in_poll(7, 20, 20);
        assert_eq!(shown(&mut windows, first), (vec![(7, 0)], None));
        // Of 20 ms it was polled by another group for 16, and slept.
        let second = asleep(40, 12, 12).in_poll(8, 16, 16).polled(24, 24);
        let (waited, slept) = shown(&mut windows, second);
        assert_eq!(waited, [(7, 0), (8, 0)]);
        assert_eq!(slept, Some(vec![(7, 0), (8, 0)]), "of 16 ms 24 were elsewhere in the window of sleep");
    }

    #[test]
    fn a_wait_without_a_run_ends_no_window() {
        let mut windows = Windows::begin(&runnable(0, 5, 7).in_poll(7, 0, 0));
        assert_eq!(windows.end(&runnable(20, 5, 7).in_poll(7, 20, 20)), None);
        assert!(windows.end(&runnable(40, 6, 7).in_poll(7, 40, 40)).is_some(), "it has run");
        assert!(windows.end(&asleep(60, 6, 7).in_poll(7, 60, 60)).is_some(), "it has slept");
    }
}

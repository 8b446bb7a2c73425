//! Accounts stalled time of groups to its causes.
//!
//! The arithmetic of one thread is in `window`.
//!
//! # Memory
//!
//! Some 250 bytes for each thread in a poll, of at most [`MAX_THREADS`] threads; 400 for each
//! group.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_sys::process::kernel_view::counts_block_delay;
use dormouse_sys::thread::{self, ThreadBlock};
use dormouse_waits::{charged, polled_on};

use super::limit::LimitReader;
use super::sums::{GroupStalls, StallSums, sums_of_process};
use super::window::{Reading, Sample, Shown, Windows, Within};
use crate::core::tasks::Origin;
use crate::lookout::{Engine, own_cpu};

/// The time between two samples while polls stall, and while they do not.
const LOOKS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];

/// Samples become rarer when the last stall, and the last client's coming, are this long ago: so a
/// client that stays for seconds has all its samples.
const LASTING: Duration = Duration::from_secs(5);

/// The pause between samples is this many times the CPU time of the last one: at most a twentieth
/// of a processor goes to them.
const RARELY: u32 = 20;

/// The longest time between two samples, however many threads there are.
const LONGEST: Duration = Duration::from_millis(500);

/// A sample that took longer is tried again: the sampler was stopped meanwhile.
const LATE_NS: u64 = 1_000_000;

/// The attempts at a sample that is not late.
const TRIES: usize = 3;

/// Threads in polls that are sampled at once.
const MAX_THREADS: usize = 256;

/// A thread whose polls have ended is sampled as long as a wait of this length may still be
/// matched.
const NOTABLE_NS: u64 = 1_000_000;

/// Waits and throttled times are kept for this long, and for as long again.
const KEPT_NS: u64 = 125_000_000;

/// The numbers of holders, which no two have, also of two lookouts.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The samples of threads, as long as somebody holds them. The sums stay: in metrics they are
/// counters.
#[derive(Debug, Default)]
pub(crate) struct StallAccount {
    holders: Vec<u64>,
    sums: Arc<StallSums>,
    /// By the index of the thread's block.
    threads: HashMap<usize, Sampled>,
    limit: LimitReader,
    counts_block_delay: bool,
    /// When the last sample began.
    sampled: Option<Instant>,
    /// When polls stalled last, or a client came.
    stalled: Option<Instant>,
    next: Option<Instant>,
    /// No sample before, not even for an answer.
    rests_until: Option<Instant>,
}

/// A thread that is sampled.
#[derive(Debug, Clone, Copy)]
struct Sampled {
    start: u64,
    windows: Windows,
    unmatched: Unmatched,
    /// Whether the present sample has met it.
    is_live: bool,
}

/// Waits of a thread for a CPU, and what the kernel counts as throttled meanwhile. The kernel adds
/// the one when the thread runs again and the other when it lifts the limit, which may be in
/// different windows. So what has no counterpart is kept, as long as it may come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Unmatched {
    recent: Part,
    earlier: Part,
    /// For how long the recent part has been so.
    recent_ns: u64,
}

/// Times of one eighth of a second ([`KEPT_NS`]), or of one sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Part {
    /// By group: a window has two at most.
    waited: [(u32, u64); 2],
    throttled_ns: u64,
}

impl Unmatched {
    fn wait(&mut self, group: u32, ns: u64) {
        let waited = &mut self.recent.waited;
        let known = waited.iter().position(|(of, _)| *of == group);
        let at = known.unwrap_or_else(|| {
            let shorter = usize::from(waited[1].1 < waited[0].1);
            waited[shorter] = (group, 0);
            shorter
        });
        waited[at].1 = waited[at].1.saturating_add(ns);
    }

    fn is_notable(&self) -> bool {
        [self.earlier, self.recent].iter().any(|part| part.waited.iter().any(|(_, ns)| *ns >= NOTABLE_NS))
    }

    /// The process was throttled: the part of each group's waits for which that may be the reason.
    fn match_throttled(&mut self, ns: u64) -> [(u32, u64); 4] {
        let Self { recent, earlier, .. } = self;
        recent.throttled_ns = recent.throttled_ns.saturating_add(ns);
        let mut throttled_ns = recent.throttled_ns.saturating_add(earlier.throttled_ns);
        let mut matched = [(0, 0); 4];
        for ((group, waited_ns), matched) in
            earlier.waited.iter_mut().chain(&mut recent.waited).zip(&mut matched)
        {
            let ns = throttled_ns.min(*waited_ns);
            (throttled_ns, *waited_ns) = (throttled_ns - ns, *waited_ns - ns);
            *matched = (*group, ns);
        }
        recent.throttled_ns = recent.throttled_ns.min(throttled_ns);
        earlier.throttled_ns = earlier.throttled_ns.min(throttled_ns - recent.throttled_ns);
        matched
    }

    /// A sample ends that began this long after the one before.
    fn pass(&mut self, ns: u64) {
        self.recent_ns = self.recent_ns.saturating_add(ns);
        if self.recent_ns >= KEPT_NS {
            *self = Self { earlier: self.recent, ..Self::default() };
        }
    }
}

impl Sampled {
    /// Ends those of the windows that can end; `None`: neither can.
    fn end(&mut self, now: &Sample) -> Option<Shown> {
        let shown = self.windows.end(now)?;
        for (group, ns) in shown.waited.into_iter().flatten().filter(|(_, ns)| *ns > 0) {
            self.unmatched.wait(group, ns);
        }
        Some(shown)
    }
}

/// Samples a thread; `None` if it has ended, or its files cannot be read. `groups`: those whose
/// polls the windows of the thread need.
fn observe(block: &ThreadBlock, groups: [Option<u32>; 2]) -> Option<Sample> {
    let (index, start, tid) = (block.index(), block.start(), block.tid());
    let mut best: Option<Sample> = None;
    for _ in 0..TRIES {
        let began = stamp();
        let charged = charged(index, start, is_part);
        let polled_ns = groups.map(|group| polled_on(index, start, group?));
        let reading = Reading::of(tid)?;
        let took_ns = ticks_to_ns(stamp().saturating_sub(began));
        if best.is_none_or(|best| took_ns < best.took_ns) {
            let within = charged
                .map(|of| Within { asleep_in: reading.asleep_in(tid), is_by_hand: of.by_hand.is_some() });
            best = Some(Sample { reading, charged, polled_ns, took_ns, within });
        }
        if took_ns <= LATE_NS {
            break;
        }
    }
    best
}

fn is_part(task: u64) -> bool {
    Origin::of(task) == Origin::Part
}

impl Engine for StallAccount {
    fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    fn step(&mut self, now: Instant, _: &mut [Box<dyn Engine>]) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        if self.next.is_none_or(|next| next <= now) {
            self.sample_and_rest();
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
            self.sums = sums_of_process();
            self.limit = LimitReader::begin();
            self.counts_block_delay = counts_block_delay() == Some(true);
            self.sums.with(|sums| sums.values_mut().for_each(|of| self.settle(of)));
        }
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.holders.push(number);
        self.stalled = Some(Instant::now());
        self.next = None;
        Ok((number, Arc::clone(&self.sums)))
    }

    /// Samples for an answer, unless the last sample was so dear that it has to rest, or nobody
    /// holds the account.
    pub(crate) fn sample_for_answer(&mut self) {
        if !self.holders.is_empty() && self.rests_until.is_none_or(|until| until <= Instant::now()) {
            self.sample_and_rest();
        }
    }

    fn sample_and_rest(&mut self) {
        let began = own_cpu();
        self.sample();
        let rest = (own_cpu().saturating_sub(began) * RARELY).min(LONGEST);
        let now = Instant::now();
        let is_quiet = self.stalled.is_none_or(|at| now.saturating_duration_since(at) >= LASTING);
        self.rests_until = Some(now + rest);
        self.next = Some(now + rest.max(LOOKS[usize::from(is_quiet)]));
    }

    /// Samples each thread that is in a poll, or was at the last sample.
    fn sample(&mut self) {
        self.sums.is_late.store(false, Ordering::Relaxed);
        let now = Instant::now();
        let passed = self.sampled.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        self.threads.values_mut().for_each(|of| of.is_live = false);
        for block in thread::live() {
            self.sample_thread(block);
        }
        self.threads.retain(|_, of| of.is_live);
        // The limit is read even if no thread is sampled, so that what is read is recent.
        if let Some(throttled_ns) = self.limit.since(now) {
            self.add_throttled(throttled_ns);
        }
        let passed_ns = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        self.threads.values_mut().for_each(|of| of.unmatched.pass(passed_ns));
    }

    /// The process was throttled for this long since the last time.
    fn add_throttled(&mut self, throttled_ns: u64) {
        self.sums.with(|sums| {
            for Sampled { unmatched, .. } in self.threads.values_mut() {
                for (group, ns) in unmatched.match_throttled(throttled_ns) {
                    if let Some(of) = sums.get_mut(&group) {
                        *of.throttled_ns.get_or_insert(0) += ns;
                    }
                }
            }
        });
    }

    /// Samples a thread, and ends those of its windows that can end.
    fn sample_thread(&mut self, block: &ThreadBlock) {
        let (index, start) = (block.index(), block.start());
        if self.threads.get(&index).is_some_and(|of| of.start != start) {
            // That one has ended.
            self.threads.remove(&index);
        }
        let is_charged = charged(index, start, is_part).is_some();
        let is_room = self.threads.len() < MAX_THREADS && self.threads.try_reserve(1).is_ok();
        let shown = match self.threads.entry(index) {
            Entry::Vacant(place) => {
                if is_charged
                    && is_room
                    && let Some(sample) = observe(block, [None; 2])
                {
                    let windows = Windows::begin(&sample);
                    place.insert(Sampled { start, windows, unmatched: Unmatched::default(), is_live: true });
                }
                return;
            }
            Entry::Occupied(mut known) => {
                let groups = known.get().windows.groups();
                if !is_charged && groups == [None; 2] && !known.get().unmatched.is_notable() {
                    known.remove();
                    return;
                }
                let Some(sample) = observe(block, groups) else {
                    known.remove();
                    return;
                };
                known.get_mut().is_live = true;
                known.get_mut().end(&sample)
            }
        };
        if shown.is_none_or(|shown| shown.is_stalled) {
            self.stalled = Some(Instant::now());
        }
        if let Some(shown) = shown {
            self.add(&shown);
        }
    }

    /// Adds what windows have shown to the sums of groups.
    fn add(&self, shown: &Shown) {
        self.sums.with(|sums| {
            for (group, ns) in shown.waited.into_iter().flatten().filter(|(_, ns)| *ns > 0) {
                if let Some(of) = self.sum_of(sums, group) {
                    of.cpu_wait_ns += ns;
                }
            }
            let Some(slept) = shown.slept else { return };
            for (by_group, block_ns) in slept.by_group.into_iter().zip(slept.block_ns) {
                if let Some((group, ns)) = by_group.filter(|(_, ns)| *ns > 0)
                    && let Some(of) = self.sum_of(sums, group)
                {
                    of.add_sleep(ns, block_ns, slept.within);
                }
            }
            let faults = slept.major_faults.filter(|(_, faults)| *faults > 0);
            if let Some((group, faults)) = faults
                && let Some(of) = self.sum_of(sums, group)
            {
                of.major_faults += faults;
            }
        });
    }

    /// The sums of a group; `None`: there is no memory for them.
    fn sum_of<'a>(&self, sums: &'a mut HashMap<u32, GroupStalls>, group: u32) -> Option<&'a mut GroupStalls> {
        sums.try_reserve(1).ok()?;
        Some(sums.entry(group).or_insert_with(|| {
            let mut of = GroupStalls::default();
            self.settle(&mut of);
            of
        }))
    }

    /// A figure that cannot be seen now has no sum.
    fn settle(&self, of: &mut GroupStalls) {
        let known = |is_seen: bool, ns: Option<u64>| is_seen.then_some(ns.unwrap_or(0));
        of.throttled_ns = known(self.limit.is_seen(), of.throttled_ns);
        of.block_io_ns = known(self.counts_block_delay, of.block_io_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The time that is matched for group 7.
    fn matched(unmatched: &mut Unmatched, throttled_ms: u64) -> u64 {
        let matched = unmatched.match_throttled(throttled_ms * MS);
        unmatched.pass(20 * MS);
        matched.into_iter().filter(|(group, _)| *group == 7).map(|(_, ns)| ns / MS).sum()
    }

    #[test]
    fn waits_match_what_was_throttled_meanwhile() {
        let mut unmatched = Unmatched::default();
        unmatched.wait(7, 80 * MS);
        assert_eq!(matched(&mut unmatched, 0), 0);
        // The kernel counts it a window later, and more on other processors.
        assert_eq!(matched(&mut unmatched, 120), 80);
        unmatched.wait(7, 90 * MS);
        assert_eq!(matched(&mut unmatched, 0), 40);
        assert_eq!(matched(&mut unmatched, 50), 50);
        // Samples may be far apart.
        unmatched.wait(7, 2_000 * MS);
        unmatched.pass(3_000 * MS);
        assert_eq!(matched(&mut unmatched, 1_800), 1_800);
    }

    #[test]
    fn what_is_old_is_not_matched() {
        let mut unmatched = Unmatched::default();
        unmatched.wait(7, 20 * MS);
        assert_eq!(matched(&mut unmatched, 400), 20);
        // The next sample comes late: the rest may be the reason of a wait that it shows.
        unmatched.wait(7, 30 * MS);
        assert_eq!(matched(&mut unmatched, 0), 30);
        // A neighbour, a quarter of a second later.
        (0..13).for_each(|_| unmatched.pass(20 * MS));
        unmatched.wait(7, 50 * MS);
        assert_eq!(matched(&mut unmatched, 0), 0);
        // Short waits, of whichever group, make it no younger.
        for _ in 0..13 {
            unmatched.wait(8, 1_000);
            unmatched.pass(20 * MS);
        }
        assert!(!unmatched.is_notable());
        assert_eq!(matched(&mut unmatched, 50), 0);
    }

    #[test]
    fn sums_go_on_with_the_next_holder() {
        let mut account = StallAccount::default();
        let (number, sums) = account.begin().unwrap();
        let stalled = GroupStalls { cpu_wait_ns: 5 * MS, asleep_ns: 7 * MS, ..GroupStalls::default() };
        sums.with(|sums| sums.insert(7, stalled.clone()));
        account.end(number);
        assert!(account.is_empty());
        // Its thread has ended, and there is another.
        let mut account = StallAccount::default();
        let (_, sums) = account.begin().unwrap();
        let GroupStalls { cpu_wait_ns, asleep_ns, .. } =
            sums.with(|sums| sums.get(&7).cloned()).unwrap_or_default();
        assert_eq!((cpu_wait_ns, asleep_ns), (stalled.cpu_wait_ns, stalled.asleep_ns));
    }

    #[test]
    fn no_group_was_throttled_longer_than_it_waited() {
        let mut unmatched = Unmatched::default();
        unmatched.wait(7, 80 * MS);
        unmatched.wait(8, 3 * MS);
        assert_eq!(unmatched.match_throttled(90 * MS)[2..], [(7, 80 * MS), (8, 3 * MS)]);
        for (group, ms) in [(7, 40), (8, 60), (9, 5)] {
            unmatched.wait(group, ms * MS);
        }
        assert_eq!(unmatched.match_throttled(93 * MS)[2..], [(9, 5 * MS), (8, 60 * MS)]);
    }
}

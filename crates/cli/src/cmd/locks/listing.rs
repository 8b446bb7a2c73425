//! The difference of two reports on locks: one row for a line.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use dormouse_protocol::{
    HistogramRow, LockBlameRow, LockLineRow, LockLongestRow, LockPlaceRow, LockReport, LockUserRow,
    WireHeldBy,
};
use dormouse_statistics::buckets::{self, Histogram};
use serde::Serialize;

use super::deadlocks::Deadlock;
use super::futexes::FutexWaits;
use crate::waiting::queues::TaskQueue;

/// A line that took locks.
#[derive(Debug)]
pub(super) struct LockLine {
    pub(super) place: LockPlaceRow,
    pub(super) acquisitions: u64,
    pub(super) given_up: u64,
    pub(super) waits: Histogram,
    pub(super) holds: Histogram,
    /// The groups that waited; `None`: no group was current. In nanoseconds, the longest first.
    pub(super) by: Vec<(Option<String>, u64)>,
    /// The holders of the lock, likewise.
    pub(super) held_by: Vec<(Holder, u64)>,
    /// The longest wait of this time, if it is known who held the lock.
    pub(super) longest: Option<LockLongestRow>,
}

/// A hold that goes on.
#[derive(Debug, Clone, Copy, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct Hold<'a> {
    #[serde(flatten)]
    pub(super) user: &'a LockUserRow,
    /// For how long at least, if the beginning was not timed, and the hold was there at the
    /// beginning of this document's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at_least_ns: Option<u64>,
}

/// A holder: a word, and a group if there is one.
pub(super) type Holder = (WireHeldBy, Option<String>);

/// See the module.
#[derive(Debug)]
pub(super) struct LockListing<'a> {
    pub(super) length: Duration,
    pub(super) lines: Vec<LockLine>,
    pub(super) omitted: u64,
    pub(super) holders: Vec<Hold<'a>>,
    pub(super) waiters: &'a [LockUserRow],
    /// The number of waits that the service left out.
    pub(super) waiters_omitted: u64,
    pub(super) deadlocks: Vec<Deadlock<'a>>,
    /// The queues of others, and the number of tasks that wait at unknown places; `None`: the
    /// service records no places.
    pub(super) queues: Option<(Vec<TaskQueue>, u64)>,
    /// The locks of others; `None`: the service reports no long polls.
    pub(super) futexes: Option<Vec<FutexWaits>>,
    pub(super) lost_holders: u64,
    pub(super) lost_lines: u64,
    pub(super) lost_waits: u64,
}

impl<'a> LockListing<'a> {
    pub(super) fn new(before: &'a LockReport, now: &'a LockReport, length: Duration) -> Self {
        let key = |row: &LockLineRow| (row.place.clone(), row.group.clone());
        let earlier: HashMap<_, &LockLineRow> = before.lines.iter().map(|row| (key(row), row)).collect();
        let mut lines: BTreeMap<LockPlaceRow, LockLine> = BTreeMap::new();
        let mut omitted = now.omitted;
        // A row that was left out had waited for no longer than those that came.
        let least = before.lines.iter().map(|row| row.waits.sum_ns.unwrap_or(0)).min().unwrap_or(0);
        for row in &now.lines {
            let mut none = LockLineRow::default();
            let before = match earlier.get(&key(row)) {
                Some(before) => before,
                None if before.omitted == 0 => &none,
                // It has waited since then, and more is not known.
                None if row.waits.sum_ns.unwrap_or(0) > least => {
                    let waits = Histogram::from(&row.waits).count();
                    none.acquisitions = row.acquisitions.saturating_sub(waits);
                    none.holds = row.holds.clone();
                    &none
                }
                None => {
                    omitted += 1;
                    continue;
                }
            };
            let line = lines.entry(row.place.clone()).or_insert_with(|| LockLine::new(&row.place));
            line.add(row, before);
        }
        let mut lines: Vec<LockLine> = lines.into_values().filter(LockLine::is_used).collect();
        for line in &mut lines {
            line.by.sort_by_key(|(_, ns)| Reverse(*ns));
            line.held_by.sort_by_key(|(_, ns)| Reverse(*ns));
            // A group's longest wait of this time may be shorter than an earlier one of the group:
            // then its holder is not known, and its length is that of its bucket.
            let place = |ns| buckets::place(ns).div_ceil(1 << (buckets::SCALE - line.waits.scale));
            let longest = place(line.waits.max_ns);
            line.longest = line.longest.take().filter(|known| place(known.blame.ns) >= longest);
        }
        lines.sort_by_key(|line| Reverse((line.waits.sum_ns, line.acquisitions)));
        let earlier: HashSet<u64> = before.holders.iter().map(|user| user.number).collect();
        let hold = |user: &'a LockUserRow| {
            let is_known = user.for_ns.is_none() && earlier.contains(&user.number);
            Hold { user, at_least_ns: is_known.then(|| in_ns(length)) }
        };
        Self {
            length,
            lines,
            omitted,
            holders: now.holders.iter().map(hold).collect(),
            waiters: &now.waiters,
            waiters_omitted: now.waiters_omitted,
            deadlocks: now.deadlocks(before).map(Deadlock::new).collect(),
            queues: None,
            futexes: None,
            lost_holders: now.lost_holders.saturating_sub(before.lost_holders),
            lost_lines: now.lost_lines.saturating_sub(before.lost_lines),
            lost_waits: now.lost_waits.saturating_sub(before.lost_waits),
        }
    }

    pub(super) fn document<'b>(&'b self, (pid, process): (u32, &'b str)) -> LocksDocument<'b> {
        LocksDocument {
            pid,
            process,
            for_ns: in_ns(self.length),
            locks: self.lines.iter().map(LockLine::document).collect(),
            omitted: self.omitted,
            holders: &self.holders,
            waiters: self.waiters,
            waiters_omitted: self.waiters_omitted,
            deadlocks: &self.deadlocks,
            queues: self.queues.as_ref().map(|(queues, _)| &queues[..]),
            futexes: self.futexes.as_deref(),
            unplaced: self.queues.as_ref().map(|(_, unplaced)| *unplaced),
            lost_holders: self.lost_holders,
            lost_lines: self.lost_lines,
            lost_waits: self.lost_waits,
        }
    }
}

impl LockLine {
    fn new(place: &LockPlaceRow) -> Self {
        Self {
            place: place.clone(),
            acquisitions: 0,
            given_up: 0,
            waits: Histogram::default(),
            holds: Histogram::default(),
            by: Vec::new(),
            held_by: Vec::new(),
            longest: None,
        }
    }

    fn is_used(&self) -> bool {
        self.acquisitions > 0 || self.waits.count() > 0
    }

    /// Adds what a group has taken since an earlier report.
    fn add(&mut self, row: &LockLineRow, before: &LockLineRow) {
        let since =
            |now: &HistogramRow, before: &HistogramRow| Histogram::from(now).since(&Histogram::from(before));
        let waits = since(&row.waits, &before.waits);
        self.acquisitions += row.acquisitions.saturating_sub(before.acquisitions);
        self.given_up += row.given_up.saturating_sub(before.given_up);
        if waits.sum_ns > 0 {
            add_to(&mut self.by, row.group.clone(), waits.sum_ns);
        }
        let is_longer = |of: &&LockLongestRow| {
            before.longest.as_ref().is_none_or(|before| of.blame.ns > before.blame.ns)
                && self.longest.as_ref().is_none_or(|known| of.blame.ns > known.blame.ns)
        };
        if let Some(longest) = row.longest.as_ref().filter(is_longer) {
            self.longest = Some(longest.clone());
        }
        for now in &row.held_by {
            let is_its = |of: &&LockBlameRow| (of.by, &of.group) == (now.by, &now.group);
            let before = before.held_by.iter().find(is_its).map_or(0, |of| of.ns);
            if now.ns > before {
                add_to(&mut self.held_by, (now.by, now.group.clone()), now.ns - before);
            }
        }
        add_histogram(&mut self.waits, &waits);
        add_histogram(&mut self.holds, &since(&row.holds, &before.holds));
    }

    fn document(&self) -> LockDocument<'_> {
        let by = self.by.iter().map(|(group, ns)| WaitedDocument { group: group.as_deref(), wait_ns: *ns });
        let held_by = self.held_by.iter().map(|((by, group), ns)| HeldDocument {
            by: *by,
            group: group.as_deref(),
            wait_ns: *ns,
        });
        LockDocument {
            place: &self.place,
            acquisitions: self.acquisitions,
            waits: self.waits.count(),
            given_up: self.given_up,
            wait_ns: self.waits.sum_ns,
            wait_p50_ns: self.waits.quantile_ns(0.5),
            wait_p99_ns: self.waits.quantile_ns(0.99),
            wait_max_ns: (self.waits.count() > 0).then_some(self.waits.max_ns),
            timed_holds: self.holds.count(),
            hold_p50_ns: self.holds.quantile_ns(0.5),
            hold_p99_ns: self.holds.quantile_ns(0.99),
            waited_by: by.collect(),
            held_by: held_by.collect(),
            longest: self.longest.as_ref(),
        }
    }
}

fn in_ns(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds to the sum of a key.
fn add_to<K: PartialEq>(sums: &mut Vec<(K, u64)>, key: K, ns: u64) {
    match sums.iter_mut().find(|(of, _)| *of == key) {
        Some((_, sum)) => *sum = sum.saturating_add(ns),
        None => sums.push((key, ns)),
    }
}

fn add_histogram(to: &mut Histogram, more: &Histogram) {
    for (sum, count) in to.buckets.iter_mut().zip(&more.buckets) {
        *sum = sum.saturating_add(*count);
    }
    to.sum_ns = to.sum_ns.saturating_add(more.sum_ns);
    to.max_ns = to.max_ns.max(more.max_ns);
    to.scale = to.scale.min(more.scale);
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct LocksDocument<'a> {
    pid: u32,
    process: &'a str,
    /// For how long locks were noted for this document, in nanoseconds.
    for_ns: u64,
    /// The lines that took locks in this time, those with the longest waits first.
    locks: Vec<LockDocument<'a>>,
    /// The number of lines and groups that are left out: the service had no room for them in its
    /// answer, or in the one at the beginning, so that the difference is not known.
    omitted: u64,
    /// The holders now, those first for which others wait.
    holders: &'a [Hold<'a>],
    /// The waits that go on, the longest first; some hundred at most.
    waiters: &'a [LockUserRow],
    /// The number of waits that go on and are left out.
    waiters_omitted: u64,
    /// Threads and tasks that waited for one another at the beginning, and do so at the end. Those
    /// with `unsure` may be none.
    deadlocks: &'a [Deadlock<'a>],
    /// The queues in which tasks wait now, other than those of `dormouse::sync`; null if the
    /// service records no places of tasks.
    queues: Option<&'a [TaskQueue]>,
    /// The locks, other than those of `dormouse::sync`, for which polls have waited for 20 ms or
    /// longer, and do so now; null if the service reports no long polls.
    futexes: Option<&'a [FutexWaits]>,
    /// The number of tasks that may wait in a queue, or elsewhere: their wait began before places
    /// were recorded. Null as `queues`.
    unplaced: Option<u64>,
    /// How often there was no room for a lock's holder.
    lost_holders: u64,
    /// How often there was no room to count an acquisition.
    lost_lines: u64,
    /// How often there was no room for a wait, which then is not among `waiters`.
    lost_waits: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LockDocument<'a> {
    place: &'a LockPlaceRow,
    acquisitions: u64,
    /// Waits for locks that were not free, those that were given up among them.
    waits: u64,
    given_up: u64,
    wait_ns: u64,
    /// Null if there was no wait.
    wait_p50_ns: Option<u64>,
    wait_p99_ns: Option<u64>,
    wait_max_ns: Option<u64>,
    /// The number of holds that were timed.
    timed_holds: u64,
    hold_p50_ns: Option<u64>,
    hold_p99_ns: Option<u64>,
    /// The waits by the group that waited.
    waited_by: Vec<WaitedDocument<'a>>,
    /// The waits by the holder of the lock when they began.
    held_by: Vec<HeldDocument<'a>>,
    /// The longest wait with its holder; null if there was none, or if it is not known because an
    /// earlier one took longer.
    longest: Option<&'a LockLongestRow>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct WaitedDocument<'a> {
    /// Null: no group was current.
    group: Option<&'a str>,
    wait_ns: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct HeldDocument<'a> {
    /// `group`; `before` (it was taken before locks were noted), `unknown`, or `others` (groups
    /// beyond the first eight of a line).
    by: WireHeldBy,
    /// Null: no group was current, or it is none.
    group: Option<&'a str>,
    wait_ns: u64,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn histogram(durations: &[u64]) -> HistogramRow {
        let mut of = Histogram::default();
        for ns in durations {
            of.buckets[dormouse_statistics::buckets::place(*ns)] += 1;
            of.sum_ns += ns;
            of.max_ns = of.max_ns.max(*ns);
        }
        HistogramRow::from(&of)
    }

    pub(in crate::cmd::locks) fn place(file: &str, line: u32, kind: &str, name: &str) -> LockPlaceRow {
        LockPlaceRow {
            file: format!("src/{file}"),
            line,
            column: 9,
            kind: kind.into(),
            awaited: false,
            name: name.into(),
        }
    }

    pub(in crate::cmd::locks) fn blame(by: WireHeldBy, group: &str, ns: u64) -> LockBlameRow {
        LockBlameRow { by, group: Some(group.to_owned()).filter(|it| !it.is_empty()), ns }
    }

    /// A group's row of a line.
    pub(in crate::cmd::locks) fn row(
        place: LockPlaceRow,
        group: &str,
        acquisitions: u64,
        waits: &[u64],
        by: &str,
    ) -> LockLineRow {
        let longest = waits.iter().max().map(|ns| LockLongestRow {
            blame: blame(WireHeldBy::Group, by, *ns),
            place: Some(self::place("blend.rs", 88, "mutex", "")),
        });
        LockLineRow {
            place,
            group: Some(group.to_owned()).filter(|it| !it.is_empty()),
            acquisitions,
            waits: histogram(waits),
            held_by: vec![blame(WireHeldBy::Group, by, waits.iter().sum())],
            longest,
            ..LockLineRow::default()
        }
    }

    #[test]
    fn a_line_adds_up_its_groups() {
        let index = || place("cache.rs", 41, "mutex", "shop::Index");
        let before = LockReport {
            lines: vec![row(index(), "GET /menu", 5, &[1_000_000], "GET /blend")],
            ..LockReport::default()
        };
        let now = LockReport {
            lines: vec![
                row(index(), "GET /menu", 7, &[1_000_000, 2_000_000], "GET /blend"),
                row(index(), "POST /orders", 3, &[7_000_000], "GET /menu"),
                row(place("log.rs", 3, "write", ""), "", 0, &[], ""),
            ],
            ..LockReport::default()
        };
        let listing = LockListing::new(&before, &now, Duration::from_secs(1));
        let [line] = &listing.lines[..] else { panic!("a line without locks is left out") };
        assert_eq!((line.acquisitions, line.waits.count(), line.waits.sum_ns), (5, 2, 9_000_000));
        let group = |name: &str| Some(name.to_owned());
        assert_eq!(line.by, [(group("POST /orders"), 7_000_000), (group("GET /menu"), 2_000_000)]);
        let held: Vec<_> = line.held_by.iter().map(|((_, group), ns)| (group.as_deref(), *ns)).collect();
        assert_eq!(held, [(Some("GET /menu"), 7_000_000), (Some("GET /blend"), 2_000_000)]);
        assert_eq!(line.longest.as_ref().map(|it| it.blame.ns), Some(7_000_000));
        assert!(LockListing::new(&now, &now, Duration::from_secs(1)).lines.is_empty());
    }

    #[test]
    fn a_shorter_wait_is_not_the_longest() {
        let of =
            |group, waits: &[u64]| row(place("cache.rs", 41, "mutex", ""), group, 1, waits, "GET /blend");
        let report = |lines| LockReport { lines, ..LockReport::default() };
        let before = report(vec![of("A", &[300_000_000])]);
        // A has waited 200 ms since, and only B's holder is known.
        let now = report(vec![of("A", &[300_000_000, 200_000_000]), of("B", &[5_000_000])]);
        let listing = LockListing::new(&before, &now, Duration::from_secs(1));
        assert_eq!(listing.lines[0].longest, None);
        assert!(listing.lines[0].waits.max_ns >= 200_000_000);
    }

    #[test]
    fn a_history_without_a_beginning_is_left_out() {
        let of =
            |group, waits: &[u64]| row(place("cache.rs", 41, "mutex", ""), group, 1, waits, "GET /blend");
        let report = |omitted, lines| LockReport { lines, omitted, ..LockReport::default() };
        // B had waited for less than A has by then, and C may have waited for all of that before.
        let lines = vec![of("A", &[1_000, 2_000]), of("B", &[5_000_000]), of("C", &[900])];
        for (omitted, sum_ns, left) in [(0, 5_002_900, 3), (7, 5_002_000, 4)] {
            let (before, now) = (report(omitted, vec![of("A", &[1_000])]), report(3, lines.clone()));
            let listing = LockListing::new(&before, &now, Duration::from_secs(1));
            assert_eq!((listing.lines[0].waits.sum_ns, listing.omitted), (sum_ns, left));
        }
    }
}

//! The numbers of living tasks of each spawn site, read from time to time, and which of them
//! keep growing.
//!
//! There are four series of readings: one each second, each ten seconds, each two minutes and each
//! twenty. Each keeps its last twelve, so a leak that begins late is found by the series that fits
//! its speed, and the memory is bounded. Readings of seconds count only while there is no longer
//! series: in seconds a burst of work may look like growth.
//!
//! The counts contain what has changed while times were taken. So all readings are forgotten when
//! there was a gap.

use std::collections::VecDeque;
use std::panic::Location;
use std::time::Duration;

use dormouse_protocol::{SiteGrowth, SpawnSiteRow, SpawnSites};
use dormouse_sys::clock;
use dormouse_waits::{growth, spawn_sites, taken_for};

const SECOND_NS: u64 = 1_000_000_000;
/// The time between two readings of each series.
const EVERY_NS: [u64; 4] = [SECOND_NS, 10 * SECOND_NS, 120 * SECOND_NS, 1200 * SECOND_NS];
/// The agent's readings are a little more or less than a second apart.
const SLACK_NS: u64 = SECOND_NS / 4;
/// How many readings a series keeps, and how many it needs.
const KEPT: usize = 12;
const NEEDED: usize = 9;

/// Readings of all sites.
pub(super) struct SpawnReadings {
    /// When the first reading was made, if times have been taken since then.
    first_ns: Option<u64>,
    series: [VecDeque<SpawnReading>; EVERY_NS.len()],
}

struct SpawnReading {
    at_ns: u64,
    /// The changes of all sites, by the numbers of the sites less one.
    changes: Vec<i64>,
}

impl SpawnReadings {
    pub(super) const fn new() -> Self {
        Self { first_ns: None, series: [const { VecDeque::new() }; EVERY_NS.len()] }
    }

    /// Makes the readings that are due.
    pub(super) fn read(&mut self) {
        self.read_at(clock::monotonic_ns(), taken_for(), || {
            let mut changes = Vec::new();
            for of in spawn_sites() {
                let cell = of.site.number() as usize - 1;
                changes.resize(cell, 0);
                changes.push(of.change);
            }
            changes
        });
    }

    fn read_at(&mut self, now_ns: u64, taken: Option<Duration>, changes: impl Fn() -> Vec<i64>) {
        let taken_ns = taken.map(|taken| u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX));
        let is_same_run = |first: &u64| taken_ns.is_some_and(|taken| now_ns.saturating_sub(*first) <= taken);
        self.first_ns = self.first_ns.filter(is_same_run);
        if self.first_ns.is_none() {
            self.series.iter_mut().for_each(VecDeque::clear);
            self.first_ns = taken_ns.map(|_| now_ns);
        }
        if taken_ns.is_none() {
            return;
        }
        for (series, every_ns) in self.series.iter_mut().zip(EVERY_NS) {
            let due_ns = series.back().map_or(0, |last| last.at_ns + every_ns - SLACK_NS);
            if now_ns >= due_ns {
                if series.len() == KEPT {
                    series.pop_front();
                }
                series.push_back(SpawnReading { at_ns: now_ns, changes: changes() });
            }
        }
    }

    /// The series that count, the longest first.
    fn judged(&self) -> impl Iterator<Item = &VecDeque<SpawnReading>> {
        let [seconds, longer @ ..] = &self.series;
        let has_enough = |series: &&VecDeque<SpawnReading>| series.len() >= NEEDED;
        let mut longer = longer.iter().rev().filter(has_enough).peekable();
        let seconds = if longer.peek().is_none() { Some(seconds).filter(has_enough) } else { None };
        longer.chain(seconds)
    }

    fn growth(&self, cell: usize) -> Option<SiteGrowth> {
        self.judged().find_map(|series| {
            // A reading from before the site's first task has nothing of it.
            let of = |reading: &SpawnReading| reading.changes.get(cell).copied().unwrap_or(0);
            let tasks = growth(&series.iter().map(of).collect::<Vec<_>>())?;
            Some(SiteGrowth { tasks, ns: length_ns(series) })
        })
    }

    /// All sites that have spawned, and which of them keep growing.
    pub(super) fn sites(&self) -> SpawnSites {
        let row = |(site, at): (u32, &Location<'_>)| SpawnSiteRow {
            site,
            file: at.file().to_owned(),
            line: at.line(),
            column: at.column(),
            growth: self.growth(site as usize - 1),
        };
        SpawnSites {
            watched_ns: self.first_ns.map(|first| clock::monotonic_ns().saturating_sub(first)),
            judged_ns: self.judged().next().map(length_ns),
            sites: spawn_sites().map(|of| row((of.site.number(), of.location))).collect(),
        }
    }
}

fn length_ns(series: &VecDeque<SpawnReading>) -> u64 {
    let ends = series.front().zip(series.back());
    ends.map_or(0, |(first, last)| last.at_ns - first.at_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads each second until `seconds` a leak of a task a second that begins at `from`, beside
    /// a site that stays as it is.
    fn readings(seconds: u64, from: u64) -> SpawnReadings {
        let mut readings = SpawnReadings::new();
        for second in 0..=seconds {
            let leaked = second.saturating_sub(from) as i64;
            let taken = Duration::from_secs(second + 1);
            readings.read_at((second + 1) * SECOND_NS, Some(taken), || vec![3, leaked]);
        }
        readings
    }

    #[test]
    fn a_leak_is_found_early_and_late() {
        assert_eq!(readings(7, 0).growth(1), None, "eight readings");
        assert_eq!(readings(8, 0).growth(1), Some(SiteGrowth { tasks: 8, ns: 8 * SECOND_NS }));
        assert_eq!(readings(100, 0).growth(1), Some(SiteGrowth { tasks: 100, ns: 100 * SECOND_NS }));
        // After hours in which nothing grew, within two minutes.
        let late = readings(10_120, 10_000);
        assert_eq!(late.growth(1).map(|growth| growth.ns), Some(110 * SECOND_NS));
        assert_eq!(late.growth(0), None);
        assert!(late.series.iter().all(|series| series.len() <= KEPT));
    }

    #[test]
    fn seconds_do_not_count_beside_minutes() {
        assert!(readings(12, 0).growth(1).is_some());
        assert_eq!(readings(100, 89).growth(1), None, "a burst of the last seconds");
    }

    #[test]
    fn a_gap_begins_anew() {
        let mut readings = readings(20, 0);
        readings.read_at(40 * SECOND_NS, None, Vec::new);
        assert!(readings.first_ns.is_none() && readings.judged().next().is_none());
        readings.read_at(50 * SECOND_NS, Some(Duration::from_secs(2)), Vec::new);
        readings.read_at(60 * SECOND_NS, Some(Duration::from_secs(5)), Vec::new);
        assert_eq!((readings.first_ns, readings.series[0].len()), (Some(60 * SECOND_NS), 1), "another run");
    }
}

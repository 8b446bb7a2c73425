//! Short answers that fit into what their client reads.
//!
//! A client of another user's service refuses an answer beyond a bound, and has no figures then. So
//! the service leaves out what is missed least, one part after the other:
//! first what only makes figures finer, then figures of which all groups have the sums, then rows.
//! All counters of groups stay.

use dormouse_statistics::buckets::{EXPORTED_SCALE, SCALE};
use serde::{Deserialize, Serialize};

use super::Stat;
use super::columns::{HistogramColumns, WaitsColumns};
use crate::json::length;
use crate::verbs::waits::HistogramRow;

/// The parts of an answer that are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LeftOut {
    /// The narrow buckets: histograms have those of metrics.
    pub narrow_buckets: bool,
    /// The number of exemplars.
    pub exemplars: u64,
    /// The histograms of polls, delays and awaits.
    pub histograms: bool,
    /// The number of rows of locks.
    pub locks: u64,
    /// The number of rows of calls.
    pub calls: u64,
}

impl Stat {
    /// Leaves out parts of a [short](Stat::shorten) answer until it is at most that long, in bytes,
    /// or until there is nothing more that can be left out.
    ///
    /// # Cost
    ///
    /// Writes the answer without keeping it: once, and again after each part that it has left out.
    pub fn fit(&mut self, most: u64) {
        const PARTS: [fn(&mut Stat, &mut LeftOut); 5] = [narrow_buckets, exemplars, histograms, locks, calls];
        let mut left_out = LeftOut::default();
        for leave_out in PARTS {
            if length(self) <= most {
                return;
            }
            leave_out(self, &mut left_out);
            self.left_out = Some(left_out).filter(|of| *of != LeftOut::default());
        }
    }

    /// Removes from a difference everything that this answer, or the one before, has left out:
    /// there would be a total since the start.
    pub(super) fn forget(&mut self, before: Option<LeftOut>) {
        let Some(left_out) = self.left_out.map_or(before, |now| Some(now.and(before.unwrap_or_default())))
        else {
            return;
        };
        for waits in self.groups.iter_mut().filter_map(|group| group.waits.as_mut()) {
            if left_out.exemplars > 0 {
                waits.requests.exemplars = Vec::new();
            }
            if left_out.histograms {
                for of in [&mut waits.polls, &mut waits.delays, &mut waits.awaits] {
                    *of = HistogramRow::default();
                }
            }
        }
        if left_out.locks > 0 {
            self.locks = Vec::new();
        }
        if left_out.calls > 0 {
            self.calls = Vec::new();
        }
        self.left_out = Some(left_out);
    }
}

impl LeftOut {
    /// The parts that one of the two, or both, leave out.
    fn and(self, other: Self) -> Self {
        Self {
            narrow_buckets: self.narrow_buckets || other.narrow_buckets,
            exemplars: self.exemplars.max(other.exemplars),
            histograms: self.histograms || other.histograms,
            locks: self.locks.max(other.locks),
            calls: self.calls.max(other.calls),
        }
    }

    /// One clause about what is left out.
    ///
    /// ```
    /// use dormouse_protocol::LeftOut;
    ///
    /// let left_out = LeftOut { narrow_buckets: true, calls: 12, ..LeftOut::default() };
    /// let notice = left_out.notice();
    /// assert!(notice.ends_with(", and leaves out: narrow buckets, 12 rows of calls"));
    /// ```
    pub fn notice(&self) -> String {
        let Self { narrow_buckets, exemplars, histograms, locks, calls } = *self;
        let some = |n: u64, what: &str| (n > 0).then(|| format!("{n} {what}"));
        let parts = [
            narrow_buckets.then(|| "narrow buckets".to_owned()),
            some(exemplars, "exemplars"),
            histograms.then(|| "the distributions of polls, delays and awaits".to_owned()),
            some(locks, "rows of locks"),
            some(calls, "rows of calls"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        format!("its answer would be too long, and leaves out: {}", parts.join(", "))
    }
}

fn narrow_buckets(stat: &mut Stat, left_out: &mut LeftOut) {
    if let Some(waits) = waits_of(stat) {
        let wider = waits.scale.saturating_sub(EXPORTED_SCALE).clamp(0, SCALE) as u32;
        let first = waits.first_bucket;
        for histogram in histograms_of(waits).filter(|_| wider > 0) {
            histogram.widen(first, wider);
            left_out.narrow_buckets = true;
        }
        waits.scale -= wider as i32;
        waits.first_bucket >>= wider;
    }
    for call in stat.calls.iter_mut().filter(|call| call.times.scale > EXPORTED_SCALE) {
        call.times = std::mem::take(&mut call.times).at_scale(EXPORTED_SCALE);
        left_out.narrow_buckets = true;
    }
}

fn exemplars(stat: &mut Stat, left_out: &mut LeftOut) {
    let exemplars = waits_of(stat).and_then(|waits| waits.exemplars.take());
    left_out.exemplars = exemplars.map_or(0, |of| of.task.len() as u64);
}

fn histograms(stat: &mut Stat, left_out: &mut LeftOut) {
    if let Some(waits) = waits_of(stat) {
        let all = [&mut waits.polls, &mut waits.delays, &mut waits.awaits];
        left_out.histograms = all.map(Option::take).iter().any(Option::is_some);
    }
}

fn locks(stat: &mut Stat, left_out: &mut LeftOut) {
    left_out.locks = std::mem::take(&mut stat.locks).len() as u64;
}

fn calls(stat: &mut Stat, left_out: &mut LeftOut) {
    left_out.calls = std::mem::take(&mut stat.calls).len() as u64;
}

fn waits_of(stat: &mut Stat) -> Option<&mut WaitsColumns> {
    stat.columns.as_mut()?.waits.as_deref_mut()
}

fn histograms_of(waits: &mut WaitsColumns) -> impl Iterator<Item = &mut HistogramColumns> {
    let WaitsColumns { requests, bodies, gaps, received_gaps, polls, delays, awaits, .. } = waits;
    [bodies, gaps, received_gaps, polls, delays, awaits].into_iter().flatten().chain([requests])
}

impl HistogramColumns {
    /// Merges each 2^`wider` buckets to one; `first` is the index of the first.
    fn widen(&mut self, first: i32, wider: u32) {
        let narrow = std::mem::take(&mut self.buckets);
        let begin = (i64::from(first), i64::from(first) >> wider);
        let (mut at, mut next) = begin;
        for n in narrow {
            if n < 0 {
                at -= n;
                continue;
            }
            let bucket = at >> wider;
            at += 1;
            match self.buckets.last_mut() {
                _ if n == 0 => {
                    self.buckets.push(0);
                    (at, next) = begin;
                }
                Some(last) if bucket < next => *last = last.saturating_add(n),
                _ => {
                    self.buckets.extend((bucket > next).then(|| next - bucket));
                    self.buckets.push(n);
                    next = bucket + 1;
                }
            }
        }
        // Those of the narrow buckets.
        self.tasks = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use dormouse_statistics::buckets::{UNIT_NS, ZERO_THRESHOLD_NS};

    use super::*;
    use crate::verbs::stat::{CallRow, GroupRow, LockStatRow, StatPart};
    use crate::verbs::waits::{ExemplarRow, WaitsRow, bucket_index};

    /// A histogram of durations up to a second, some buckets of which are empty.
    fn row(from: usize) -> HistogramRow {
        let buckets = (from..from + 150).filter(|at| at % 7 != 0);
        HistogramRow {
            scale: SCALE,
            unit_ns: UNIT_NS,
            zero_threshold_ns: ZERO_THRESHOLD_NS,
            buckets: buckets.map(|at| (bucket_index(at), 100_000 + at as u64)).collect(),
            sum_ns: Some(123_456_789_012),
            max_ns: 345_678_912,
            ..HistogramRow::default()
        }
    }

    fn group(id: u32) -> GroupRow {
        let exemplar = ExemplarRow { task: 1_234_567, duration_ns: 12_345_678, ..ExemplarRow::default() };
        let requests = HistogramRow { exemplars: vec![exemplar; 8], ..row(100) };
        let (polls, delays, awaits) = (row(1), row(30), row(200));
        let (bodies, gaps, received_gaps) = (row(150), row(151), row(152));
        let waits =
            WaitsRow { polls, delays, awaits, requests, bodies, gaps, received_gaps, ..WaitsRow::default() };
        let (name, requests) = (format!("GET /api/v1/customers/:id/orders/{id}").into(), 123_456_789);
        GroupRow { id, name, requests, waits: Some(Box::new(waits)), ..GroupRow::default() }
    }

    /// The short answer of a service with that many busy groups.
    fn busy(groups: u32, part: StatPart) -> Stat {
        let call = |group| CallRow {
            group,
            kind: "sql".into(),
            peer: Some("SELECT * FROM teas WHERE id = ?".into()),
            times: row(120),
            ..CallRow::default()
        };
        let lock = |group| LockStatRow { group, line: "cache.rs:41".into(), ..LockStatRow::default() };
        let mut stat = Stat {
            groups: (0..groups).map(group).collect(),
            calls: (0..groups / 4).map(call).collect(),
            locks: (0..groups / 2).map(lock).collect(),
            ..Stat::default()
        };
        stat.shorten(part);
        stat
    }

    fn read(stat: &Stat) -> Stat {
        let mut stat: Stat = serde_json::from_str(&serde_json::to_string(stat).unwrap()).unwrap();
        stat.expand(usize::MAX);
        stat
    }

    #[test]
    fn parts_are_left_out_until_an_answer_fits() {
        let narrow_buckets = LeftOut { narrow_buckets: true, ..LeftOut::default() };
        let exemplars = LeftOut { exemplars: 320, ..narrow_buckets };
        let histograms = LeftOut { histograms: true, ..exemplars };
        let locks = LeftOut { locks: 20, ..histograms };
        let calls = LeftOut { calls: 10, ..locks };
        let mut most = length(&busy(40, StatPart::Groups));
        for left_out in
            [None, Some(narrow_buckets), Some(exemplars), Some(histograms), Some(locks), Some(calls)]
        {
            let mut stat = busy(40, StatPart::Groups);
            stat.fit(most);
            assert!(length(&stat) <= most, "{left_out:?}");
            let Stat { groups, calls, locks, left_out: said, .. } = read(&stat);
            let of = left_out.unwrap_or_default();
            assert_eq!((said, groups.len()), (left_out, 40));
            assert_eq!((locks.len() + of.locks as usize, calls.len() + of.calls as usize), (20, 10));
            let mut right = group(7).waits.unwrap();
            if of.narrow_buckets {
                let WaitsRow { requests, bodies, gaps, received_gaps, polls, delays, awaits, .. } =
                    &mut *right;
                for row in [requests, bodies, gaps, received_gaps, polls, delays, awaits] {
                    *row = std::mem::take(row).at_scale(EXPORTED_SCALE);
                }
            }
            if of.histograms {
                for row in [&mut right.polls, &mut right.delays, &mut right.awaits] {
                    *row = HistogramRow::default();
                }
            }
            let read = groups[7].waits.clone().unwrap();
            let exemplars = if of.exemplars > 0 { 0 } else { 8 };
            assert_eq!(read.requests.exemplars.len(), exemplars, "{left_out:?}");
            right.requests.exemplars.clone_from(&read.requests.exemplars);
            assert_eq!(read, right, "{left_out:?}");
            most = length(&stat) - 1;
        }
    }

    #[test]
    fn absent_parts_are_not_left_out() {
        let mut stat = busy(3, StatPart::Requests);
        stat.fit(0);
        assert_eq!(stat.left_out, Some(LeftOut { locks: 1, ..LeftOut::default() }));
    }

    #[test]
    fn a_thousand_groups_fit_with_their_calls() {
        let mut stat = busy(1000, StatPart::Groups);
        assert!(length(&stat) > 4 << 20);
        stat.fit(4 << 20);
        assert!(length(&stat) <= 4 << 20);
        assert_eq!((read(&stat).groups.len(), read(&stat).calls.len()), (1000, 250));
    }

    #[test]
    fn what_was_left_out_has_no_difference() {
        let (whole, mut short) = (busy(8, StatPart::Groups), busy(8, StatPart::Groups));
        short.fit(0);
        let [whole, short] = [whole, short].map(|stat| read(&stat));
        for (now, before) in [(&whole, &short), (&short, &whole)] {
            let since = now.since(before);
            assert_eq!((since.left_out, since.calls.len(), since.locks.len()), (short.left_out, 0, 0));
            let waits = since.groups[3].waits.clone().unwrap();
            assert_eq!((waits.polls, waits.requests.exemplars.len()), (HistogramRow::default(), 0));
            assert!(waits.requests.buckets.is_empty() && since.groups[3].requests == 0);
        }
        assert_eq!(whole.since(&whole).left_out, None);
    }
}

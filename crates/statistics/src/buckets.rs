//! Durations in exponential buckets.
//!
//! The buckets are those of OpenTelemetry's exponential histogram at scale 4, in seconds: the upper
//! bound of each is 2^(1/16) times that of the one before, so a bucket is 4.4 % wide. Durations up
//! to [`ZERO_THRESHOLD_NS`] are in the zero bucket, those beyond the last bound in the last bucket.
//!
//! Four buckets that follow each other are one at scale 2, which metrics have ([`EXPORTED_SCALE`]).
//!
//! Bounds are powers of 2 in seconds, not in nanoseconds, because metrics are in seconds: a second
//! is no power of 2 in nanoseconds, so converting between the two would split buckets.
//!
//! # References
//!
//! OpenTelemetry, Metrics Data Model, `ExponentialHistogram`. Prometheus, "Native Histograms".

/// The scale, as OpenTelemetry defines it.
pub const SCALE: i32 = 4;

/// The scale of metrics: a quarter of the buckets, which are 19 % wide.
pub const EXPORTED_SCALE: i32 = 2;

/// The unit of bounds, in nanoseconds: a second.
pub const UNIT_NS: u64 = 1_000_000_000;

/// Durations up to this many nanoseconds are in the zero bucket: it ends at 2^-24 seconds, which
/// are 59.6 ns.
pub const ZERO_THRESHOLD_NS: u64 = 59;

/// The index, in OpenTelemetry's numbering, of the first bucket after the zero bucket.
pub const OFFSET: i32 = -24 * OF_POWER as i32;

/// The number of buckets in one power of two.
pub const OF_POWER: usize = 1 << SCALE;

/// The powers of two that have buckets: durations up to 68 minutes.
pub const POWERS: usize = 36;

/// The number of buckets, including the zero bucket.
pub const BUCKETS: usize = 1 + POWERS * OF_POWER;

/// The bounds between 2^29 and 2^30 nanoseconds, in 2^-34 nanoseconds: a second times 2^(-14/16) to
/// 2^(1/16). Those of other powers of two have the same digits.
const STEPS: [u64; OF_POWER] = [
    0x81FF_A7A9_549C_A6E3,
    0x87C1_1235_836D_16A3,
    0x8DC3_B896_0164_A7D9,
    0x940A_7E28_259F_B382,
    0x9A98_6705_4D51_2391,
    0xA170_9975_DFB0_6757,
    0xA896_5F74_BF06_5071,
    0xB00D_2843_E106_0DC2,
    0xB7D8_8A12_D0DD_9EA0,
    0xBFFC_43B7_E604_A922,
    0xC87C_3E7D_03CD_BEC3,
    0xD15C_9000_BF21_1C1F,
    0xDAA1_7C2C_D195_55DB,
    0xE44F_7742_CB56_E3DD,
    UNIT_NS << 34,
    0xF8F9_69D9_B5AB_F948,
];

/// The bounds below 2^6 nanoseconds that belong to the zero bucket.
const SKIPPED: usize = 94;

/// The number of [`CELLS`], by powers of two.
const CELL_BITS: u32 = 5;

/// A power of two in parts of the same length, each shorter than a bucket: the number of bounds
/// below the part, and the next bound, which may lie in it.
static CELLS: [(usize, u64); 1 << CELL_BITS] = {
    let mut cells = [(0, u64::MAX); 1 << CELL_BITS];
    let (mut cell, mut below) = (0, 0);
    while cell < cells.len() {
        let begins = (1 << 63) + ((cell as u64) << (63 - CELL_BITS));
        while below < OF_POWER && STEPS[below] < begins {
            below += 1;
        }
        cells[cell] = (below, if below < OF_POWER { STEPS[below] } else { u64::MAX });
        cell += 1;
    }
    cells
};

/// The index of a duration's bucket in [`Histogram::buckets`].
#[inline]
pub fn place(ns: u64) -> usize {
    if ns <= ZERO_THRESHOLD_NS {
        return 0;
    }
    let power = 63 - ns.leading_zeros() as usize;
    let mantissa = ns << ns.leading_zeros();
    let (below, next) = CELLS[(mantissa << 1 >> (64 - CELL_BITS)) as usize];
    // Upper bounds belong to their buckets. Those that were rounded down lie between two durations.
    let steps = below + usize::from(mantissa > next);
    (power * OF_POWER + steps - SKIPPED).min(BUCKETS - 1)
}

/// The upper bound of a bucket, in nanoseconds. It is that of [`place`], from the same table: no
/// platform promises that `exp2` is exact, not even for whole powers.
pub fn upper_bound_ns(place: usize) -> f64 {
    let bound = place + SKIPPED;
    STEPS[bound % OF_POWER] as f64 / (1_u64 << (63 - bound / OF_POWER)) as f64
}

/// How many durations fell into each bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// The counts of the zero bucket and of the buckets after it.
    pub buckets: [u64; BUCKETS],
    /// The sum of all durations, in nanoseconds.
    pub sum_ns: u64,
    /// The longest duration, in nanoseconds.
    pub max_ns: u64,
    /// The number of the task with the longest duration; 0 if there is none.
    pub max_task: u64,
    /// For requests, a recent task of each bucket; 0 if none is known.
    pub tasks: [u64; BUCKETS],
    /// [`SCALE`], or less: then they were counted in the wider buckets of that scale, and stand in
    /// the last of ours within each.
    pub scale: i32,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum_ns: 0, max_ns: 0, max_task: 0, tasks: [0; BUCKETS], scale: SCALE }
    }
}

impl Histogram {
    /// Removes all durations, in place: a histogram is too large to be moved in a loop.
    pub fn clear(&mut self) {
        self.buckets.fill(0);
        self.tasks.fill(0);
        (self.sum_ns, self.max_ns, self.max_task, self.scale) = (0, 0, 0, SCALE);
    }

    /// The same durations in the buckets of `scale`, if these are wider.
    fn widened(&self, scale: i32) -> Self {
        if scale >= self.scale {
            return self.clone();
        }
        let mut of = Self { buckets: [0; BUCKETS], tasks: [0; BUCKETS], scale, ..*self };
        let wide = 1_usize << SCALE.saturating_sub(scale).min(30);
        for (at, &n) in self.buckets.iter().enumerate().filter(|(_, n)| **n > 0) {
            // The zero bucket stays, and the others begin behind it.
            let end = at.next_multiple_of(wide).min(BUCKETS - 1);
            of.buckets[end] = of.buckets[end].saturating_add(n);
            of.tasks[end] = self.tasks[at];
        }
        of
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        // Counts of another process may be any numbers.
        self.buckets.iter().fold(0, |count, &n| count.saturating_add(n))
    }

    /// The durations since `before`, an earlier reading of the same histogram. Their longest is
    /// known if it is the longest of all; otherwise it is bounded by the end of its bucket (in the
    /// last one by the longest of all), and `max_task` is a recent task of that bucket, if one is
    /// known.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        if self.scale != before.scale {
            let scale = self.scale.min(before.scale);
            return self.widened(scale).since(&before.widened(scale));
        }
        let buckets = std::array::from_fn(|at| self.buckets[at].saturating_sub(before.buckets[at]));
        let is_new = |at: usize| buckets[at] > 0 && self.tasks[at] != before.tasks[at];
        let tasks = std::array::from_fn(|at| if is_new(at) { self.tasks[at] } else { 0 });
        let sum_ns = self.sum_ns.saturating_sub(before.sum_ns);
        if self.max_ns > before.max_ns {
            return Self { buckets, sum_ns, tasks, ..*self };
        }
        let last = buckets.iter().rposition(|&n| n > 0);
        let bound = |last| if last == BUCKETS - 1 { u64::MAX } else { upper_bound_ns(last) as u64 };
        let (bound, max_task) = last.map_or((0, 0), |last| (bound(last), tasks[last]));
        Self { buckets, sum_ns, max_ns: self.max_ns.min(bound), max_task, tasks, ..*self }
    }

    /// The duration that the share `share` of all durations does not exceed, in nanoseconds; `None`
    /// if there are none. It lies within its bucket, and is at most the longest duration, with
    /// which the last bucket ends.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let count = self.count();
        let rank = share.clamp(0.0, 1.0) * count as f64;
        let mut before = 0_u64;
        let (place, inside) =
            self.buckets.iter().enumerate().filter(|(_, n)| **n > 0).find_map(|(place, n)| {
                before = before.saturating_add(*n);
                let reached = before as f64 >= rank;
                reached.then(|| (place, 1.0 - (before as f64 - rank) / *n as f64))
            })?;
        let upper = upper_bound_ns(place);
        let lower = if place == 0 { 0.0 } else { upper / f64::from(-self.scale).exp2().exp2() };
        let upper = if place == BUCKETS - 1 { upper.max(self.max_ns as f64) } else { upper };
        Some(((lower + (upper - lower) * inside.clamp(0.0, 1.0)) as u64).min(self.max_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_in_its_bucket() {
        for at in 1..BUCKETS - 1 {
            let bound = upper_bound_ns(at);
            assert_eq!(place(bound.floor() as u64), at, "{bound}");
            assert_eq!(place(bound.floor() as u64 + 1), at + 1, "{bound}");
        }
        assert_eq!((place(0), place(59), place(60), place(u64::MAX)), (0, 0, 1, BUCKETS - 1));
        let seconds = |n| place(n * UNIT_NS);
        assert_eq!((seconds(1), seconds(2), seconds(4)), (384, 400, 416), "a second is a bound");
    }

    fn of(durations: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for (&ns, task) in durations.iter().zip(1..) {
            histogram.buckets[place(ns)] += 1;
            histogram.sum_ns += ns;
            histogram.tasks[place(ns)] = task;
            if ns > histogram.max_ns {
                (histogram.max_ns, histogram.max_task) = (ns, task);
            }
        }
        histogram
    }

    #[test]
    fn a_difference_is_of_later_durations() {
        let all = [70, 5_000, 1_000_000, 80, 90_000];
        let (before, now) = (of(&all[..3]), of(&all));
        let since = now.since(&before);
        assert_eq!((since.buckets, since.sum_ns), (of(&all[3..]).buckets, 90_080));
        assert_eq!(since.max_task, 5, "of the longest bucket that is new");
        assert!((90_000..=90_000 * 21 / 20).contains(&since.max_ns), "{}", since.max_ns);
        let slow = of(&[70, 5_000, 1_000_000, 80, 90_000, 2_000_000]).since(&now);
        let wide = now.since(&before.widened(2));
        assert_eq!((wide.scale, wide.buckets), (2, since.widened(2).buckets), "by the wider of the two");
        assert_eq!((slow.count(), slow.max_ns, slow.max_task), (1, 2_000_000, 6));
        assert_eq!(now.since(&now), Histogram::default());
    }

    #[test]
    fn the_last_bucket_ends_with_the_longest() {
        let hours = |n: u64| n * 3_600 * UNIT_NS;
        let all = [hours(4), hours(3)];
        assert_eq!(of(&all).quantile_ns(1.0), Some(hours(4)));
        let since = of(&all).since(&of(&all[..1]));
        assert_eq!((since.count(), since.max_ns), (1, hours(4)), "it is no longer than the longest");
        assert_eq!(since.quantile_ns(1.0), Some(hours(4)));
    }

    #[test]
    fn a_quantile_is_in_its_ranks_bucket() {
        let durations: Vec<u64> = (1..=1_000).map(|n| n * n * 40).collect();
        let histogram = of(&durations);
        for share in [0.01, 0.5, 0.9, 0.99, 1.0] {
            let exact = durations[(share * 1_000.0) as usize - 1];
            let shown = histogram.quantile_ns(share).unwrap();
            assert_eq!(place(shown.max(1)), place(exact), "{share}: {shown} for {exact}");
        }
        assert_eq!(histogram.quantile_ns(1.0), Some(histogram.max_ns));
        assert_eq!(Histogram::default().quantile_ns(0.5), None);
        let mut most = histogram;
        most.buckets = [u64::MAX; BUCKETS];
        assert!(most.quantile_ns(0.99).is_some(), "no number of durations is too large");
    }
}

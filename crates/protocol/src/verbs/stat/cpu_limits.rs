//! The CPU limits of the control groups that a service is in, and how often it was throttled.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::bounded::at_most;
use crate::verbs::stalls::FOR_LIMIT;

/// The most control groups with a limit around a service.
const MOST_LIMITS: usize = 64;

/// Fewer throttled periods in a hundred are no reason to change anything.
const NOTABLE_PERCENT: f64 = 1.0;

/// The kernel may count shorter times for a group that was not held back.
const HIDDEN_NS: u64 = 10_000_000;

/// The CPU limits of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuLimits {
    /// Why the limits are not known; absent if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<Cow<'static, str>>,
    /// The control groups with a limit that the service is in and sees, from the inside out. Empty
    /// if none has one.
    #[serde(
        default,
        deserialize_with = "at_most::<MOST_LIMITS, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub groups: Vec<CpuLimitRow>,
    /// For how long processors of the innermost control group were throttled, in nanoseconds, by
    /// any limit around it, also by those that the service does not see. Absent where the kernel
    /// does not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_ns: Option<u64>,
}

/// The CPU limit of a control group. Counts are since the control group began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuLimitRow {
    /// The path of the control group below the mount that the service sees.
    pub path: String,
    /// The CPU time that the control group may use in each period, in microseconds.
    pub quota_us: u64,
    /// The length of a period, in microseconds.
    pub period_us: u64,
    /// The number of periods in which the control group was active.
    pub periods: u64,
    /// In how many of these it was throttled: it had used up its quota and wanted more.
    pub throttled_periods: u64,
    /// For how long its processors were throttled, in nanoseconds: a sum over processors.
    pub throttled_ns: u64,
    /// CPU time of the control group, in nanoseconds; absent where the kernel does not have it
    /// beside the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_ns: Option<u64>,
}

impl CpuLimits {
    /// The counts since `before`, an earlier reading. A control group that is not in it has none:
    /// the kernel's are since that group began.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let of = |now: &CpuLimitRow| {
            now.since(before.groups.iter().find(|before| before.path == now.path).unwrap_or(now))
        };
        let throttled_ns = self.throttled_ns.zip(before.throttled_ns);
        Self {
            unknown: self.unknown.clone(),
            groups: self.groups.iter().map(of).collect(),
            throttled_ns: throttled_ns.map(|(now, it)| now.saturating_sub(it)),
        }
    }

    /// The lowest limit, in CPUs; of two that are the same, the innermost.
    pub fn lowest(&self) -> Option<&CpuLimitRow> {
        self.groups.iter().min_by(|a, b| a.cpus().total_cmp(&b.cpus()))
    }

    /// Whether a limit that the service does not see has throttled it: no limit that it sees has
    /// done so.
    pub fn hidden(&self) -> Option<String> {
        let is_seen = self.groups.iter().any(|group| group.throttled_periods > 0);
        let ns = self.throttled_ns.filter(|ns| *ns >= HIDDEN_NS && !is_seen)?;
        let seconds = digits(ns as f64 / 1e9);
        Some(format!("its processors were throttled for {seconds} s by a CPU limit that is not seen here"))
    }

    /// One sentence for each control group that was throttled notably.
    pub fn notices(&self) -> impl Iterator<Item = String> {
        let seen = self.groups.iter().filter(|group| group.is_notable()).map(CpuLimitRow::sentence);
        seen.chain(self.hidden()).map(|sentence| format!("{sentence}: {}", CpuLimitRow::ADVICE))
    }
}

impl CpuLimitRow {
    /// The advice for a service that is throttled.
    pub const ADVICE: &'static str = FOR_LIMIT;

    fn since(&self, before: &Self) -> Self {
        Self {
            periods: self.periods.saturating_sub(before.periods),
            throttled_periods: self.throttled_periods.saturating_sub(before.throttled_periods),
            throttled_ns: self.throttled_ns.saturating_sub(before.throttled_ns),
            usage_ns: self.usage_ns.zip(before.usage_ns).map(|(now, it)| now.saturating_sub(it)),
            ..self.clone()
        }
    }

    /// The limit, in CPUs.
    pub fn cpus(&self) -> f64 {
        self.quota_us as f64 / self.period_us.max(1) as f64
    }

    /// In how many of its active periods it was throttled, in percent; `None` if it was not active.
    pub fn throttled_percent(&self) -> Option<f64> {
        (self.periods > 0).then(|| (self.throttled_periods as f64 / self.periods as f64 * 100.0).min(100.0))
    }

    /// The CPUs that were wanted while it was active, at least; `None` if it was not active.
    ///
    /// A processor is throttled only while something there wants to run: so what was used and the
    /// time for which processors were throttled were both wanted. Each throttled period has used up
    /// its quota, also where the kernel does not say what was used.
    pub fn wanted_cpus(&self) -> Option<f64> {
        let active_ns = self.periods as f64 * self.period_us as f64 * 1e3;
        let quotas_ns = self.throttled_periods as f64 * self.quota_us as f64 * 1e3;
        let used_ns = quotas_ns.max(self.usage_ns.unwrap_or(0) as f64);
        (active_ns > 0.0).then(|| (used_ns + self.throttled_ns as f64) / active_ns)
    }

    /// Whether it was throttled often enough to change something.
    pub fn is_notable(&self) -> bool {
        self.throttled_percent().is_some_and(|percent| percent >= NOTABLE_PERCENT)
    }

    /// The share of throttled periods, and the limit, in one sentence.
    pub fn sentence(&self) -> String {
        let limit = format!("the limit of {} is {} CPU", self.path, digits(self.cpus()));
        match self.throttled_percent() {
            None => limit,
            Some(_) if self.throttled_periods == 0 => format!("not throttled; {limit}"),
            Some(percent) => {
                // Less than the limit is no lower bound of use.
                let wanted = self.wanted_cpus().filter(|wanted| *wanted > self.cpus());
                let wanted = wanted.map(|wanted| format!(", at least {} were wanted", digits(wanted)));
                let wanted = wanted.unwrap_or_default();
                format!("throttled in {} % of its active periods; {limit}{wanted}", digits(percent))
            }
        }
    }
}

/// A number with two significant digits, if it is small.
fn digits(number: f64) -> String {
    match number {
        _ if number > 0.0 && number < 0.005 => "<0.01".to_owned(),
        _ if number >= 10.0 => format!("{number:.0}"),
        _ => {
            let text = format!("{number:.2}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(periods: u64, throttled_periods: u64, throttled_ms: u64, usage_ms: Option<u64>) -> CpuLimitRow {
        CpuLimitRow {
            path: "/pod7".into(),
            quota_us: 50_000,
            period_us: 100_000,
            periods,
            throttled_periods,
            throttled_ns: throttled_ms * 1_000_000,
            usage_ns: usage_ms.map(|ms| ms * 1_000_000),
        }
    }

    #[test]
    fn sentences_name_share_limit_and_demand() {
        // 100 periods are 10 s: 5 s were used, and for 3.6 s a processor was throttled.
        let sentence = half(100, 41, 3_600, Some(5_000)).sentence();
        assert_eq!(
            sentence,
            "throttled in 41 % of its active periods; the limit of /pod7 is 0.5 CPU, at least 0.86 were wanted"
        );
        assert!(half(100_000, 4, 1, None).sentence().starts_with("throttled in <0.01 % of"));
        // All periods used up their quota: as much was used, at least.
        assert!(half(100, 100, 5_000, None).sentence().ends_with("at least 1 were wanted"));
        let idle = half(0, 0, 0, None);
        assert_eq!((idle.sentence().as_str(), idle.wanted_cpus()), ("the limit of /pod7 is 0.5 CPU", None));
        assert_eq!(half(9, 0, 0, None).sentence(), "not throttled; the limit of /pod7 is 0.5 CPU");
        // Nothing is known but one throttled period: that bounds nothing.
        let little = half(100, 1, 10, None).sentence();
        assert_eq!(little, "throttled in 1 % of its active periods; the limit of /pod7 is 0.5 CPU");
    }

    #[test]
    fn notices_are_of_the_time_between() {
        let (early, now) = (half(1_000, 900, 9_000, None), half(1_100, 900, 9_000, None));
        let limits = |row: CpuLimitRow| CpuLimits { groups: vec![row], ..CpuLimits::default() };
        assert_eq!(limits(early.clone()).notices().count(), 1);
        let since = limits(now).since(&limits(early));
        assert_eq!((since.groups[0].periods, since.notices().count()), (100, 0), "it is over");
        let hidden = |ms: u64, row| CpuLimits { throttled_ns: Some(ms * 1_000_000), ..limits(row) };
        let since = hidden(1_400, half(9, 0, 0, None)).since(&hidden(100, half(8, 0, 0, None)));
        assert!(
            since.notices().next().unwrap().starts_with("its processors were throttled for 1.3 s by a CPU")
        );
        assert_eq!(hidden(1_400, half(1_000, 1, 9, None)).notices().count(), 0, "one that is seen");
    }

    #[test]
    fn a_limit_that_is_new_has_no_counts() {
        let limits = |rows: Vec<CpuLimitRow>| CpuLimits { groups: rows, ..CpuLimits::default() };
        let (old, now) = (half(1_000, 900, 9_000, Some(7)), half(1_100, 900, 9_000, Some(9)));
        let moved = limits(vec![CpuLimitRow { path: "/older".into(), ..now.clone() }, now]);
        let since = moved.since(&limits(vec![old]));
        let counts: Vec<_> = since.groups.iter().map(|row| (row.periods, row.throttled_periods)).collect();
        assert_eq!(counts, [(0, 0), (100, 0)]);
        assert_eq!(since.groups[0].sentence(), "the limit of /older is 0.5 CPU");
        assert_eq!(since.notices().count(), 0);
    }

    #[test]
    fn the_lowest_limit_is_the_innermost() {
        let row = |path: &str, quota_us| CpuLimitRow { path: path.into(), quota_us, ..half(0, 0, 0, None) };
        let limits = |groups| CpuLimits { groups, ..CpuLimits::default() };
        let of = limits(vec![row("/a/b", 50_000), row("/a", 50_000), row("/", 200_000)]);
        assert_eq!(of.lowest().unwrap().path, "/a/b");
        assert_eq!(limits(vec![row("/a/b", 80_000), row("/a", 50_000)]).lowest().unwrap().path, "/a");
        assert_eq!(limits(vec![]).lowest(), None);
    }
}

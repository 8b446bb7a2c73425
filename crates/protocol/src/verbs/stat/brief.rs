//! The short form of an answer to `stat`: the figures that metrics show, as lists without names.

use std::borrow::Cow;

use dormouse_statistics::buckets::EXPORTED_SCALE;
use serde::{Deserialize, Serialize};

use super::{CountRow, GroupRow, Stat};
use crate::id::{WireId, known};
use crate::verbs::waits::{ExemplarRow, HistogramRow, QueueRow, WaitsRow};

/// The part of an answer to `stat` that a client wants, the smallest first. None of them has rows
/// of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Brief {
    /// The histogram of requests of each group.
    Requests,
    /// The histogram of requests, with exemplars.
    Exemplars,
    /// All histograms, with exemplars.
    All,
}

/// The groups of a short answer, and how many threads there are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BriefStat {
    /// The number of threads.
    pub threads: u64,
    /// All groups, in order of creation.
    pub groups: Vec<BriefGroup>,
    /// The `queue` of each of these groups, in the same order; absent if none has any. It is not a
    /// part of the groups' lists, because another version refuses a list of another length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<Option<QueueRow>>,
}

/// A [`GroupRow`]: `id`, `name`, `cpu_ns`, `entries`, `alive`, `started`, `finished`, `requests`,
/// `polls`, `counts`, `waits`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BriefGroup(
    u32,
    Cow<'static, str>,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    Vec<CountRow>,
    Option<BriefWaits>,
);

/// A [`WaitsRow`]: `on_cpu_ns`, `poll_ns`, `runnable_ns`, `await_ns`; and the histograms of
/// requests, and if they are asked for of polls, delays and awaits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct BriefWaits(Option<u64>, u64, u64, u64, Vec<BriefHistogram>);

/// A [`HistogramRow`] in the buckets of metrics: `scale`, `unit_ns`, `zero_threshold_ns`,
/// `zero_count`, `buckets`, `sum_ns`, `max_ns`, `exemplars`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct BriefHistogram(i32, u64, u64, u64, Vec<(i32, u64)>, Option<u64>, u64, Vec<BriefExemplar>);

/// An [`ExemplarRow`]: `index`, `task`, `duration_ns`, `unix_ns`, `trace_id`, `span_id`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct BriefExemplar(
    i32,
    u64,
    u64,
    u64,
    #[serde(deserialize_with = "known")] Option<WireId<16>>,
    #[serde(deserialize_with = "known")] Option<WireId<8>>,
);

impl Stat {
    /// Puts groups and threads into their short form.
    pub fn shorten(&mut self, to: Brief) {
        let groups = std::mem::take(&mut self.groups);
        let queue = |group: &GroupRow| group.waits.as_ref().and_then(|waits| waits.queue);
        let mut queues: Vec<_> = groups.iter().map(queue).collect();
        if queues.iter().all(Option::is_none) {
            queues.clear();
        }
        let groups = groups.into_iter().map(|group| BriefGroup::of(group, to)).collect();
        let threads = std::mem::take(&mut self.threads).len() as u64;
        self.brief = Some(BriefStat { threads, groups, queues });
    }

    /// The number of threads, whether or not there are rows of them.
    pub fn thread_count(&self) -> u64 {
        self.brief.as_ref().map_or(self.threads.len() as u64, |brief| brief.threads)
    }

    /// Restores the rows of groups from the short form.
    pub fn expand(&mut self) {
        if let Some(brief) = &mut self.brief {
            self.groups = std::mem::take(&mut brief.groups).into_iter().map(GroupRow::from).collect();
            for (group, queue) in self.groups.iter_mut().zip(std::mem::take(&mut brief.queues)) {
                if let Some(waits) = &mut group.waits {
                    waits.queue = queue;
                }
            }
        }
    }
}

impl BriefGroup {
    fn of(row: GroupRow, to: Brief) -> Self {
        // Metrics do not show which tasks outlive their requests.
        let GroupRow {
            id,
            name,
            cpu_ns,
            entries,
            alive,
            started,
            finished,
            requests,
            polls,
            counts,
            waits,
            ..
        } = row;
        let waits = waits.map(|row| {
            let WaitsRow { on_cpu_ns, poll_ns, runnable_ns, await_ns, .. } = *row;
            let WaitsRow { polls, delays, awaits, requests, .. } = *row;
            let rest = (to == Brief::All).then_some([polls, delays, awaits]).into_iter().flatten();
            let histograms = [requests].into_iter().chain(rest).map(BriefHistogram::from);
            BriefWaits(on_cpu_ns, poll_ns, runnable_ns, await_ns, histograms.collect())
        });
        Self(id, name, cpu_ns, entries, alive, started, finished, requests, polls, counts, waits)
    }
}

impl From<BriefGroup> for GroupRow {
    fn from(brief: BriefGroup) -> Self {
        let BriefGroup(id, name, cpu_ns, entries, alive, started, finished, requests, polls, counts, waits) =
            brief;
        let waits = waits.map(|BriefWaits(on_cpu_ns, poll_ns, runnable_ns, await_ns, histograms)| {
            let mut rows = histograms.into_iter().map(HistogramRow::from);
            let mut next = || rows.next().unwrap_or_default();
            let (requests, polls, delays, awaits) = (next(), next(), next(), next());
            Box::new(WaitsRow {
                on_cpu_ns,
                poll_ns,
                runnable_ns,
                await_ns,
                // Beside the groups, see `expand`.
                queue: None,
                polls,
                delays,
                awaits,
                requests,
            })
        });
        Self {
            id,
            name,
            cpu_ns,
            entries,
            alive,
            started,
            finished,
            requests,
            polls,
            counts,
            waits,
            outliving: None,
        }
    }
}

impl From<HistogramRow> for BriefHistogram {
    fn from(row: HistogramRow) -> Self {
        let row = row.at_scale(EXPORTED_SCALE);
        let HistogramRow { scale, unit_ns, zero_threshold_ns, zero_count, buckets, sum_ns, max_ns, .. } = row;
        let exemplars = row.exemplars.into_iter().map(BriefExemplar::from).collect();
        Self(scale, unit_ns, zero_threshold_ns, zero_count, buckets, sum_ns, max_ns, exemplars)
    }
}

impl From<BriefHistogram> for HistogramRow {
    fn from(brief: BriefHistogram) -> Self {
        let BriefHistogram(scale, unit_ns, zero_threshold_ns, zero_count, buckets, sum_ns, max_ns, exemplars) =
            brief;
        let exemplars = exemplars.into_iter().map(ExemplarRow::from).collect();
        let (max_task, tasks) = (None, Vec::new());
        Self {
            scale,
            unit_ns,
            zero_threshold_ns,
            zero_count,
            buckets,
            sum_ns,
            max_ns,
            max_task,
            tasks,
            exemplars,
        }
    }
}

impl From<ExemplarRow> for BriefExemplar {
    fn from(row: ExemplarRow) -> Self {
        let ExemplarRow { index, task, duration_ns, unix_ns, trace_id, span_id } = row;
        Self(index, task, duration_ns, unix_ns, trace_id, span_id)
    }
}

impl From<BriefExemplar> for ExemplarRow {
    fn from(BriefExemplar(index, task, duration_ns, unix_ns, trace_id, span_id): BriefExemplar) -> Self {
        Self { index, task, duration_ns, unix_ns, trace_id, span_id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_answer_has_what_metrics_show() {
        let exemplar =
            ExemplarRow { index: 3, task: 9, trace_id: Some(WireId([7; 16])), ..ExemplarRow::default() };
        let requests = HistogramRow {
            scale: 2,
            unit_ns: 1,
            buckets: vec![(1, 2)],
            exemplars: vec![exemplar],
            ..HistogramRow::default()
        };
        let polls = HistogramRow { scale: 2, ..HistogramRow::default() };
        let queue = Some(QueueRow { requests: 9, received: 8, unseen_ns: 7, behind_ns: 6 });
        let waits = WaitsRow { poll_ns: 5, queue, requests, polls, ..WaitsRow::default() };
        let group = GroupRow {
            id: 1,
            name: "tea".into(),
            cpu_ns: 2,
            entries: 3,
            alive: 4,
            started: 5,
            finished: 6,
            requests: 7,
            polls: 8,
            counts: Vec::new(),
            waits: Some(Box::new(waits)),
            outliving: None,
        };
        for (to, has_polls) in [(Brief::Exemplars, false), (Brief::All, true)] {
            let mut stat = Stat { groups: vec![group.clone()], ..Stat::default() };
            stat.shorten(to);
            let json = serde_json::to_string(&stat).unwrap();
            let mut back: Stat = serde_json::from_str(&json).unwrap();
            back.expand();
            let mut right = group.clone();
            if let Some(waits) = right.waits.as_mut().filter(|_| !has_polls) {
                waits.polls = HistogramRow::default();
            }
            assert_eq!(back.groups, [right], "{json}");
        }
    }

    #[test]
    fn answers_without_queues_are_read() {
        let before = r#"{"threads":1,"groups":[[1,"tea",2,3,4,5,6,7,8,[],[null,5,0,0,[]]]]}"#;
        let mut stat = Stat { brief: Some(serde_json::from_str(before).unwrap()), ..Stat::default() };
        stat.expand();
        let waits = stat.groups[0].waits.as_ref().unwrap();
        assert_eq!((waits.poll_ns, waits.queue), (5, None));
    }
}

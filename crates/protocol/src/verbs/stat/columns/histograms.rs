//! Histograms of durations, one of each group.

use serde::{Deserialize, Serialize};

use super::column::{Column, leave_out};
use crate::verbs::waits::HistogramRow;

/// One histogram of each group, by columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HistogramColumns {
    /// The `zero_count` of each group.
    pub zero_count: Vec<u64>,
    /// The `sum_ns` of each group.
    pub sum_ns: Vec<u64>,
    /// The `max_ns` of each group.
    pub max_ns: Vec<u64>,
    /// The `max_task` of each group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub max_task: Vec<Option<u64>>,
    /// The counts of buckets, group by group: `-n` stands for `n` empty buckets, and 0 ends a
    /// group.
    pub buckets: Vec<i64>,
    /// A recent task of each bucket that is not empty, group by group; 0 if none is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<u64>,
}

impl HistogramColumns {
    /// Adds the row of a group, in the buckets of `scale`; its tasks if `has_tasks`.
    pub(super) fn push(&mut self, row: &HistogramRow, first: i32, scale: i32, has_tasks: bool) {
        let wider = row.scale.saturating_sub(scale).clamp(0, 31);
        self.zero_count.push(row.zero_count);
        self.sum_ns.push(row.sum_ns.unwrap_or_default());
        self.max_ns.push(row.max_ns);
        self.max_task.push(row.max_task);
        let tasks = if has_tasks { &row.tasks[..] } else { &[] };
        let (mut next, mut tasks) = (i64::from(first), tasks.iter().peekable());
        for merged in row.buckets.chunk_by(|(a, _), (b, _)| a >> wider == b >> wider) {
            let index = merged[0].0 >> wider;
            let empty = i64::from(index) - next;
            if empty > 0 {
                self.buckets.push(-empty);
            }
            next = i64::from(index) + 1;
            let n = merged.iter().fold(0_u64, |sum, (_, n)| sum.saturating_add(*n));
            self.buckets.push(i64::try_from(n).unwrap_or(i64::MAX));
            if has_tasks {
                let mut own = std::iter::from_fn(|| tasks.next_if(|(at, _)| at >> wider == index));
                self.tasks.push(own.next().map_or(0, |(_, task)| *task));
                own.for_each(drop);
            }
        }
        self.buckets.push(0);
    }

    /// The columns that hold nothing are empty from here on.
    pub(super) fn leave_out(&mut self) {
        let Self { zero_count, sum_ns, max_ns, max_task, buckets, tasks } = self;
        [zero_count, sum_ns, max_ns, tasks].into_iter().for_each(leave_out);
        leave_out(max_task);
        leave_out(buckets);
    }

    pub(super) fn rows(self, empty: HistogramRow, first: i32) -> HistogramRows {
        HistogramRows {
            empty,
            first,
            zero_count: Column::of(self.zero_count),
            sum_ns: Column::of(self.sum_ns),
            max_ns: Column::of(self.max_ns),
            max_task: Column::of(self.max_task),
            buckets: self.buckets.into_iter(),
            has_tasks: !self.tasks.is_empty(),
            tasks: Column::of(self.tasks),
        }
    }
}

/// The histograms of columns, group by group.
pub(super) struct HistogramRows {
    empty: HistogramRow,
    first: i32,
    zero_count: Column<u64>,
    sum_ns: Column<u64>,
    max_ns: Column<u64>,
    max_task: Column<Option<u64>>,
    buckets: std::vec::IntoIter<i64>,
    has_tasks: bool,
    tasks: Column<u64>,
}

impl HistogramRows {
    pub(super) fn next(&mut self) -> HistogramRow {
        let counts = self.buckets.as_slice();
        let end = counts.iter().position(|&n| n == 0).unwrap_or(counts.len());
        let (mut next, mut tasks) = (self.first, Vec::new());
        let mut buckets = Vec::with_capacity(counts[..end].iter().filter(|&&n| n > 0).count());
        for n in self.buckets.by_ref().take(end) {
            // A peer may send any numbers.
            if n < 0 {
                next = next.saturating_add(i32::try_from(n.unsigned_abs()).unwrap_or(i32::MAX));
                continue;
            }
            buckets.push((next, n.unsigned_abs()));
            if self.has_tasks {
                let task = self.tasks.next();
                tasks.extend((task != 0).then_some((next, task)));
            }
            next = next.saturating_add(1);
        }
        // The end of the group.
        self.buckets.next();
        HistogramRow {
            zero_count: self.zero_count.next(),
            buckets,
            sum_ns: Some(self.sum_ns.next()),
            max_ns: self.max_ns.next(),
            max_task: self.max_task.next(),
            tasks,
            ..self.empty.clone()
        }
    }
}

//! A process between two samples, as `top` and `demo` show it: text and JSON.

use std::fmt::Write as _;

use dormouse_protocol::figures::{
    Figure, FigureJson, FigureView, GROUP_FIGURES, GroupFigure, GroupSpan, RUNTIME_FIGURES, RuntimeFigure,
    RuntimeSpan,
};
use dormouse_protocol::{CpuLimitRow, CpuLimits, GroupRow, OwnCost};
use serde::Serialize;

use super::column::{Column, Digits, table};
use super::row::{Row, RowDocument};
use super::table::Table;
use super::threads::{THREAD_FIGURES, ThreadFigure, ThreadSpan};
use crate::bytes;
use crate::duration::short;
use crate::output::{DIM, HEAD};
use crate::sample::OF_GROUPS;
use crate::sample::delta::Delta;
use crate::sample::totals::{Sample, Usage};
use crate::text::{clean, count};

/// A process between two samples. CPU time is since the first sample, percentages and rates are
/// of the last interval, and `requests`, `polls` and tasks of groups are since the service began.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// `CLOCK_MONOTONIC` of the later sample.
    time_mono_ns: u64,
    interval_ns: u64,
    counted_ns: u64,
    process: Row,
    /// The CPU time that the process had used by the first sample.
    before_cpu_ns: u64,
    pub(crate) inside: Option<Inside>,
    pub(crate) threads: Vec<Row>,
    /// Events with a column in the table of groups.
    pub(crate) events: Vec<String>,
    /// Events with a column in the table of threads.
    pub(crate) thread_events: Vec<String>,
    /// Events that are counted for groups alone.
    of_groups: Vec<String>,
    /// Why there are no times of tasks, which were asked for.
    pub(crate) no_waits: Option<String>,
}

/// The part of a view that only an agent provides.
#[derive(Debug, Clone)]
pub(crate) struct Inside {
    unattributed: Row,
    /// The coverage of the interval; `None` if no CPU time was used.
    coverage_percent: Option<f64>,
    /// Why there is no CPU time of groups.
    cpu_refused: Option<String>,
    pub(crate) groups: Vec<Row>,
    runtimes: Vec<Row>,
    notices: Vec<String>,
    /// With the counts of the interval.
    cpu_limits: Option<CpuLimits>,
    pub(crate) keys_on: usize,
    dropped: u64,
    /// The cost of dormouse itself in the interval.
    own: Option<OwnCost>,
}

impl View {
    /// The time from `before` to `after`, and since `first`, with these events. The busiest row is
    /// the first.
    pub(crate) fn between(first: &Sample, before: &Sample, after: &Sample, events: &[String]) -> View {
        let (total, recent) = (Delta::between(first, after, &[]), Delta::between(before, after, &[]));
        let interval_ns = recent.elapsed_ns;
        let inside = after.inside.as_ref().zip(total.inside.as_ref().zip(recent.inside.as_ref()));
        let inside = inside.map(|(now, (total, recent))| {
            let cpu_refused = total.cpu_refused.as_ref().or(recent.cpu_refused.as_ref());
            let (cpu_refused, is_refused) = (cpu_refused.cloned().map(Into::into), cpu_refused.is_some());
            let row = |(now, (counted, recent)): (&GroupRow, (&GroupRow, &GroupRow))| {
                Row::group(&GroupSpan { now, counted, recent, interval_ns, is_refused })
            };
            let parts = now.groups.iter().zip(total.groups.iter().zip(&recent.groups));
            let runtimes = recent.runtimes.iter().map(|row| Row::runtime(&RuntimeSpan { row, interval_ns }));
            let (coverage_percent, own) = (recent.coverage_percent(), recent.own);
            let notices = recent.notices().map(|notice| clean(&notice)).collect();
            let cpu_limits = recent.cpu_limits.clone();
            let (total, recent) = (total.unattributed_cpu_ns, recent.unattributed_cpu_ns);
            Inside {
                coverage_percent,
                cpu_refused,
                unattributed: Row::sum("(unattributed)", total, recent, interval_ns, is_refused),
                groups: sorted(parts.map(row).collect()),
                runtimes: runtimes.collect(),
                notices,
                cpu_limits,
                keys_on: now.keys_on,
                dropped: now.dropped,
                own,
            }
        });
        // Where there are groups, they have the events that the kernel does not show of threads.
        let (thread_events, mut of_groups): (Vec<String>, Vec<String>) =
            events.iter().cloned().partition(|event| inside.is_none() || Usage::has(event));
        // An event that the service refuses is not counted for groups either.
        let groups = inside.iter().flat_map(|inside| &inside.groups);
        of_groups.retain(|event| groups.clone().any(|group| group.count(event).is_some()));
        let threads = total.threads.iter().zip(&recent.threads);
        let threads = threads
            .map(|(total, recent)| Row::thread(&ThreadSpan { total, recent, has_ended: false, interval_ns }));
        let mut process = Row::sum("(process)", total.cpu_ns, recent.cpu_ns, interval_ns, false);
        process.counts = recent.usage.iter().flat_map(|usage| usage.counts(interval_ns)).collect();
        View {
            time_mono_ns: after.mono_ns,
            interval_ns,
            counted_ns: total.elapsed_ns,
            process,
            before_cpu_ns: first.cpu_ns,
            inside,
            threads: sorted(threads.collect()),
            events: events.to_vec(),
            thread_events,
            of_groups,
            no_waits: None,
        }
    }

    /// Whether CPU time of groups is refused.
    pub(crate) fn has_refused_cpu(&self) -> bool {
        self.inside.as_ref().is_some_and(|inside| inside.cpu_refused.is_some())
    }

    /// The groups, if there are any.
    pub(crate) fn groups(&self) -> &[Row] {
        self.inside.as_ref().map_or(&[], |inside| &inside.groups)
    }

    /// The rows below the groups: CPU time that no group's row shows.
    pub(crate) fn sums(&self) -> Vec<Row> {
        let unattributed = self.inside.iter().map(|inside| inside.unattributed.clone());
        let before = Row::total("(before)", self.before_cpu_ns);
        unattributed.chain([self.process.clone(), before]).collect()
    }

    /// The line about the process, in parts that make sense without those behind them.
    pub(crate) fn headline_parts(&self) -> Vec<String> {
        let percent = self.process.cpu_percent.unwrap_or_default();
        let mut parts = vec![
            format!(": {} % CPU", Digits::All.percent(percent)),
            format!(" over {}", short(self.interval_ns)),
        ];
        let limits = self.inside.iter().filter_map(|inside| inside.cpu_limits.as_ref());
        let throttled = limits.flat_map(|limits| &limits.groups).find(|limit| limit.is_notable());
        if let Some(percent) = throttled.and_then(CpuLimitRow::throttled_percent) {
            parts.push(format!(", throttled in {} % of its periods", Digits::All.percent(percent)));
        }
        match &self.inside {
            None => parts.push(", threads only, no dormouse in it".to_owned()),
            Some(Inside { coverage_percent, cpu_refused, keys_on, dropped, own, .. }) => {
                parts.push(format!(", {} on", count(*keys_on as u64, "key")));
                if *dropped > 0 {
                    parts.push(format!(", {} dropped", count(*dropped, "record")));
                }
                if let Some(percent) = coverage_percent {
                    parts.push(format!(", {} % in groups", Digits::All.percent(*percent)));
                }
                if let Some(own) = own {
                    let at_least = if own.is_whole() { "" } else { "at least " };
                    let percent = Digits::All.percent(own_percent(*own, self.interval_ns));
                    let memory = bytes::short(own.memory_bytes);
                    let at_most = if own.memory_is_most { "at most " } else { "" };
                    parts.push(format!(", dormouse costs {at_least}{percent} % and {at_most}{memory}"));
                }
                if let Some(why) = cpu_refused {
                    parts.push(format!(", CPU time of groups is refused: {}", clean(why)));
                }
            }
        }
        parts
    }

    pub(crate) fn headline(&self, who: &str) -> String {
        format!("{who}{}", self.headline_parts().concat())
    }

    /// Groups, the CPU time in no group, and the process that all of it sums up to.
    pub(crate) fn group_table(&self) -> Option<Table> {
        let inside = self.inside.as_ref()?;
        Some(table(group_columns(&self.events), inside.groups.iter().chain(&self.sums())))
    }

    /// Where the tasks of groups spend their time, if that is known.
    fn wait_table(&self) -> Option<Table> {
        let mut groups = self.groups().iter().filter(|row| row.has_waits).peekable();
        groups.peek()?;
        Some(table(wait_columns(), groups))
    }

    /// The runtimes that the service has shown, if there are any.
    fn runtime_table(&self) -> Option<Table> {
        let runtimes = self.inside.as_ref().map(|inside| &inside.runtimes)?;
        (!runtimes.is_empty()).then(|| table(runtime_columns(), runtimes))
    }

    /// The tables of groups and threads below a line about the process.
    pub(crate) fn text(&self, who: &str) -> String {
        let tables = self.group_table().into_iter().chain(self.wait_table()).chain(self.runtime_table());
        let groups: Vec<String> = tables.map(|table| table.render(HEAD) + "\n").collect();
        let threads = table(thread_columns(&self.thread_events), &self.threads).render(HEAD);
        let mut text = format!("{}\n{}{threads}", self.headline(who), groups.concat());
        if !self.of_groups.is_empty() {
            let events: Vec<String> = self.of_groups.iter().map(|event| clean(event)).collect();
            let _ = writeln!(text, "{DIM}{}: {OF_GROUPS}{DIM:#}", events.join(", "));
        }
        for notice in self.notices() {
            let _ = writeln!(text, "{DIM}{notice}{DIM:#}");
        }
        text
    }

    /// Sentences about what is wrong in the process.
    pub(crate) fn notices(&self) -> &[String] {
        self.inside.as_ref().map_or(&[], |inside| &inside.notices)
    }

    /// As JSON.
    pub(crate) fn document<'a>(&'a self, pid: u32, name: &'a str) -> Snapshot<'a> {
        let inside = self.inside.as_ref();
        Snapshot {
            kind: "snapshot",
            pid,
            name,
            time_mono_ns: self.time_mono_ns,
            interval_ns: self.interval_ns,
            counted_ns: self.counted_ns,
            process: self.process.in_document(GROUP_FIGURES, FigureJson::Top),
            before_cpu_ns: self.before_cpu_ns,
            unattributed: inside
                .map(|inside| inside.unattributed.in_document(GROUP_FIGURES, FigureJson::Top)),
            coverage_percent: inside.and_then(|inside| inside.coverage_percent),
            cpu_refused: inside.and_then(|inside| inside.cpu_refused.as_deref()),
            groups: inside.map(|inside| {
                inside.groups.iter().map(|row| Line::of(row, GROUP_FIGURES, &self.events)).collect()
            }),
            cpu_limits: inside.and_then(|inside| inside.cpu_limits.as_ref()),
            runtimes: inside.map_or_else(Vec::new, |inside| {
                let rows = inside.runtimes.iter();
                rows.map(|row| row.in_document(RUNTIME_FIGURES, FigureJson::Top)).collect()
            }),
            keys_on: inside.map(|inside| inside.keys_on),
            records_dropped: inside.map(|inside| inside.dropped),
            own: inside.and_then(|inside| {
                let cost = inside.own?;
                Some(Own { cpu_percent: own_percent(cost, self.interval_ns), cost })
            }),
            threads: self
                .threads
                .iter()
                .map(|row| Line::of(row, &THREAD_FIGURES, &self.thread_events))
                .collect(),
            of_groups_alone: (!self.of_groups.is_empty())
                .then_some(OfGroups { events: &self.of_groups, reason: OF_GROUPS }),
        }
    }
}

/// CPU time of dormouse's own, in percent of a CPU.
fn own_percent(own: OwnCost, interval_ns: u64) -> f64 {
    own.cpu_ns() as f64 / interval_ns.max(1) as f64 * 100.0
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by(Row::by_use);
    rows
}

/// The columns of groups, with those of events.
pub(crate) fn group_columns(events: &[String]) -> Vec<Column> {
    with_rates(Column::of_view(GROUP_FIGURES, FigureView::Top), events)
}

/// The columns of groups that show where their tasks spend their time. They cover the interval,
/// except the slowest request, which is since measuring began. The five times are parts of their
/// sum.
pub(crate) fn wait_columns() -> Vec<Column> {
    Column::of_view(GROUP_FIGURES, FigureView::TopWaits)
}

/// The columns of runtimes.
pub(crate) fn runtime_columns() -> Vec<Column> {
    Column::of_view(RUNTIME_FIGURES, FigureView::Runtimes)
}

/// The columns of threads, with those of events.
pub(crate) fn thread_columns(events: &[String]) -> Vec<Column> {
    with_rates(Column::of_view(&THREAD_FIGURES, FigureView::TopThreads), events)
}

fn with_rates(mut columns: Vec<Column>, events: &[String]) -> Vec<Column> {
    columns.extend(events.iter().map(|event| Column::rate(event)));
    columns
}

/// A view as JSON, one a line.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Snapshot<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    pid: u32,
    name: &'a str,
    time_mono_ns: u64,
    interval_ns: u64,
    counted_ns: u64,
    process: RowDocument<'a, GroupFigure>,
    before_cpu_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    unattributed: Option<RowDocument<'a, GroupFigure>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    coverage_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_refused: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<Line<'a, GroupFigure>>>,
    /// The runtimes that the service has shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runtimes: Vec<RowDocument<'a, RuntimeFigure>>,
    /// The CPU limits of its control groups, with the counts of the interval; null from services
    /// that do not read them.
    cpu_limits: Option<&'a CpuLimits>,
    keys_on: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    records_dropped: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<Own>,
    threads: Vec<Line<'a, ThreadFigure>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    of_groups_alone: Option<OfGroups<'a>>,
}

/// The cost of dormouse itself in the interval, in percent of a CPU and by its parts.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Own {
    /// The sum of the parts that are there; the use of another one is not known.
    cpu_percent: f64,
    #[serde(flatten)]
    cost: OwnCost,
}

/// A row with its events.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(bound = "")]
#[cfg_attr(test, schemars(inline, bound = "RowDocument<'a, Of>: schemars::JsonSchema"))]
struct Line<'a, Of: 'static> {
    #[serde(flatten)]
    row: RowDocument<'a, Of>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<Rate<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Rate<'a> {
    event: &'a str,
    /// Null where the event is not counted.
    per_s: Option<f64>,
}

/// Events that rows of threads and the process do not have.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OfGroups<'a> {
    events: &'a [String],
    reason: &'static str,
}

impl<'a, Of> Line<'a, Of> {
    fn of(row: &'a Row, figures: &'static [Figure<Of>], events: &'a [String]) -> Line<'a, Of> {
        let events = events.iter().map(|event| Rate { event, per_s: row.rate(event) });
        Line { row: row.in_document(figures, FigureJson::Top), events: events.collect() }
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! The figures of `stat` as text.

use std::fmt::Write as _;

use dormouse_protocol::figures::{CALL_FIGURES, FigureView, GROUP_FIGURES, ratio};
use dormouse_protocol::{PressureRow, Stat};

use super::account::{Account, Kind};
use crate::duration::short;
use crate::output::{DIM, HEAD};
use crate::render::column::{Column, Digits, ms, table};
use crate::render::row::Row;
use crate::render::table::Table;
use crate::render::threads::THREAD_FIGURES;
use crate::render::view::runtime_columns;
use crate::sample::OF_GROUPS;
use crate::sample::delta::Delta;
use crate::sample::events::TASK_CLOCK;
use crate::sample::tasks::TICK_NS;
use crate::sample::totals::{Usage, refusal};
use crate::text::clean;

/// The bound of the time that requests are queued.
const QUEUED: &str = "QUEUED is a lower bound for some requests: it is not known when the kernel received them, \
                      only when a worker looked";

/// The bounds of the table of times, whose buckets are of that scale.
fn times_bounds(scale: i32) -> String {
    let width = (f64::from(-scale).exp2().exp2() - 1.0) * 100.0;
    format!(
        "times of tasks are known from their first poll on, latencies of requests that began since; \
         P50, P90 and P99 are within {width:.1} %, up to 68 minutes; a latency begins when the request came, and \
         ends with the head of the response, as far as these are known"
    )
}

/// Why there may be no calls.
const NO_CALLS: &str =
    "no outgoing call has ended: calls are seen where the service wraps its clients (guide/calls.md)";

/// The bound of the times that threads wait for a CPU.
const RUNNABLE: &str = "threads are runnable while they wait for a CPU, by the kernel's account: a wait that goes on \
                        is not in it yet";

/// The sentence about threads that are missing in sums.
const BRIEF_THREADS: &str =
    "context switches, and waits for a CPU, of threads that came and went between two readings are missing";

/// The time between the readings of groups and of the process that needs no word.
const NOTABLE_SKEW_NS: u64 = 1_000_000;

/// The process's name, and how long it was watched.
pub(super) fn headline(who: &str, kind: Kind, delta: &Delta) -> String {
    let what = match kind {
        Kind::Interval => "in the last",
        Kind::Total { .. } => "in",
    };
    format!("{who}, {what} {}:", short(delta.elapsed_ns))
}

/// The process, its groups, its threads, and the error bounds of all that.
pub(super) fn account(head: &str, account: &Account<'_>) -> String {
    let delta = account.delta;
    let mut text = format!("{HEAD}{head}{HEAD:#}\n\n{}", process(delta).render(HEAD));
    if let Some(unattributed) = &account.unattributed {
        let mut columns = Column::of_view(GROUP_FIGURES, FigureView::Stat);
        columns.extend(account.events().map(Column::count));
        let rows = account.groups.iter().chain([unattributed, &account.process]);
        let _ = write!(text, "\n{}", table(columns, rows).render(HEAD));
    }
    let waiting = account.groups.iter().filter(|row| row.has_waits);
    if waiting.clone().next().is_some() {
        let _ = write!(
            text,
            "\n{}",
            table(Column::of_view(GROUP_FIGURES, FigureView::StatWaits), waiting).render(HEAD)
        );
    }
    let columns = Column::of_view(GROUP_FIGURES, FigureView::StatBodies);
    let is_used = |row: &&Row| columns.iter().any(|column| column.is_used(row));
    let bodies: Vec<&Row> = account.groups.iter().filter(is_used).collect();
    if !bodies.is_empty() {
        let _ = write!(text, "\n{}", table(columns, bodies).render(HEAD));
    }
    if let Some(calls) = account.calls.as_ref().filter(|calls| !calls.is_empty()) {
        let columns = Column::of_view(CALL_FIGURES, FigureView::Calls);
        let _ = write!(text, "\n{}", table(columns, calls).render(HEAD));
    }
    if !account.runtimes.is_empty() {
        let _ = write!(text, "\n{}", table(runtime_columns(), &account.runtimes).render(HEAD));
    }
    let others = delta.others_ns();
    // Below that it is the difference between the readings of two clocks.
    let others = (others > TICK_NS).then(|| Row::threads("(others)", others, delta.elapsed_ns));
    let rows = account.threads.iter().chain(&others);
    let _ = write!(
        text,
        "\n{}",
        table(Column::of_view(&THREAD_FIGURES, FigureView::StatThreads), rows).render(HEAD)
    );
    for line in bounds(account) {
        let _ = writeln!(text, "{DIM}{line}{DIM:#}");
    }
    text.push('\n');
    text
}

fn process(delta: &Delta) -> Table {
    let mut table = figures();
    let cpus = format!("{:.3} CPUs used", ratio(delta.cpu_ns, delta.elapsed_ns));
    figure(&mut table, ms(delta.cpu_ns), "ms", "CPU time", cpus);
    for (percent, of) in [
        (delta.inside.as_ref().and_then(Stat::coverage_percent), "CPU time in groups"),
        (delta.inside.as_ref().and_then(Stat::poll_coverage_percent), "polls of tasks in groups"),
    ] {
        if let Some(percent) = percent {
            figure(&mut table, Digits::All.percent(percent), "%", of, "");
        }
    }
    if let Some(ns) = delta.runnable_ns() {
        figure(&mut table, ms(ns), "ms", "runnable", "its threads waited for a CPU");
    }
    let limits = delta.inside.iter().filter_map(|inside| inside.cpu_limits.as_ref());
    for limit in limits.flat_map(|limits| &limits.groups) {
        if let Some(percent) = limit.throttled_percent() {
            let of = format!(
                "of {} active periods, limit {} CPU in {}",
                limit.periods,
                limit.cpus(),
                clean(&limit.path)
            );
            figure(&mut table, Digits::All.percent(percent), "%", "throttled", of);
        }
    }
    let pressure = delta.inside.as_ref().and_then(|inside| inside.pressure).unwrap_or_default();
    for (of, row) in [("its control group", pressure.group), ("the host", pressure.host)] {
        for (resource, ns) in row.into_iter().flat_map(PressureRow::notable) {
            let note = format!("all tasks of {of} waited for {resource} at once");
            figure(&mut table, ms(ns), "ms", "full pressure", note);
        }
    }
    usage_figures(&mut table, delta.usage.as_ref());
    if let Some(bytes) = delta.max_rss_bytes {
        figure(&mut table, mib(bytes), "MiB", "maximum resident size", "since its start");
    }
    table
}

/// An empty table of figures, one a row.
pub(super) fn figures() -> Table {
    Table::new([">VALUE", "UNIT", "OF", ""])
}

/// Adds a figure to a table of them.
pub(super) fn figure(table: &mut Table, value: String, unit: &str, of: &str, note: impl Into<String>) {
    table.row([value, unit.to_owned(), of.to_owned(), note.into()]);
}

/// Adds CPU modes, switches and faults.
pub(super) fn usage_figures(table: &mut Table, usage: Option<&Usage>) {
    let Some(usage) = usage else { return };
    figure(table, ms(usage.user_ns), "ms", "user mode", "");
    figure(table, ms(usage.system_ns), "ms", "kernel mode", "");
    let involuntary = format!("{} involuntary", usage.involuntary_switches);
    figure(table, usage.switches().to_string(), "", "context switches", involuntary);
    let major = format!("{} major", usage.major_faults);
    figure(table, usage.faults().to_string(), "", "page faults", major);
}

/// How far the CPU times may be from the truth.
fn bounds(account: &Account<'_>) -> Vec<String> {
    let Account { source, delta, .. } = account;
    let mut lines = vec![if source.has_agent() {
        "CPU time of the process and its threads is the kernel's own".to_owned()
    } else {
        format!(
            "CPU time is the kernel's as of its last tick: up to {} less for each thread that runs",
            short(TICK_NS)
        )
    }];
    lines.extend(match delta.runnable_ns() {
        Some(_) => Some(RUNNABLE.to_owned()),
        None if account.threads.is_empty() => None,
        None => {
            Some("the time that threads waited for a CPU is unknown: dormouse doctor shows why".to_owned())
        }
    });
    let limits = delta.inside.as_ref().and_then(|inside| inside.cpu_limits.as_ref());
    if let Some(why) = limits.and_then(|limits| limits.unknown.as_ref()) {
        lines.push(format!("whether it is throttled at a CPU limit is unknown: {}", clean(why)));
    }
    if delta.others_ns() > TICK_NS {
        lines.push(BRIEF_THREADS.to_owned());
    }
    if delta.usage.is_some() {
        lines.push(format!("user and kernel mode are counted in ticks of {}", short(TICK_NS)));
    }
    match &source.clock {
        Some(clock) if clock.error_bound_ns > 0 => lines.push(format!(
            "CPU time of groups is by {}: within {} for each thread that has run them",
            clean(&clock.tier),
            short(clock.error_bound_ns)
        )),
        Some(clock) => lines.push(format!("CPU time of groups is by {}", clean(&clock.tier))),
        None if !source.has_agent() => {
            lines.push("threads only: it has no dormouse in it, and so no groups".into());
        }
        None => {}
    }
    lines.extend(delta.inside.as_ref().and_then(refusal));
    lines.extend(delta.inside.iter().flat_map(Stat::notices).map(|notice| clean(&notice)));
    let groups = delta.inside.as_ref();
    let waits =
        groups.iter().flat_map(|inside| inside.groups.iter().filter_map(|group| group.waits.as_ref()));
    if let Some(scale) = waits.clone().map(|waits| waits.requests.scale).min() {
        lines.push(times_bounds(scale));
    }
    if waits.filter_map(|waits| waits.queue).any(|queue| queue.received < queue.requests) {
        lines.push(QUEUED.to_owned());
    }
    if account.calls.as_ref().is_some_and(Vec::is_empty) {
        lines.push(NO_CALLS.to_owned());
    }
    let alone = events_of_groups(account);
    if groups.is_some() && !alone.is_empty() {
        lines.push(format!("{}: {OF_GROUPS}", alone.join(", ")));
    }
    if let Some(inside) = groups.filter(|inside| inside.took_ns > NOTABLE_SKEW_NS) {
        let skew = short(inside.took_ns);
        lines.push(format!("groups were read up to {skew} before the process: the machine is busy"));
    }
    lines
}

/// Events whose columns are empty in the row of the process, and not there for threads.
fn events_of_groups(account: &Account<'_>) -> Vec<String> {
    let names = account.source.counted.counted.iter().map(|event| event.name.as_str());
    names.filter(|name| *name != TASK_CLOCK && account.process.count(name).is_none()).map(clean).collect()
}

pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1_048_576.0)
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::TaskPolls;

    use super::*;
    use crate::render::column::NOT_COUNTED;
    use crate::sample::source::Source;
    use crate::sample::totals::Sample;

    #[test]
    fn polls_in_groups_have_a_figure() {
        let with = |polls| Sample { inside: Some(Stat { polls, ..Stat::default() }), ..Sample::default() };
        let polls = TaskPolls { all: 8, in_groups: 6 };
        let source = Source::fake(&[], None);
        let text = account("", &Account::of(&source, &Delta::between(&with(None), &with(Some(polls)), &[])));
        let line = text.lines().find(|line| line.contains("polls of tasks in groups"));
        assert!(line.is_some_and(|line| line.contains("75")), "{text}");
        let text = account("", &Account::of(&source, &Delta::between(&with(None), &with(None), &[])));
        assert!(!text.contains("polls of tasks"), "{text}");
    }

    #[test]
    fn sums_name_the_threads_they_lack() {
        let source = Source::fake(&[], None);
        let text = |cpu_ns| {
            let later = Sample { cpu_ns, ..Sample::default() };
            account("", &Account::of(&source, &Delta::between(&Sample::default(), &later, &[])))
        };
        assert_eq!([TICK_NS, TICK_NS + 1].map(|ns| text(ns).contains(BRIEF_THREADS)), [false, true]);
    }

    #[test]
    fn sums_have_a_word_for_each_event() {
        let sample =
            Sample { usage: Some(Usage::default()), inside: Some(Stat::default()), ..Sample::default() };
        let source = Source::fake(&["page-faults", "alloc-bytes"], None);
        let later = Sample { mono_ns: 1, ..sample.clone() };
        let text = account("", &Account::of(&source, &Delta::between(&sample, &later, &[])));
        let words = |name: &str| {
            let row = text.lines().find(|line| line.starts_with(name)).expect("a row");
            row.matches(NOT_COUNTED).count()
        };
        assert_eq!((words("(unattributed)"), words("(process)")), (2, 1), "{text}");
    }

    #[test]
    fn events_of_groups_alone_are_named() {
        let text = |events: &[&str], inside: Option<Stat>| {
            let sample = Sample { usage: Some(Usage::default()), inside, ..Sample::default() };
            let source = Source::fake(events, None);
            account("", &Account::of(&source, &Delta::between(&sample, &sample, &[])))
        };
        let inside = || Some(Stat::default());
        let events = ["task-clock", "page-faults", "alloc-count", "alloc-bytes"];
        assert!(text(&events, inside()).contains(&format!("alloc-count, alloc-bytes: {OF_GROUPS}")));
        assert!(!text(&events[..2], inside()).contains(OF_GROUPS));
        assert!(!text(&events, None).contains(OF_GROUPS), "there are no groups");
    }
}

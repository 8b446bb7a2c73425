//! What was counted, as text.

use std::fmt::Write as _;

use dormouse::wire::{Count, EventInfo};

use super::json::{Kind, ratio};
use crate::duration::short;
use crate::output::{DIM, HEAD};
use crate::sample::Source;
use crate::sample::events::TASK_CLOCK;
use crate::sample::spent::{Spent, SpentInside, SpentThread};
use crate::sample::tasks::{TICK_NS, Usage};
use crate::text::{Align, Table, clean};

/// What stands where nothing could be counted.
pub(super) const NOT_COUNTED: &str = "<not counted>";

/// What the looks at groups and at the process may be apart without a word.
const NOTABLE_SKEW_NS: u64 = 1_000_000;

/// Who was looked at, and how long.
pub(super) fn headline(who: &str, kind: Kind, spent: &Spent) -> String {
    let what = match kind {
        Kind::Interval => "in the last",
        Kind::Total { .. } => "in",
    };
    format!("{who}, {what} {}:", short(spent.elapsed_ns))
}

/// The process, its groups, its threads, and what all that is worth.
pub(super) fn account(head: &str, source: &Source, spent: &Spent) -> String {
    let mut text = format!("{HEAD}{head}{HEAD:#}\n\n{}", process(spent).render(HEAD));
    if let Some(inside) = &spent.inside {
        let _ = write!(text, "\n{}", groups(source, inside, spent).render(HEAD));
    }
    let _ = write!(text, "\n{}", threads(spent).render(HEAD));
    for line in worth(source, spent) {
        let _ = writeln!(text, "{DIM}{line}{DIM:#}");
    }
    text.push('\n');
    text
}

fn process(spent: &Spent) -> Table {
    let mut table = figures();
    table.row([
        ms(spent.cpu_ns),
        "ms".into(),
        "CPU time".into(),
        format!("{:.3} CPUs used", ratio(spent.cpu_ns, spent.elapsed_ns)),
    ]);
    if let Some(usage) = &spent.usage {
        for row in usage_rows(usage) {
            table.row(row);
        }
    }
    if let Some(bytes) = spent.max_rss_bytes {
        table.row([mib(bytes), "MiB".into(), "maximum resident size".into(), "since its start".into()]);
    }
    table
}

/// An empty table of figures, one a row.
pub(super) fn figures() -> Table {
    Table::new([("VALUE", Align::Right), ("UNIT", Align::Left), ("OF", Align::Left), ("", Align::Left)])
}

fn usage_rows(usage: &Usage) -> [Vec<String>; 4] {
    let switches = usage.voluntary + usage.involuntary;
    let faults = usage.minor_faults + usage.major_faults;
    [
        vec![ms(usage.user_ns), "ms".into(), "user mode".into()],
        vec![ms(usage.system_ns), "ms".into(), "kernel mode".into()],
        vec![
            switches.to_string(),
            String::new(),
            "context switches".into(),
            format!("{} involuntary", usage.involuntary),
        ],
        vec![
            faults.to_string(),
            String::new(),
            "page faults".into(),
            format!("{} major", usage.major_faults),
        ],
    ]
}

fn groups(source: &Source, inside: &SpentInside, spent: &Spent) -> Table {
    let events = columns(source);
    let mut heads = vec![("GROUP".to_owned(), Align::Left)];
    heads.extend(["CPU ms", "CPU %", "POLLS", "ENDED"].map(|head| (head.to_owned(), Align::Right)));
    heads.extend(events.iter().map(|event| (head(event), Align::Right)));
    let mut table = Table::new(heads);
    for group in &inside.groups {
        let mut row = vec![clean(&group.name), ms(group.cpu_ns), percent(group.cpu_ns, spent)];
        row.extend([group.polls.to_string(), group.finished.to_string()]);
        let counted =
            |event: &EventInfo| group.counts.iter().find(|count| count.event == event.name).cloned();
        row.extend(events.iter().map(|event| cell(event, counted(event))));
        table.row(row);
    }
    table.row(["(unattributed)".into(), ms(inside.unattributed_ns), percent(inside.unattributed_ns, spent)]);
    let mut row = vec!["(process)".into(), ms(spent.cpu_ns), percent(spent.cpu_ns, spent)];
    row.extend([String::new(), String::new()]);
    // Where the kernel does not tell, it is no sum of what groups tell either.
    row.extend(
        events.iter().map(|event| spent.count(&event.name).map_or(String::new(), |c| cell(event, Some(c)))),
    );
    table.row(row);
    table
}

/// The events that have a column of their own: the CPU time has one anyway.
fn columns(source: &Source) -> Vec<&EventInfo> {
    let counted = source.counted();
    counted.counted.iter().chain(&counted.refused).filter(|event| event.name != TASK_CLOCK).collect()
}

fn head(event: &EventInfo) -> String {
    let name = clean(&event.name);
    match event.unit.as_str() {
        "1" | "" => name,
        "ns" => format!("{name} ms"),
        unit if name.contains(unit) => name,
        unit => format!("{name} {}", clean(unit)),
    }
}

/// A count; of one that did not run all the time, how much of it.
fn cell(event: &EventInfo, count: Option<Count>) -> String {
    let Some(count) = count.filter(|_| event.unavailable.is_none()) else { return NOT_COUNTED.into() };
    let value = if event.unit == "ns" { ms(count.value) } else { count.value.to_string() };
    if count.running_ns >= count.enabled_ns {
        return value;
    }
    match count.running_ns {
        0 => NOT_COUNTED.into(),
        running => format!("{value} ({:.0} %)", ratio(running, count.enabled_ns) * 100.0),
    }
}

fn threads(spent: &Spent) -> Table {
    let mut table = Table::new([
        ("THREAD", Align::Left),
        ("TID", Align::Right),
        ("CPU ms", Align::Right),
        ("CPU %", Align::Right),
        ("USER ms", Align::Right),
        ("KERNEL ms", Align::Right),
        ("SWITCHES", Align::Right),
        ("INVOLUNTARY", Align::Right),
        ("FAULTS", Align::Right),
    ]);
    for thread in &spent.threads {
        let mut row =
            vec![name(thread), thread.tid.to_string(), ms(thread.cpu_ns), percent(thread.cpu_ns, spent)];
        if let Some(usage) = &thread.usage {
            row.extend([ms(usage.user_ns), ms(usage.system_ns)]);
            let numbers = [
                usage.voluntary + usage.involuntary,
                usage.involuntary,
                usage.minor_faults + usage.major_faults,
            ];
            row.extend(numbers.map(|n| n.to_string()));
        }
        table.row(row);
    }
    // Below that it is what the looks at two clocks differ by.
    if spent.others_ns > TICK_NS {
        table.row(["(others)".into(), String::new(), ms(spent.others_ns), percent(spent.others_ns, spent)]);
    }
    table
}

fn name(thread: &SpentThread) -> String {
    let name = clean(&thread.name);
    if thread.has_ended { format!("{name} (ended)") } else { name }
}

/// What the CPU times are worth.
fn worth(source: &Source, spent: &Spent) -> Vec<String> {
    let mut lines = vec![if source.has_agent() {
        "CPU time of the process and its threads is the kernel's own".to_owned()
    } else {
        format!(
            "CPU time is the kernel's as of its last tick: up to {} less for each thread that runs",
            short(TICK_NS)
        )
    }];
    if spent.usage.is_some() {
        lines.push(format!("user and kernel mode are counted in ticks of {}", short(TICK_NS)));
    }
    match source.clock() {
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
    if let Some(inside) = spent.inside.as_ref().filter(|inside| inside.skew_ns > NOTABLE_SKEW_NS) {
        let skew = short(inside.skew_ns);
        lines.push(format!("groups were looked at up to {skew} before the process: the machine is busy"));
    }
    lines
}

pub(super) fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1_048_576.0)
}

fn percent(ns: u64, spent: &Spent) -> String {
    format!("{:.1}", ratio(ns, spent.elapsed_ns) * 100.0)
}

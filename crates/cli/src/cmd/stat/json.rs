//! What was counted, as JSON: an object an interval and one in all, with what each number is worth.

use dormouse::wire::{Count, EventInfo};
use serde::Serialize;

use super::text;
use crate::exit::Outcome;
use crate::output::Context;
use crate::sample::spent::{Spent, SpentGroup, SpentThread};
use crate::sample::tasks::{TICK_NS, Usage};
use crate::sample::{Source, refused};

/// Which time the figures are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Interval,
    Total {
        /// The process is gone.
        has_ended: bool,
    },
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    pid: u32,
    name: &'a str,
    /// Whether the process has ended.
    ended: bool,
    #[serde(flatten)]
    account: Account<'a>,
}

/// What was used, in the process and in its parts.
#[derive(Serialize)]
pub(super) struct Account<'a> {
    elapsed_ns: u64,
    clock: Worth<'a>,
    process: Process<'a>,
    /// Null of a process without dormouse.
    groups: Option<Vec<Group<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unattributed_cpu_ns: Option<u64>,
    threads: Vec<Thread<'a>>,
    /// Of threads that came and went between two looks.
    other_threads_cpu_ns: u64,
}

/// How far the CPU times may be from the truth.
#[derive(Serialize)]
struct Worth<'a> {
    /// Of the process for each thread that runs, and of each such thread.
    thread_error_bound_ns: u64,
    /// How groups are charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    group_tier: Option<&'a str>,
    /// Of a group for each thread that has run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    group_error_bound_ns: Option<u64>,
    /// How far apart the looks at groups and at the process were.
    #[serde(skip_serializing_if = "Option::is_none")]
    group_skew_ns: Option<u64>,
}

#[derive(Serialize)]
struct Process<'a> {
    cpu_ns: u64,
    cpus_used: f64,
    #[serde(flatten)]
    usage: Option<UsageFields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_rss_bytes: Option<u64>,
    counts: Vec<Counted<'a>>,
}

#[derive(Serialize)]
pub(super) struct UsageFields {
    user_ns: u64,
    system_ns: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
    minor_faults: u64,
    major_faults: u64,
}

#[derive(Serialize)]
struct Group<'a> {
    id: u32,
    name: &'a str,
    cpu_ns: u64,
    cpu_percent: f64,
    polls: u64,
    alive: u64,
    started: u64,
    finished: u64,
    counts: Vec<Counted<'a>>,
}

#[derive(Serialize)]
struct Thread<'a> {
    tid: u32,
    name: &'a str,
    ended: bool,
    cpu_ns: u64,
    cpu_percent: f64,
    #[serde(flatten)]
    usage: Option<UsageFields>,
}

/// An event's count, or why there is none: never 0 for that.
#[derive(Serialize)]
struct Counted<'a> {
    event: &'a str,
    unit: &'a str,
    value: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// Prints what was used, in the form that was asked for.
pub(super) fn print_or(context: &mut Context, kind: Kind, source: &Source, spent: &Spent) -> Outcome<()> {
    if !context.json {
        let head = text::headline(source.who(), kind, spent);
        return context.text(text::account(&head, source, spent));
    }
    let (kind, ended) = match kind {
        Kind::Interval => ("interval", false),
        Kind::Total { has_ended } => ("total", has_ended),
    };
    let account = Account::of(source, spent);
    context.document(&Document { kind, pid: source.pid(), name: source.name(), ended, account })
}

impl<'a> Account<'a> {
    pub(super) fn of(source: &'a Source, spent: &'a Spent) -> Account<'a> {
        let clock = source.clock();
        Account {
            elapsed_ns: spent.elapsed_ns,
            clock: Worth {
                thread_error_bound_ns: if source.has_agent() { 0 } else { TICK_NS },
                group_tier: clock.map(|clock| clock.tier.as_str()),
                group_error_bound_ns: clock.map(|clock| clock.error_bound_ns),
                group_skew_ns: spent.inside.as_ref().map(|inside| inside.skew_ns),
            },
            process: Process {
                cpu_ns: spent.cpu_ns,
                cpus_used: ratio(spent.cpu_ns, spent.elapsed_ns),
                usage: spent.usage.map(UsageFields::from),
                max_rss_bytes: spent.max_rss_bytes,
                counts: counts(source, |event| spent.count(event), "counted for groups alone"),
            },
            groups: spent
                .inside
                .as_ref()
                .map(|inside| inside.groups.iter().map(|group| Group::of(source, group, spent)).collect()),
            unattributed_cpu_ns: spent.inside.as_ref().map(|inside| inside.unattributed_ns),
            threads: spent.threads.iter().map(|thread| Thread::of(thread, spent)).collect(),
            other_threads_cpu_ns: spent.others_ns,
        }
    }
}

impl<'a> Group<'a> {
    fn of(source: &'a Source, group: &'a SpentGroup, spent: &Spent) -> Group<'a> {
        let counted = |event: &str| group.counts.iter().find(|count| count.event == event).cloned();
        Group {
            id: group.id,
            name: &group.name,
            cpu_ns: group.cpu_ns,
            cpu_percent: ratio(group.cpu_ns, spent.elapsed_ns) * 100.0,
            polls: group.polls,
            alive: group.alive,
            started: group.started,
            finished: group.finished,
            counts: counts(source, counted, "the service told no count"),
        }
    }
}

impl<'a> Thread<'a> {
    fn of(thread: &'a SpentThread, spent: &Spent) -> Thread<'a> {
        Thread {
            tid: thread.tid,
            name: &thread.name,
            ended: thread.has_ended,
            cpu_ns: thread.cpu_ns,
            cpu_percent: ratio(thread.cpu_ns, spent.elapsed_ns) * 100.0,
            usage: thread.usage.map(UsageFields::from),
        }
    }
}

impl From<Usage> for UsageFields {
    fn from(usage: Usage) -> UsageFields {
        UsageFields {
            user_ns: usage.user_ns,
            system_ns: usage.system_ns,
            voluntary_switches: usage.voluntary,
            involuntary_switches: usage.involuntary,
            minor_faults: usage.minor_faults,
            major_faults: usage.major_faults,
        }
    }
}

/// Every event that was asked for: `of` it, or why not.
fn counts<'a>(
    source: &'a Source,
    of: impl Fn(&str) -> Option<Count>,
    otherwise: &'a str,
) -> Vec<Counted<'a>> {
    let counted = source.counted().counted.iter().map(|event| match of(&event.name) {
        Some(count) => Counted {
            event: &event.name,
            unit: &event.unit,
            value: Some(count.value),
            enabled_ns: Some(count.enabled_ns),
            running_ns: Some(count.running_ns),
            reason: None,
        },
        None => not_counted(event, otherwise),
    });
    let refused = source.counted().refused.iter().map(|event| not_counted(event, refused(event)));
    counted.chain(refused).collect()
}

fn not_counted<'a>(event: &'a EventInfo, reason: &'a str) -> Counted<'a> {
    let (event, unit) = (event.name.as_str(), event.unit.as_str());
    Counted { event, unit, value: None, enabled_ns: None, running_ns: None, reason: Some(reason) }
}

pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

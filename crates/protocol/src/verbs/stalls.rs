//! Stalled time of a group by its causes: a part of the answer to `stat`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::bounded::at_most;

/// Less stalled time in a hundred is no reason to change anything.
const NOTABLE_PERCENT: f64 = 1.0;

/// The most calls and states of a group: a service distinguishes nine.
const MOST_CALLS: usize = 16;

/// The causes that a sentence names.
const NAMED: usize = 3;

/// The advice for a service that a CPU limit throttles.
pub(super) const FOR_LIMIT: &str =
    "raise the limit (cpu.max; in Kubernetes resources.limits.cpu), or let fewer threads run at once";

const FOR_CPU: &str = "let fewer threads run at once (worker_threads of the runtime), or give them more CPUs";

/// Calls on files.
const ON_FILES: [&str; 13] = [
    "fsync",
    "fdatasync",
    "sync_file_range",
    "msync",
    "read",
    "readv",
    "pread64",
    "write",
    "writev",
    "pwrite64",
    "openat",
    "fallocate",
    "ftruncate",
];

/// Calls and states in which nobody waits for work.
const NEVER_FOR_WORK: [&str; 11] = [
    "fsync",
    "fdatasync",
    "sync_file_range",
    "msync",
    "pread64",
    "write",
    "writev",
    "pwrite64",
    "fallocate",
    "ftruncate",
    "page fault",
];

/// The setting to change where polls sleep in this call or state.
fn remedy(call: &str) -> &'static str {
    match call {
        "futex" => "look at `dormouse locks`: it names who holds the locks of dormouse::sync",
        "page fault" => {
            "keep its memory there: raise the limit (memory.max; in Kubernetes resources.limits.memory), or turn \
             off swap"
        }
        _ if ON_FILES.contains(&call) => {
            "hand work on files to spawn_blocking (dormouse::tokio::fs), or move them to a faster disk"
        }
        _ => "hand calls that block to spawn_blocking, or use a form of them that is awaited",
    }
}

/// The stalled time of one group by its causes, as far as these are known: lower bounds, in
/// nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StallsRow {
    /// Polls of the group waited for a CPU.
    pub cpu_wait_ns: u64,
    /// The part of that for which a CPU limit may be the reason, an upper bound; absent where no
    /// limit can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_ns: Option<u64>,
    /// Polls of the group slept in the kernel.
    pub asleep_ns: u64,
    /// The part of that in which they waited for block devices; absent where the kernel does not
    /// count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_io_ns: Option<u64>,
    /// Major page faults of these polls, for which the kernel read memory from a disk or elsewhere:
    /// those of windows that the group's polls filled. Absent from services that do not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major_faults: Option<u64>,
    /// The names of the system calls in which they slept, `page fault`, and `other`; each with its
    /// time.
    #[serde(
        default,
        deserialize_with = "at_most::<MOST_CALLS, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub within: Vec<(Cow<'static, str>, u64)>,
    /// The part of that in work that was entered by hand (scopes, threads, runs) and is no part of
    /// a request: it may have waited for work. Empty from services that do not distinguish it.
    #[serde(
        default,
        deserialize_with = "at_most::<MOST_CALLS, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub by_hand: Vec<(Cow<'static, str>, u64)>,
}

impl StallsRow {
    pub(super) fn since(&self, before: &Self) -> Self {
        let part = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before.unwrap_or(0)));
        let sums = |now: &[(Cow<'static, str>, u64)], before: &[(Cow<'static, str>, u64)]| {
            let since = now.iter().map(|(name, ns)| (name.clone(), ns.saturating_sub(in_call(before, name))));
            since.filter(|(_, ns)| *ns > 0).collect()
        };
        Self {
            cpu_wait_ns: self.cpu_wait_ns.saturating_sub(before.cpu_wait_ns),
            throttled_ns: part(self.throttled_ns, before.throttled_ns),
            asleep_ns: self.asleep_ns.saturating_sub(before.asleep_ns),
            block_io_ns: part(self.block_io_ns, before.block_io_ns),
            major_faults: part(self.major_faults, before.major_faults),
            within: sums(&self.within, &before.within),
            by_hand: sums(&self.by_hand, &before.by_hand),
        }
    }

    /// The stalled time whose cause is known.
    pub fn known_ns(&self) -> u64 {
        self.cpu_wait_ns.saturating_add(self.asleep_ns)
    }

    /// The sleep that may have been a wait for work, by call: of work that was entered by hand.
    fn idle(&self) -> impl Iterator<Item = &(Cow<'static, str>, u64)> {
        self.by_hand.iter().filter(|(call, _)| !NEVER_FOR_WORK.contains(&&**call))
    }

    /// The stalled time whose cause is known, without sleep that may have been a wait for work.
    pub fn known_busy_ns(&self) -> u64 {
        self.known_ns().saturating_sub(self.idle().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns)))
    }

    /// How much the threads of a group of this name slept where they may have waited for work, in a
    /// time of that length; `None` if they hardly did.
    pub fn idle_notice(&self, name: &str, length_ns: u64) -> Option<String> {
        let idle_ns = self.known_ns() - self.known_busy_ns();
        let percent = |ns: u64| 100.0 * ns as f64 / length_ns.max(1) as f64;
        let mut parts: Vec<_> = self.idle().collect();
        parts.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let named = parts.iter().take(NAMED).map(|(call, ns)| format!("{:.0} % in {call}", percent(*ns)));
        let named: Vec<String> = named.collect();
        (percent(idle_ns) >= NOTABLE_PERCENT).then(|| {
            format!(
                "{name}: its threads and scopes slept for {:.0} % of the time: {}; no request is known to have \
                 waited for that, so they may have had nothing to do",
                percent(idle_ns),
                named.join(", ")
            )
        })
    }

    /// The causes for which polls of a group of this name stalled in a time of that length, in one
    /// sentence, and the setting to change; `None` if they hardly stalled. Sleep that may have been
    /// a wait for work is left out.
    pub fn notice(&self, name: &str, length_ns: u64) -> Option<(String, String)> {
        let percent = |ns: u64| 100.0 * ns as f64 / length_ns.max(1) as f64;
        let all = percent(self.known_busy_ns());
        if all < NOTABLE_PERCENT {
            return None;
        }
        let throttled_ns = self.throttled_ns.unwrap_or(0).min(self.cpu_wait_ns);
        let idle: Vec<_> = self.idle().cloned().collect();
        let mut parts: Vec<(Cow<'_, str>, u64, &str)> = self
            .within
            .iter()
            .map(|(call, ns)| {
                (format!("in {call}").into(), ns.saturating_sub(in_call(&idle, call)), remedy(call))
            })
            .chain([
                ("throttled by a CPU limit".into(), throttled_ns, FOR_LIMIT),
                ("waiting for a CPU".into(), self.cpu_wait_ns - throttled_ns, FOR_CPU),
            ])
            .filter(|(_, ns, _)| *ns > 0)
            .collect();
        parts.sort_by_key(|(_, ns, _)| std::cmp::Reverse(*ns));
        let (_, _, remedy) = *parts.first()?;
        let named = parts.iter().take(NAMED).map(|(what, ns, _)| format!("{:.0} % {what}", percent(*ns)));
        let named: Vec<String> = named.collect();
        let sentence = format!("{name}: its polls stalled for {all:.0} % of the time: {}", named.join(", "));
        Some((sentence, format!("for {name}: {remedy}")))
    }

    /// The call or state in which the polls slept most, with its time.
    pub fn most(&self) -> Option<&(Cow<'static, str>, u64)> {
        self.within.iter().max_by_key(|(_, ns)| *ns)
    }
}

/// The time in a call.
fn in_call(within: &[(Cow<'static, str>, u64)], name: &str) -> u64 {
    within.iter().find(|(of, _)| of == name).map_or(0, |(_, ns)| *ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_largest_cause_has_its_remedy() {
        let row = |cpu_wait: u64, throttled: Option<u64>, within: &[(&'static str, u64)]| StallsRow {
            cpu_wait_ns: cpu_wait * MS,
            throttled_ns: throttled.map(|ms| ms * MS),
            asleep_ns: within.iter().map(|(_, ms)| ms * MS).sum(),
            within: within.iter().map(|(call, ms)| ((*call).into(), ms * MS)).collect(),
            ..StallsRow::default()
        };
        let notice = |row: StallsRow| row.notice("GET /a", 1000 * MS);
        assert_eq!(notice(row(5, None, &[("futex", 4)])), None, "less than a hundredth");
        let (sentence, remedy) =
            notice(row(90, Some(80), &[("futex", 300), ("fsync", 20), ("other", 1)])).unwrap();
        assert_eq!(
            sentence,
            "GET /a: its polls stalled for 41 % of the time: 30 % in futex, 8 % throttled by a CPU limit, 2 % in fsync"
        );
        assert!(remedy.starts_with("for GET /a: look at `dormouse locks`"), "{remedy}");
        for (row, part) in [
            (row(90, Some(80), &[]), "raise the limit (cpu.max"),
            (row(90, Some(10), &[]), "worker_threads"),
            // Where no limit is seen, nobody is throttled by one.
            (row(90, None, &[]), "worker_threads"),
            (row(0, None, &[("page fault", 50)]), "memory.max"),
            (row(0, None, &[("fdatasync", 50)]), "dormouse::tokio::fs"),
            (row(0, None, &[("poll", 50)]), "is awaited"),
        ] {
            let (sentence, remedy) = notice(row).unwrap();
            assert!(remedy.contains(part), "{sentence}; {remedy}");
        }
    }

    #[test]
    fn a_wait_for_work_is_no_stall() {
        let named =
            |of: &[(&'static str, u64)]| of.iter().map(|(call, ms)| ((*call).into(), ms * MS)).collect();
        let row = |within: &[(&'static str, u64)], by_hand: &[(&'static str, u64)]| StallsRow {
            asleep_ns: within.iter().map(|(_, ms)| ms * MS).sum(),
            within: named(within),
            by_hand: named(by_hand),
            ..StallsRow::default()
        };
        let told = |row: &StallsRow| {
            let (notice, idle) = (row.notice("rows", 1000 * MS), row.idle_notice("rows", 1000 * MS));
            (notice.map(|(sentence, _)| sentence), idle)
        };
        let (notice, idle) = told(&row(&[("futex", 990), ("read", 4)], &[("futex", 990), ("read", 4)]));
        let idle = idle.unwrap();
        assert_eq!(notice, None, "{idle}");
        assert!(idle.starts_with("rows: its threads and scopes slept for 99 % of the time: 99 % in futex,"));
        // Nobody waits for work in a file.
        let (notice, idle) = told(&row(&[("futex", 700), ("fsync", 200)], &[("futex", 700), ("fsync", 200)]));
        assert!(notice.unwrap().ends_with(" 20 % of the time: 20 % in fsync"));
        assert!(idle.unwrap().contains(" 70 % of the time: 70 % in futex;"));
        // Some of it was in polls.
        let (notice, idle) = told(&row(&[("futex", 700)], &[("futex", 300)]));
        assert!(notice.unwrap().ends_with(" 40 % of the time: 40 % in futex"));
        assert!(idle.unwrap().contains(" 30 % in futex;"));
        let since =
            row(&[("futex", 700)], &[("futex", 300)]).since(&row(&[("futex", 650)], &[("futex", 250)]));
        assert_eq!((since.within, since.by_hand), (named(&[("futex", 50)]), named(&[("futex", 50)])));
        assert_eq!(told(&row(&[("futex", 700)], &[])).1, None);
    }
}

//! Differences instead of totals, for collectors that take nothing else.
//!
//! A point is the difference between a reading and the last one that was taken, its *base*; its
//! interval begins where that of the point before has ended. A push that fails leaves the base as
//! it is, so the next difference contains everything that this one did. A part that a reading has
//! left out (`Stat::left_out`) is missing in its difference and in the next one. CPU time of groups
//! that a reading refuses, as while counts are asleep, is in the next difference that does not.
//!
//! | a process | its first point begins |
//! |---|---|
//! | that began after this server | with the process |
//! | that is older | with its first reading: an earlier server may have pushed what was before |
//! | that executed another program | with the last reading of the former one: its totals are new, but for the kernel's |
//!
//! A base stays as long as its process: one that is not among the services for a while (its
//! session began anew or was given to another one, it was not found) goes on from its base
//! afterwards. Without it, all that a younger process has ever counted would be pushed again.
//!
//! If a push was taken and its answer got lost, the next one contains it again: the protocol has no
//! number by which a collector could recognise it.

use std::collections::HashMap;
use std::sync::Arc;

use dormouse::metrics::{Exposition, add};
use dormouse_protocol::{LockStatRow, Stat};

use crate::serve::hub::{Identity, ServiceSnapshot, Snapshot};
use crate::serve::metrics::{GroupShares, add_left_out};
use crate::target::{Finder, Target};

type BaseReadings = HashMap<Identity, Base>;

/// A reading that was taken.
struct Base {
    snapshot: Arc<Snapshot>,
    /// The latest row of each lock: a reading lacks those with the shortest waits, and all while
    /// locks are not noted.
    locks: Vec<LockStatRow>,
    /// CPU time of each group in the last reading that was not refused: one that is refused, as
    /// while counts are asleep, gives no points.
    cpu_ns: HashMap<u32, u64>,
}

impl Base {
    /// The first reading of a process that is older than this server.
    fn first(now: &Arc<Snapshot>) -> Base {
        Base { cpu_ns: cpu_ns(&now.stat), ..Base::after(now, None) }
    }

    /// The reading `now`, after `before` of the same program, or after its start.
    fn after(now: &Arc<Snapshot>, before: Option<&Base>) -> Base {
        let known = before.map_or(&[][..], |before| &before.locks);
        let cpu_ns = match now.stat.cpu_refused {
            None => cpu_ns(&now.stat),
            Some(_) => before.map(|before| before.cpu_ns.clone()).unwrap_or_default(),
        };
        let locks = LockStatRow::all_known(&now.stat.locks, known);
        Base { snapshot: Arc::clone(now), locks, cpu_ns }
    }
}

fn cpu_ns(stat: &Stat) -> HashMap<u32, u64> {
    stat.groups.iter().map(|group| (group.id, group.cpu_ns)).collect()
}

/// Differences since the last push that was taken.
pub(super) struct Deltas {
    /// When this server began, in clock ticks after boot.
    start_ticks: u64,
    bases: BaseReadings,
    /// The readings of the last push.
    pushed: BaseReadings,
}

impl Deltas {
    pub(super) fn new() -> Deltas {
        let own = Finder::new().process(&Target::Pid(std::process::id()));
        let start_ticks = own.map_or(u64::MAX, |own| own.start_ticks);
        Deltas { start_ticks, bases: BaseReadings::new(), pushed: BaseReadings::new() }
    }

    /// Begins a push of these services.
    pub(super) fn begin(&mut self, services: &[ServiceSnapshot]) {
        let identities: Vec<Identity> = services.iter().map(|of| of.session.identity()).collect();
        let finder = Finder::new();
        self.bases.retain(|identity, _| identities.contains(identity) || is_alive(&finder, *identity));
        self.pushed.clear();
    }

    /// Adds the difference of a process to its base, or makes a base if it has none.
    pub(super) fn add(&mut self, to: &mut Exposition, service: &ServiceSnapshot, shares: &mut GroupShares) {
        let ServiceSnapshot { session, snapshot } = service;
        let identity = session.identity();
        let (Some(origin), Some(now)) = (session.origin(), snapshot) else { return };
        let base = self.bases.get(&identity);
        let start_unix_ns = match base {
            // Two pushes in less than the age of a reading.
            Some(base) if Arc::ptr_eq(&base.snapshot, now) => return,
            Some(base) => unix_ns(&base.snapshot),
            None if session.process().start_ticks >= self.start_ticks => origin.start_unix_ns,
            None => {
                self.bases.insert(identity, Base::first(now));
                return;
            }
        };
        let goes_on = |base: &&Base| is_same_program(&now.stat, &base.snapshot.stat);
        let of_program = base.filter(goes_on);
        self.pushed.insert(identity, Base::after(now, of_program));
        let (stat, left_out) = shares.shown(session, now);
        // A reading that is cut has fewer groups than its program.
        let stat = difference(&stat, base, base.as_ref().is_none_or(goes_on));
        add(to, &origin, &stat);
        add_left_out(to, left_out);
        if let Some(process) = to.last_process().as_mut().and_then(|part| part.process_mut()) {
            process.read_unix_ns = unix_ns(now);
            process.start_unix_ns = start_unix_ns.min(process.read_unix_ns);
        }
    }

    /// The collector has taken the last differences of these processes.
    pub(super) fn taken(&mut self, processes: &[Identity]) {
        self.bases.extend(processes.iter().filter_map(|process| self.pushed.remove_entry(process)));
    }
}

/// Whether the process that has this number and start is still there.
fn is_alive(finder: &Finder, (pid, start_ticks): Identity) -> bool {
    finder.process(&Target::Pid(pid)).is_ok_and(|process| process.start_ticks == start_ticks)
}

/// When it was read, by this server's clock.
fn unix_ns(snapshot: &Snapshot) -> u64 {
    snapshot.unix_ms * 1_000_000
}

/// Whether totals go on: groups never leave a program, and these numbers never decrease in it.
fn is_same_program(now: &Stat, base: &Stat) -> bool {
    let groups: HashMap<u32, _> = now.groups.iter().map(|group| (group.id, group)).collect();
    base.groups.iter().all(|before| {
        groups.get(&before.id).is_some_and(|now| now.name == before.name && now.started >= before.started)
    })
}

/// The counters of an interval, or since the start of the process. The other figures are as they
/// are now. `goes_on`: the base is of the same program.
fn difference(now: &Stat, base: Option<&Base>, goes_on: bool) -> Stat {
    let Some(Base { snapshot, locks, cpu_ns }) = base else { return now.since_start() };
    let base = &snapshot.stat;
    if !goes_on {
        return after_exec(now, base);
    }
    let mut since = Stat {
        mono_ns: now.mono_ns,
        // A total is right again after a sleep, and so is its difference: a share would not be.
        cpu_refused: now.cpu_refused.clone(),
        dropped: now.dropped.saturating_sub(base.dropped),
        counted: now.counted,
        locks: LockStatRow::all_since(&now.locks, locks),
        ..now.since(base)
    };
    for (group, now) in since.groups.iter_mut().zip(&now.groups) {
        group.cpu_ns = now.cpu_ns.saturating_sub(cpu_ns.get(&now.id).copied().unwrap_or(0));
    }
    since
}

/// The counters of a program since the process has executed it, after `base` of the former one. The
/// kernel counts for the process, and goes on.
fn after_exec(now: &Stat, base: &Stat) -> Stat {
    let Stat { process_cpu_ns, runnable_ns, cpu_limits, pressure, .. } = now.since(base);
    Stat {
        process_cpu_ns,
        // The CPU time of the former program is in no group of this one.
        unattributed_cpu_ns: now.unattributed_cpu_ns.saturating_sub(base.process_cpu_ns),
        runnable_ns,
        cpu_limits,
        pressure,
        ..now.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use dormouse_protocol::{CpuLimits, GroupRow, Pressure, StatPart};

    use super::*;

    fn stat(groups: &[(u32, &'static str, u64)], dropped: u64) -> Stat {
        let group = |&(id, name, started): &(u32, &'static str, u64)| GroupRow {
            id,
            name: name.into(),
            started,
            alive: 3,
            ..GroupRow::default()
        };
        Stat { groups: groups.iter().map(group).collect(), dropped, keys_on: 2, ..Stat::default() }
    }

    fn base(stat: Stat, before: Option<&Base>) -> Base {
        let snapshot = Snapshot {
            hello: Arc::default(),
            stat,
            groups_left_out: 0,
            room: None,
            part: StatPart::Whole,
            at: std::time::Instant::now(),
            unix_ms: 0,
            whole: OnceLock::new(),
            news: OnceLock::new(),
        };
        Base::after(&Arc::new(snapshot), before)
    }

    #[test]
    fn locks_are_counted_once() {
        let with = |rows: &[(&str, u64)]| {
            let row = |&(line, acquisitions): &(&str, u64)| LockStatRow {
                line: line.into(),
                acquisitions,
                ..LockStatRow::default()
            };
            Stat { locks: rows.iter().map(row).collect(), ..Stat::default() }
        };
        let pushed = |now: &Stat, base: &Base| -> Vec<u64> {
            difference(now, Some(base), true).locks.iter().map(|row| row.acquisitions).collect()
        };
        let first = base(with(&[("a.rs:1", 5)]), None);
        // Locks are not noted for a while.
        let second = base(with(&[]), Some(&first));
        assert_eq!(pushed(&with(&[("a.rs:1", 7), ("b.rs:2", 3)]), &second), [2, 3]);
        let nothing = base(with(&[]), None);
        assert_eq!(pushed(&with(&[("a.rs:1", 7)]), &nothing), [0; 0], "nobody knows what was before");
    }

    #[test]
    fn cpu_time_before_a_sleep_is_pushed_after() {
        let of = |cpu_ns, counts_stopped, is_asleep: bool| {
            let mut stat = Stat { counts_stopped, ..stat(&[(1, "a", 5)], 0) };
            stat.groups[0].cpu_ns = cpu_ns;
            stat.cpu_refused = is_asleep.then(|| "dormouse is asleep".into());
            stat
        };
        let pushed = |now: &Stat, base: &Base| difference(now, Some(base), true).groups_cpu_ns();
        let first = base(of(100, 0, false), None);
        // A sleep between two readings.
        assert_eq!(pushed(&of(140, 1, false), &first), Some(40));
        // A reading during the sleep.
        let asleep = of(130, 1, true);
        assert_eq!(pushed(&asleep, &first), None);
        let second = base(asleep.clone(), Some(&first));
        assert_eq!(pushed(&of(150, 1, false), &second), Some(50));
        // It is asleep at the first push, or at the first reading of a later server.
        assert_eq!(pushed(&of(150, 1, false), &base(asleep.clone(), None)), Some(150));
        let looked = Base::first(&base(asleep, None).snapshot);
        assert_eq!(pushed(&of(150, 1, false), &looked), Some(20));
    }

    #[test]
    fn counters_are_differences_and_gauges_are_not() {
        let (before, now) = (stat(&[(1, "a", 5)], 7), stat(&[(1, "a", 9), (2, "b", 1)], 8));
        let difference = difference(&now, Some(&base(before.clone(), None)), is_same_program(&now, &before));
        let groups: Vec<_> = difference.groups.iter().map(|group| (group.started, group.alive)).collect();
        assert_eq!(groups, [(4, 3), (1, 3)]);
        assert_eq!((difference.dropped, difference.keys_on), (1, 2));
    }

    #[test]
    fn a_control_group_is_older_than_its_process() {
        let now = Stat {
            cpu_limits: Some(CpuLimits::default()),
            pressure: Some(Pressure::default()),
            ..stat(&[], 7)
        };
        let first = difference(&now, None, true);
        assert_eq!((&first.cpu_limits, first.pressure, first.dropped), (&None, None, 7));
        let then = difference(&now, Some(&base(now.clone(), None)), true);
        assert!(then.cpu_limits.is_some() && then.pressure.is_some());
    }

    #[test]
    fn the_processs_clock_goes_on_in_another_program() {
        let of = |name, started, [process_cpu_ns, unattributed_cpu_ns, runnable_ns]: [u64; 3]| Stat {
            process_cpu_ns,
            unattributed_cpu_ns,
            runnable_ns: Some(runnable_ns),
            ..stat(&[(1, name, started)], 4)
        };
        let before = base(of("a", 5, [700, 200, 30]), None);
        let since = difference(&of("b", 2, [1000, 900, 40]), Some(&before), false);
        assert_eq!((since.process_cpu_ns, since.unattributed_cpu_ns), (300, 200));
        assert_eq!(since.runnable_ns, Some(10));
        assert_eq!((since.groups[0].started, since.dropped), (2, 4), "of the new program alone");
    }

    #[test]
    fn another_program_has_other_groups() {
        let base = stat(&[(1, "a", 5)], 0);
        assert!(is_same_program(&stat(&[(1, "a", 5), (2, "b", 1)], 0), &base));
        for other in [stat(&[(1, "a", 4)], 0), stat(&[(1, "b", 9)], 0), stat(&[], 0)] {
            assert!(!is_same_program(&other, &base));
        }
    }
}

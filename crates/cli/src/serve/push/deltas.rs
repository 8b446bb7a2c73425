//! Differences instead of totals, for collectors that take nothing else.
//!
//! A point is the difference between a reading and the last one that was taken, its *base*; its
//! interval begins where that of the point before has ended. A push that fails leaves the base as
//! it is, so the next difference contains everything that this one did. A part that a reading has
//! left out (`Stat::left_out`) is missing in its difference and in the next one.
//!
//! | a process | its first point begins |
//! |---|---|
//! | that began after this server | with the process |
//! | that is older | with its first reading: an earlier server may have pushed what was before |
//! | that executed another program | with the last reading of the former one: its totals are new |
//!
//! A base stays as long as its process: one that is not among the services for a while (its
//! session began anew or was given to another one, it was not found) goes on from its base
//! afterwards. Without it, all that a younger process has ever counted would be pushed again.
//!
//! If a push was taken and its answer got lost, the next one contains it again: the protocol has no
//! number by which a collector could recognise it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use dormouse::metrics::{Exposition, add};
use dormouse_protocol::Stat;

use crate::serve::hub::{Identity, ServiceSnapshot, Snapshot};
use crate::serve::metrics::{GroupShares, add_left_out};
use crate::target::{Finder, Target};

type BaseReadings = HashMap<Identity, Arc<Snapshot>>;

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

    /// The differences to the bases, and a base for each process that has none.
    pub(super) fn exposition(&mut self, services: &[ServiceSnapshot]) -> Exposition {
        let (mut exposition, mut shares) = (Exposition::of_differences(), GroupShares::default());
        let identities: Vec<Identity> = services.iter().map(|of| of.session.identity()).collect();
        let finder = Finder::new();
        self.bases.retain(|identity, _| identities.contains(identity) || is_alive(&finder, *identity));
        self.pushed.clear();
        for (ServiceSnapshot { session, snapshot }, identity) in services.iter().zip(identities) {
            let (Some(origin), Some(now)) = (session.origin(), snapshot) else { continue };
            let base = self.bases.get(&identity);
            let start_unix_ns = match base {
                // Two pushes in less than the age of a reading.
                Some(base) if Arc::ptr_eq(base, now) => continue,
                Some(base) => unix_ns(base),
                None if session.process().start_ticks >= self.start_ticks => origin.start_unix_ns,
                None => {
                    self.bases.insert(identity, Arc::clone(now));
                    continue;
                }
            };
            self.pushed.insert(identity, Arc::clone(now));
            let (stat, left_out) = shares.shown(session, now);
            let stat = match base.filter(|base| is_same_program(&now.stat, &base.stat)) {
                Some(base) => Cow::Owned(difference(&stat, &base.stat)),
                None => stat,
            };
            add(&mut exposition, &origin, &stat);
            add_left_out(&mut exposition, left_out);
            if let Some(process) = exposition.last_process().as_mut().and_then(|part| part.process_mut()) {
                process.read_unix_ns = unix_ns(now);
                process.start_unix_ns = start_unix_ns.min(process.read_unix_ns);
            }
        }
        exposition
    }

    /// The collector has taken the last ones.
    pub(super) fn taken(&mut self) {
        self.bases.extend(self.pushed.drain());
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

/// The counters of an interval, and the other figures as they are now.
fn difference(now: &Stat, base: &Stat) -> Stat {
    Stat {
        mono_ns: now.mono_ns,
        dropped: now.dropped.saturating_sub(base.dropped),
        counted: now.counted,
        ..now.since(base)
    }
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::GroupRow;

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

    #[test]
    fn counters_are_differences_and_gauges_are_not() {
        let (base, now) = (stat(&[(1, "a", 5)], 7), stat(&[(1, "a", 9), (2, "b", 1)], 8));
        let difference = difference(&now, &base);
        let groups: Vec<_> = difference.groups.iter().map(|group| (group.started, group.alive)).collect();
        assert_eq!(groups, [(4, 3), (1, 3)]);
        assert_eq!((difference.dropped, difference.keys_on), (1, 2));
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

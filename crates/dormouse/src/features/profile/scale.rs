//! Scaling what was sampled to what was used: the samples of each group add up to the account.

use std::collections::{HashMap, HashSet};

use dormouse_profile::{NO_GROUP, Profile, ProfileGroup, ProfileKind, Sample, Thread, Values};

use super::account::Account;
use crate::core::clock_fault::clock_fault;

/// Our own threads in a profile. They block all signals, so no sample meets them.
pub(super) const OWN: &str = "(dormouse)";

/// Names the groups of `profile`, and scales their samples to what they have used.
///
/// A number that is no group's is that of a context of the program's own, which the account does
/// not include: its samples are work in no group.
pub(super) fn scale(profile: &mut Profile, used: &Account) {
    let main = profile.kind.main_column();
    let ids: Vec<u32> = profile.groups.iter().map(|group| group.id).collect();
    profile.groups = vec![ProfileGroup::default()];
    let mut columns = vec![[None; 2]];
    let mut index_of = HashMap::new();
    for group in &used.groups {
        let of_group = used.columns(profile.kind, group);
        let total = of_group[main];
        if ids.contains(&group.id) || total.is_some_and(|used| used > 0) {
            index_of.insert(group.id, profile.groups.len() as u32);
            let name = group.name.clone().into_owned();
            profile.groups.push(ProfileGroup { id: group.id, name, total });
            columns.push(of_group);
        }
    }
    for sample in &mut profile.samples {
        let id = ids.get(sample.group as usize).copied().unwrap_or(0);
        sample.group = index_of.get(&id).copied().unwrap_or(NO_GROUP);
    }
    merge(profile);
    // Where nothing is counted, the samples are not scaled.
    let sampled = |of: usize| -> u64 {
        let samples = profile.samples.iter().filter(|sample| sample.group as usize == of);
        samples.map(|sample| sample.values[main]).sum()
    };
    let total = |of: usize| columns[of][main].unwrap_or_else(|| sampled(of));
    let in_groups: u64 = (1..columns.len()).map(total).sum();
    if let Some(process) = used.process {
        if profile.kind == ProfileKind::Cpu
            && let Some(why) = clock_fault(in_groups, process)
        {
            profile.coverage.notes.push(format!("{why}: no figure here can be believed"));
        }
        profile.coverage.total = process.max(in_groups + used.own);
        profile.groups[0].total = Some(profile.coverage.total - in_groups - used.own);
        columns[0][main] = profile.groups[0].total;
    }
    profile.coverage.in_groups = in_groups;
    if used.own > 0 {
        profile.groups.push(ProfileGroup { id: 0, name: OWN.to_owned(), total: Some(used.own) });
        let mut own = [None; 2];
        own[main] = Some(used.own);
        columns.push(own);
    }
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); columns.len()];
    for (at, sample) in profile.samples.iter().enumerate() {
        rows[sample.group as usize].push(at);
    }
    let before: Vec<Values> = profile.samples.iter().map(|sample| sample.values).collect();
    for (group, (rows, columns)) in rows.iter().zip(columns).enumerate() {
        for (column, total) in columns.iter().enumerate() {
            if let Some(total) = *total {
                if profile.kind == ProfileKind::Cpu && column == main {
                    fit_cpu(profile, group as u32, rows, total);
                } else {
                    fit(profile, group as u32, rows, column, total);
                }
            }
        }
    }
    for moment in &mut profile.timeline {
        let at = moment.sample as usize;
        let (then, now) = (before[at][main], profile.samples[at].values[main]);
        moment.value = part(moment.value, now, then);
    }
}

/// `value * now / then`; 0 where there was nothing.
fn part(value: u64, now: u64, then: u64) -> u64 {
    (u128::from(value) * u128::from(now)).checked_div(u128::from(then)).unwrap_or(0) as u64
}

/// Has the CPU time of a group's rows add up to `total`. A sample weighs the CPU time since the one
/// before, so rows lack no more than a period of each thread that has samples here. The rest has a
/// row without a stack: it may be another thread's, in other functions.
fn fit_cpu(profile: &mut Profile, group: u32, rows: &[usize], total: u64) {
    let column = ProfileKind::Cpu.main_column();
    let (met, unmet): (Vec<usize>, Vec<usize>) =
        rows.iter().copied().partition(|&at| profile.samples[at].values[0] > 0);
    let sum = |profile: &Profile, rows: &[usize]| -> u64 {
        rows.iter().fold(0, |sum: u64, &at| sum.saturating_add(profile.samples[at].values[column]))
    };
    let sampled = sum(profile, &met);
    let threads: HashSet<u32> = met.iter().map(|&at| profile.samples[at].thread).collect();
    let slack = profile.period.max(LONGEST_TICK).saturating_mul(threads.len() as u64);
    // First what threads without samples are known to have used, then the open rest of the others.
    let known = sum(profile, &unmet).min(total.saturating_sub(sampled));
    let of_met = if sampled == 0 { 0 } else { (total - known).min(sampled.saturating_add(slack)) };
    fit(profile, group, &met, column, of_met);
    fit(profile, group, &unmet, column, known);
    let rest = total - known - of_met;
    if rest > 0 {
        fit(profile, group, &[], column, rest);
    }
}

/// Nanoseconds of the longest tick that Linux has, at 100 Hz: samples are no closer together.
const LONGEST_TICK: u64 = 10_000_000;

/// Has the values of a group's rows add up to `total` exactly: by the largest remainder. Without
/// samples there is a row without a stack.
pub(super) fn fit(profile: &mut Profile, group: u32, rows: &[usize], column: usize, total: u64) {
    let values: Vec<u64> = rows.iter().map(|&at| profile.samples[at].values[column]).collect();
    let sum: u128 = values.iter().copied().map(u128::from).sum();
    if sum == 0 {
        if total > 0 && column == profile.kind.main_column() {
            let thread = unknown_thread(profile);
            let mut values = Values::default();
            values[column] = total;
            profile.samples.push(Sample { group, thread, stack: 0, values });
        }
        return;
    }
    let mut left = total;
    let mut remainders = Vec::with_capacity(rows.len());
    for (&at, value) in rows.iter().zip(values) {
        let product = u128::from(value) * u128::from(total);
        let share = (product / sum) as u64;
        left -= share;
        profile.samples[at].values[column] = share;
        // The part of allocations that is still there goes with them.
        if let Some(live) = profile.samples[at].values.get_mut(column + 2).filter(|live| **live > 0) {
            *live = ((u128::from(*live) * u128::from(total) + sum / 2) / sum) as u64;
        }
        remainders.push((product % sum, at));
    }
    // Fewer are left than there are rows: each has lost less than one.
    remainders.sort_unstable_by(|a, b| b.cmp(a));
    for (_, at) in remainders.into_iter().take(left as usize) {
        profile.samples[at].values[column] += 1;
    }
}

/// The thread of use without samples.
pub(super) fn unknown_thread(profile: &mut Profile) -> u32 {
    let unknown = Thread::default();
    let at = profile.threads.iter().position(|thread| *thread == unknown).unwrap_or_else(|| {
        profile.threads.push(unknown);
        profile.threads.len() - 1
    });
    at as u32
}

/// Adds up the samples that agree.
fn merge(profile: &mut Profile) {
    let mut rows: Vec<Sample> = Vec::with_capacity(profile.samples.len());
    let mut places = HashMap::with_capacity(profile.samples.len());
    let mut moved = Vec::with_capacity(profile.samples.len());
    for sample in &profile.samples {
        let at = *places.entry((sample.group, sample.thread, sample.stack)).or_insert_with(|| {
            rows.push(Sample { values: Values::default(), ..*sample });
            rows.len() - 1
        });
        for (sum, value) in rows[at].values.iter_mut().zip(sample.values) {
            *sum += value;
        }
        moved.push(at as u32);
    }
    profile.samples = rows;
    profile.timeline.retain_mut(|moment| {
        let at = moved.get(moment.sample as usize);
        moment.sample = at.copied().unwrap_or_default();
        at.is_some()
    });
}

/// Leaves the groups that are wanted, with their samples and stacks. The others stay in
/// [`dormouse_profile::ProfileCoverage`].
pub(super) fn retain(profile: &mut Profile, is_wanted: impl Fn(&str) -> bool) {
    let mut places = vec![None; profile.groups.len()];
    let groups = std::mem::take(&mut profile.groups);
    for (at, mut group) in groups.into_iter().enumerate() {
        if at == NO_GROUP as usize {
            // It has its place in every profile, and no samples here.
            group.total = None;
        } else if !is_wanted(&group.name) {
            continue;
        }
        places[at] = (at != NO_GROUP as usize).then_some(profile.groups.len() as u32);
        profile.groups.push(group);
    }
    let mut moved = vec![None; profile.samples.len()];
    let samples = std::mem::take(&mut profile.samples);
    for (at, sample) in samples.into_iter().enumerate() {
        if let Some(group) = places[sample.group as usize] {
            moved[at] = Some(profile.samples.len() as u32);
            profile.samples.push(Sample { group, ..sample });
        }
    }
    profile.timeline.retain_mut(|moment| {
        let at = moved.get(moment.sample as usize).copied().flatten();
        moment.sample = at.unwrap_or_default();
        at.is_some()
    });
    prune(profile);
}

/// Leaves the stacks that a sample has.
pub(super) fn prune(profile: &mut Profile) {
    // By the numbers that a sample and a node have for a node: one more than its index.
    let mut places = vec![0_u32; profile.stacks.len() + 1];
    for sample in &profile.samples {
        places[sample.stack as usize] = 1;
    }
    for (at, node) in profile.stacks.iter().enumerate().rev() {
        if places[at + 1] > 0 {
            places[node.parent as usize] = 1;
        }
    }
    places[0] = 0;
    let mut kept = 0;
    for place in &mut places[1..] {
        if *place > 0 {
            kept += 1;
            *place = kept;
        }
    }
    let mut at = 0;
    profile.stacks.retain_mut(|node| {
        at += 1;
        node.parent = places[node.parent as usize];
        places[at] > 0
    });
    for sample in &mut profile.samples {
        sample.stack = places[sample.stack as usize];
    }
}

#[cfg(test)]
mod tests;

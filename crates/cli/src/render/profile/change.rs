//! Two profiles as tables and JSON: which functions grew, and which shrank.
//!
//! Old values are scaled to the length of the new profile, so that two of different length compare.

use std::collections::HashMap;
use std::fmt::Write as _;

use dormouse_profile::{Diff, Profile, ProfileKind};
use serde::Serialize;

use super::coverage;
use super::text::brief;
use super::uses::{FunctionUse, GroupUse, amount, uses};
use crate::duration::short;
use crate::output::{BAD, DIM, GOOD, HEAD};
use crate::render::table::Table;
use crate::text::{Clean, clean, count};

/// A group, or a function in it, in two profiles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    pub(crate) name: String,
    /// By itself; of a group, all of it.
    #[serde(rename = "self_old")]
    own_old: u64,
    #[serde(rename = "self_new")]
    own_new: u64,
    /// With what it called.
    total_old: u64,
    total_new: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct GroupChange {
    #[serde(flatten)]
    all: Change,
    /// The one that changed most by itself first.
    functions: Vec<Change>,
}

/// Two profiles in the JSON of `profile --diff`; old values are scaled to the length of the new
/// one.
#[derive(Debug, Serialize)]
pub(crate) struct DiffDocument {
    pid: u32,
    kind: ProfileKind,
    duration_ns: u64,
    old_duration_ns: u64,
    /// The name and the unit of the values, as pprof has them.
    value: &'static str,
    unit: &'static str,
    groups: Vec<GroupChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

impl DiffDocument {
    pub(crate) fn new(diff: &Diff, column: usize, pid: u32, file: Option<String>) -> Self {
        let kind = diff.profile.kind;
        Self {
            pid,
            kind,
            duration_ns: diff.profile.duration_ns,
            old_duration_ns: diff.old_duration_ns,
            value: kind.columns()[column].name,
            unit: kind.columns()[column].unit,
            groups: changes(diff, column),
            file,
        }
    }
}

/// The groups of two profiles; the one that changed most first.
fn changes(diff: &Diff, column: usize) -> Vec<GroupChange> {
    let scale = diff.scale();
    let mut before = diff.profile.clone();
    for (sample, old) in before.samples.iter_mut().zip(&diff.old) {
        sample.values = old.map(|value| (value as f64 * scale).round() as u64);
    }
    // The accounts are of the new profile.
    before.groups.iter_mut().for_each(|group| group.total = None);
    let old = uses(&before, &diff.symbols, column);
    let mut old: HashMap<String, GroupUse> = old.into_iter().map(|it| (it.name.clone(), it)).collect();
    let new = uses(&diff.profile, &diff.symbols, column);
    let mut pairs: Vec<_> = new.into_iter().map(|new| (old.remove(&new.name), Some(new))).collect();
    pairs.extend(old.into_values().map(|gone| (Some(gone), None)));
    let mut changes: Vec<GroupChange> = pairs.into_iter().map(|(old, new)| group(old, new)).collect();
    changes.sort_by(|a, b| order(&a.all, &b.all));
    changes
}

fn group(old: Option<GroupUse>, new: Option<GroupUse>) -> GroupChange {
    let name = new.as_ref().or(old.as_ref()).map(|it| it.name.clone()).unwrap_or_default();
    let [total_old, total_new] = [&old, &new].map(|it| it.as_ref().map_or(0, |it| it.total));
    let functions = |it: Option<GroupUse>| it.map(|it| it.functions).unwrap_or_default();
    let mut all: HashMap<String, Change> = HashMap::new();
    for FunctionUse { name, own, total, .. } in functions(new) {
        let change = Change { name: name.clone(), own_old: 0, own_new: own, total_old: 0, total_new: total };
        all.insert(name, change);
    }
    for FunctionUse { name, own, total, .. } in functions(old) {
        let none = || Change { name: name.clone(), own_old: 0, own_new: 0, total_old: 0, total_new: 0 };
        let change = all.entry(name.clone()).or_insert_with(none);
        (change.own_old, change.total_old) = (own, total);
    }
    let mut functions: Vec<Change> = all.into_values().collect();
    functions.sort_by(order);
    GroupChange {
        all: Change { name, own_old: total_old, own_new: total_new, total_old, total_new },
        functions,
    }
}

/// By the change of the part that is a function's own, then of the whole.
fn order(a: &Change, b: &Change) -> std::cmp::Ordering {
    let by = |of: &Change| (of.own_new.abs_diff(of.own_old), of.total_new.abs_diff(of.total_old));
    by(b).cmp(&by(a)).then_with(|| a.name.cmp(&b.name))
}

/// The functions that grew and shrank, by group, at most so many of each; `new` has the new
/// profile's coverage.
pub(crate) fn report(who: &str, diff: &Diff, new: &Profile, column: usize, most: usize) -> String {
    let kind = diff.profile.kind;
    let mut text = format!(
        "{HEAD}{who}: {} in {}, before in {}{HEAD:#}\n",
        kind.columns()[column].name,
        short(diff.profile.duration_ns),
        short(diff.old_duration_ns),
    );
    if diff.profile.duration_ns != diff.old_duration_ns {
        let _ = writeln!(text, "{DIM}old values are scaled to the length of the new profile{DIM:#}");
    }
    let of = |value| amount(kind, column, value);
    for group in changes(diff, column) {
        let Change { name, own_old, own_new, .. } = &group.all;
        let (old, new) = (of(*own_old), of(*own_new));
        let _ = writeln!(text, "\n{HEAD}{}{HEAD:#}  {old} → {new}", Clean(name));
        let mut table =
            Table::new([">CHANGE", ">SELF BEFORE", ">SELF", ">TOTAL BEFORE", ">TOTAL", "FUNCTION"]);
        let is_changed = |it: &&Change| it.own_old != it.own_new || it.total_old != it.total_new;
        let changed: Vec<&Change> = group.functions.iter().filter(is_changed).collect();
        for it in changed.iter().take(most) {
            let (style, sign) = if it.own_new > it.own_old { (BAD, "+") } else { (GOOD, "-") };
            let change = match it.own_new.abs_diff(it.own_old) {
                0 => "0".to_owned(),
                change => format!("{style}{sign}{}{style:#}", of(change)),
            };
            let cells = [it.own_old, it.own_new, it.total_old, it.total_new].map(of);
            table.row([vec![change], cells.into(), vec![clean(&brief(&it.name))]].concat());
        }
        text.push_str(&table.render(DIM));
        if changed.len() > most {
            let more = count((changed.len() - most) as u64, "more function");
            let _ = writeln!(text, "{DIM}and {more}{DIM:#}");
        }
    }
    text.push('\n');
    for line in coverage::lines(new) {
        let _ = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::uses::tests::tea;
    use super::*;

    /// The old profile took half as long and had more of `stir`.
    fn grown() -> (Diff, Profile) {
        let (new, symbols) = tea();
        let mut old = new.clone();
        old.duration_ns /= 2;
        old.samples[0].values[1] = 500;
        old.samples[1].values[1] = 50;
        (Diff::between((&old, &symbols), (&new, &symbols)).unwrap(), new)
    }

    #[test]
    fn what_shrank_and_grew_stands_first() {
        let (diff, _) = grown();
        let groups = changes(&diff, 1);
        let blend = &groups[0];
        assert_eq!((&*blend.all.name, blend.all.own_old, blend.all.own_new), ("GET /blend", 1_500, 1_000));
        let functions: Vec<_> =
            blend.functions.iter().map(|it| (&*it.name, it.own_old, it.own_new)).collect();
        assert_eq!(functions[..2], [("stir", 1_000, 600), ("libtea.so+0x9", 400, 200)]);
        assert!(functions.contains(&("blend", 100, 200)), "{functions:?}");
    }

    #[test]
    fn a_change_has_its_sign() {
        let (diff, new) = grown();
        let text = anstream::adapter::strip_str(&report("tea", &diff, &new, 1, 9)).to_string();
        for part in ["-400 ns", "+100 ns", "GET /blend  1.50 us → 1.00 us", "old values are scaled"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
}

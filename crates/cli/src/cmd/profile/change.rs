//! Two profiles as tables and JSON: which functions grew, and which shrank.
//!
//! Old values are scaled to the length of the new profile, so that profiles of different length can
//! be compared; live allocations are not, since they are what is there at the end.
//!
//! Two profiles of the same work differ by chance, because they are samples. The number of samples
//! of a function varies by its square root, so a difference of less than two standard deviations
//! arises by chance alone in 19 of 20 functions: such rows are left out. Callers grow with their
//! group, so their totals are compared with the growth of the group.

use std::collections::HashMap;
use std::fmt::Write as _;

use dormouse_profile::symbols::NO_SAMPLE;
use dormouse_profile::{Diff, NO_GROUP, Profile, ProfileKind, Values};
use serde::Serialize;

use super::document::Circumstances;
use crate::duration::short;
use crate::output::{BAD, DIM, GOOD, HEAD};
use crate::render::profile::coverage;
use crate::render::profile::text::brief;
use crate::render::profile::uses::{FunctionUse, GroupUse, amount, uses};
use crate::render::table::Table;
use crate::text::{Clean, clean, count};

/// A group, or a function in it, in two profiles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Whether the change of its own part is explained by chance, and that of its total by chance
    /// and the change of its group. A group's use is counted, not sampled.
    #[serde(rename = "self_is_chance")]
    own_is_chance: bool,
    total_is_chance: bool,
}

/// The weights of a sample of a group in both profiles, as they are shown.
#[derive(Debug, Clone, Copy)]
struct Chance {
    old: f64,
    new: f64,
}

/// Standard deviations that a change must have to be shown.
const DEVIATIONS: f64 = 2.0;

impl Chance {
    /// For a group, in the unit of `column`. Samples of a group that has few weigh more, because
    /// they add up to its use.
    fn of(diff: &Diff, group: u32, column: usize) -> Chance {
        let kind = diff.profile.kind;
        let rows = || diff.profile.samples.iter().zip(&diff.old).filter(|(row, _)| row.group == group);
        let weight = |values: &mut dyn Iterator<Item = Values>| {
            let (samples, sum) = values
                .filter(|values| values[0] > 0)
                .fold((0.0, 0.0), |(n, sum), it| (n + it[0] as f64, sum + it[column] as f64));
            match kind {
                // The count is of objects, which samples stand for.
                ProfileKind::Alloc => diff.profile.period as f64,
                _ if samples > 0.0 => sum / samples,
                _ => 0.0,
            }
        };
        let new = weight(&mut rows().map(|(row, _)| row.values));
        let old = weight(&mut rows().map(|(_, old)| *old)) * diff.scale(column);
        // A side without samples would have had such as the other.
        Chance { old: if old > 0.0 { old } else { new }, new: if new > 0.0 { new } else { old } }
    }

    /// Whether chance alone may make `new` of `old`. Each sample adds the square of its weight to
    /// the variance.
    fn makes(self, old: f64, new: f64) -> bool {
        let change = (new - old).abs();
        // Less than one of any unit is from scaling.
        change < 1.0 || change < DEVIATIONS * (self.new * new + self.old * old).sqrt()
    }
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct GroupChange {
    #[serde(flatten)]
    all: Change,
    /// The one that changed most by itself first.
    functions: Vec<Change>,
}

/// Two profiles in the JSON of `profile --diff`; old values are scaled to the length of the new
/// one, except live allocations.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DiffDocument {
    pid: u32,
    kind: ProfileKind,
    duration_ns: u64,
    old_duration_ns: u64,
    /// The name and the unit of the values, as pprof has them.
    value: &'static str,
    unit: &'static str,
    /// `task` if the groups are tasks (`--by task`).
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    groups: Vec<GroupChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

impl DiffDocument {
    /// The document of two profiles, of which the new one is of that process.
    pub(crate) fn new(diff: &Diff, column: usize, pid: u32, circumstances: Circumstances<'_>) -> Self {
        let Circumstances { by, file, .. } = circumstances;
        let kind = diff.profile.kind;
        Self {
            pid,
            kind,
            duration_ns: diff.profile.duration_ns,
            old_duration_ns: diff.old_duration_ns,
            value: kind.columns()[column].name,
            unit: kind.columns()[column].unit,
            by,
            groups: changes(diff, column),
            file,
        }
    }
}

/// The groups of two profiles; the one that changed most first.
fn changes(diff: &Diff, column: usize) -> Vec<GroupChange> {
    let scale = diff.scale(column);
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
    let numbers: HashMap<&str, u32> = (0..).zip(&diff.profile.groups).map(|(n, it)| (&*it.name, n)).collect();
    let compared = |(old, new): (Option<GroupUse>, Option<GroupUse>)| {
        let name = new.as_ref().or(old.as_ref()).map_or("", |it| &*it.name);
        let number = numbers.get(name).copied().unwrap_or(NO_GROUP);
        group(old, new, Chance::of(diff, number, column))
    };
    let mut changes: Vec<GroupChange> = pairs.into_iter().map(compared).collect();
    changes.sort_by(|a, b| order(&a.all, &b.all));
    changes
}

fn group(old: Option<GroupUse>, new: Option<GroupUse>, chance: Chance) -> GroupChange {
    let name = new.as_ref().or(old.as_ref()).map(|it| it.name.clone()).unwrap_or_default();
    let [total_old, total_new] = [&old, &new].map(|it| it.as_ref().map_or(0, |it| it.total));
    let functions = |it: Option<GroupUse>| it.map(|it| it.functions).unwrap_or_default();
    let mut all: HashMap<String, Change> = HashMap::new();
    for FunctionUse { name, own, total, .. } in functions(new) {
        let change = Change { own_new: own, total_new: total, ..Change::none(&name) };
        all.insert(name, change);
    }
    for FunctionUse { name, own, total, .. } in functions(old) {
        let change = all.entry(name.clone()).or_insert_with(|| Change::none(&name));
        (change.own_old, change.total_old) = (own, total);
    }
    let mut functions: Vec<Change> = all.into_values().collect();
    let grown = if total_old > 0 { total_new as f64 / total_old as f64 } else { 1.0 };
    for it in &mut functions {
        let [old, new, whole_old, whole_new] =
            [it.own_old, it.own_new, it.total_old, it.total_new].map(|value| value as f64);
        it.own_is_chance = it.name == NO_SAMPLE || chance.makes(old, new);
        // All callers grow with their group; of interest are those that do more or less than that.
        it.total_is_chance = it.name == NO_SAMPLE || chance.makes(whole_old * grown, whole_new);
    }
    functions.sort_by(order);
    let none = Change::none(&name);
    GroupChange {
        all: Change { own_old: total_old, own_new: total_new, total_old, total_new, ..none },
        functions,
    }
}

impl Change {
    fn none(name: &str) -> Change {
        Change {
            name: name.to_owned(),
            own_old: 0,
            own_new: 0,
            total_old: 0,
            total_new: 0,
            own_is_chance: false,
            total_is_chance: false,
        }
    }

    fn is_shown(&self) -> bool {
        let is_changed = self.own_old != self.own_new || self.total_old != self.total_new;
        is_changed && !(self.own_is_chance && self.total_is_chance)
    }
}

/// By the change of the part that is a function's own, then of the whole.
fn order(a: &Change, b: &Change) -> std::cmp::Ordering {
    let by = |of: &Change| (of.own_new.abs_diff(of.own_old), of.total_new.abs_diff(of.total_old));
    by(b).cmp(&by(a)).then_with(|| a.name.cmp(&b.name))
}

/// The functions that grew and shrank, by group, at most `most` of each; `new` has the new
/// profile's coverage.
pub(crate) fn report(who: &str, diff: &Diff, new: &Profile, column: usize, most: usize) -> String {
    let kind = diff.profile.kind;
    let mut text = format!(
        "{HEAD}{who}: {} in {}, before in {}{HEAD:#}\n",
        kind.columns()[column].name,
        short(diff.profile.duration_ns),
        short(diff.old_duration_ns),
    );
    if (diff.scale(column) - 1.0).abs() > 0.01 {
        let _ = writeln!(text, "{DIM}old values are scaled to the length of the new profile{DIM:#}");
    }
    let of = |value| amount(kind, column, value);
    let mut left_out = 0;
    for group in changes(diff, column) {
        let Change { name, own_old, own_new, .. } = &group.all;
        let (old, new) = (of(*own_old), of(*own_new));
        let _ = writeln!(text, "\n{HEAD}{}{HEAD:#}  {old} → {new}", Clean(name));
        let changed: Vec<&Change> = group.functions.iter().filter(|it| it.is_shown()).collect();
        left_out += group.functions.len() - changed.len();
        if changed.is_empty() {
            continue;
        }
        let mut table =
            Table::new([">CHANGE", ">SELF BEFORE", ">SELF", ">TOTAL BEFORE", ">TOTAL", "FUNCTION"]);
        for it in changed.iter().take(most) {
            let (style, sign) = if it.own_new > it.own_old { (BAD, "+") } else { (GOOD, "-") };
            let style = if it.own_is_chance { DIM } else { style };
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
    if left_out > 0 {
        let functions = count(left_out as u64, "function");
        let _ = writeln!(
            text,
            "{DIM}left out: {functions} that changed by no more than samples do by chance (2 standard \
             deviations); --json has all{DIM:#}"
        );
    }
    for line in coverage::lines(new) {
        let _ = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::profile::uses::tests::tea;

    /// The old profile took half as long and had more of `stir`.
    fn grown() -> (Diff, Profile) {
        let (mut new, symbols) = tea();
        // So many that chance makes no difference.
        new.samples.iter_mut().for_each(|it| it.values[0] *= 1_000);
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
    fn changes_of_few_samples_are_left_out() {
        let few = Chance { old: 100.0, new: 100.0 };
        assert!(few.makes(100.0, 400.0) && few.makes(0.0, 300.0), "1 and 4 samples, 0 and 3");
        assert!(!few.makes(0.0, 400.0) && !few.makes(100.0, 800.0), "0 and 4, 1 and 8");
        assert!(!few.makes(10_000.0, 13_100.0) && few.makes(10_000.0, 12_900.0), "of 100");
        let scaled = Chance { old: 400.0, ..few };
        assert!(scaled.makes(400.0, 0.0), "one sample that is scaled counts as one");

        let (new, symbols) = tea();
        let mut old = new.clone();
        old.samples[0].values = [4, 500, 0, 0];
        let diff = Diff::between((&old, &symbols), (&new, &symbols)).unwrap();
        let weights = Chance::of(&diff, 1, 1);
        assert_eq!((weights.old, weights.new), (900.0 / 6.0, 200.0));
        insta::assert_snapshot!("few_samples", text(&diff, &new));
    }

    #[test]
    fn changes_have_signs_and_lack_callers_alike() {
        let (diff, new) = grown();
        insta::assert_snapshot!("grown", text(&diff, &new));
    }

    #[test]
    fn tasks_are_told_from_groups_in_json() {
        let (diff, _) = grown();
        let by = |by| {
            let circumstances = Circumstances { by, ..Circumstances::default() };
            serde_json::to_value(DiffDocument::new(&diff, 1, 7, circumstances)).unwrap()["by"].clone()
        };
        assert_eq!((by(Some("task")), by(None)), ("task".into(), serde_json::Value::Null));
    }

    #[test]
    fn live_allocations_are_no_use_of_time() {
        let (mut new, symbols) = tea();
        new.kind = ProfileKind::Alloc;
        new.samples.iter_mut().for_each(|it| it.values[3] = 700);
        let old = Profile { duration_ns: new.duration_ns / 2, ..new.clone() };
        let diff = Diff::between((&old, &symbols), (&new, &symbols)).unwrap();
        let grown = |column| -> Vec<bool> {
            changes(&diff, column).iter().map(|it| it.all.own_old != it.all.own_new).collect()
        };
        assert!(grown(1).contains(&true) && !grown(3).contains(&true), "{:?} {:?}", grown(1), grown(3));
    }

    fn text(diff: &Diff, new: &Profile) -> String {
        anstream::adapter::strip_str(&report("tea", diff, new, 1, 9)).to_string()
    }
}

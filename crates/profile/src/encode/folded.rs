//! Folded stacks: one line for each stack, `group;outermost;…;innermost value`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use dormouse_protocol::profile::{NO_GROUP, Profile, Sample};

use crate::diff::Diff;
use crate::symbols::Symbols;

/// The first frame of work in no group.
const NO_NAME: &str = "(no group)";

/// A profile as folded stacks, with the values of the main column. Threads are added up.
pub fn folded(profile: &Profile, symbols: &Symbols) -> String {
    let main = profile.main_column();
    let mut lines = BTreeMap::new();
    for sample in &profile.samples {
        let value: &mut u64 = lines.entry(stack(profile, symbols, sample)).or_default();
        *value = value.saturating_add(sample.values[main]);
    }
    lines.iter().fold(String::new(), |mut out, (stack, value)| {
        let _ = writeln!(out, "{stack} {value}");
        out
    })
}

/// A difference as folded stacks with two values, the old one first, as `difffolded.pl` writes
/// them. Old values are scaled ([`Diff::scale`]).
pub fn folded_diff(diff: &Diff) -> String {
    let main = diff.profile.main_column();
    let scale = diff.scale(main);
    let mut lines = BTreeMap::new();
    for (sample, old) in diff.profile.samples.iter().zip(&diff.old) {
        let values: &mut [u64; 2] = lines.entry(stack(&diff.profile, &diff.symbols, sample)).or_default();
        values[0] = values[0].saturating_add((old[main] as f64 * scale).round() as u64);
        values[1] = values[1].saturating_add(sample.values[main]);
    }
    lines.iter().fold(String::new(), |mut out, (stack, [old, new])| {
        let _ = writeln!(out, "{stack} {old} {new}");
        out
    })
}

fn stack(profile: &Profile, symbols: &Symbols, sample: &Sample) -> String {
    let mut out = String::new();
    match profile.groups.get(sample.group as usize) {
        Some(group) if sample.group != NO_GROUP => harmless(&mut out, &group.name),
        _ => out.push_str(NO_NAME),
    }
    for frame in symbols.stack(profile, sample).iter().rev() {
        out.push(';');
        harmless(&mut out, &frame.name);
    }
    out
}

/// Appends a name without characters that end a frame or a line.
fn harmless(out: &mut String, name: &str) {
    out.extend(name.chars().map(|it| match it {
        ';' => ':',
        it if it.is_control() => ' ',
        it => it,
    }));
}

//! Sets: collections of futures that give each of their parts a waker of its own.
//!
//! The set takes the waker of the task, so the place of the wait is the set's. A part in
//! `dormouse::part` has a place of its own besides, whose stack contains the functions of the set.
//! The service has no names, so it cannot distinguish the place of a set from that of any other
//! leaf: it gives each an equal share of a present wait. With names the set's share goes to its
//! parts.

use std::collections::BTreeMap;

use dormouse_protocol::profile::{Profile, ProfileKind, WallState};

use crate::symbols::{SourceFrame, Symbols};
use crate::yields::make_yields_runnable;

/// Parts of the names of collections, or of their sources, that wake their parts themselves.
const SETS: [&str; 5] =
    ["FuturesUnordered", "futures_unordered", "FuturesOrdered", "futures_buffered", "futures_concurrency"];

/// A function of a stack: its name, its file (empty if unknown), and its line (0 if unknown).
pub type Called<'a> = (&'a str, &'a str, u32);

fn is_set((function, file, _): &Called<'_>) -> bool {
    SETS.iter().any(|set| function.contains(set) || file.contains(set))
}

/// Whether the function polls what is wrapped in `dormouse::part`.
fn is_part((function, file, _): &Called<'_>) -> bool {
    function.contains("PartWaits::poll") || file.ends_with("waits/src/part.rs")
}

/// The functions around the set that has taken the waker at this place; `None` if no set has.
/// Stacks begin with the innermost function.
pub fn around_set<'s, 'a>(place: &'s [Called<'a>]) -> Option<&'s [Called<'a>]> {
    let end = place.iter().position(is_part).unwrap_or(place.len());
    let last = place[..end].iter().rposition(is_set)?;
    Some(&place[last + 1..])
}

/// Whether the place is in a part of a set within `around`, where `is_same` compares functions.
/// Either stack may be cut.
fn is_in_part(
    place: &[Called<'_>],
    around: &[Called<'_>],
    is_same: impl Fn(&Called<'_>, &Called<'_>) -> bool,
) -> bool {
    let mut rest = place;
    while let Some(at) = rest.iter().position(is_part) {
        rest = &rest[at + 1..];
        let outer = around_set(rest).unwrap_or_default();
        if !outer.is_empty() && !around.is_empty() && outer.iter().zip(around).all(|(a, b)| is_same(a, b)) {
            return true;
        }
    }
    false
}

/// Finds the parts of a set: the indices of those `places` that are in a part of the set which
/// waits at `places[set]`. Empty if it is no set that waits there.
///
/// The stack of a part contains the line at which the set was polled when the part was last polled.
/// A function may poll a set at two lines. So if no line matches, the same function is enough,
/// except for parts whose line is that of another set.
pub fn parts_of(set: usize, places: &[Vec<Called<'_>>]) -> Vec<usize> {
    let arounds = || places.iter().enumerate().filter_map(|(at, place)| Some((at, around_set(place)?)));
    let Some((_, around)) = arounds().find(|(at, _)| *at == set) else { return Vec::new() };
    let is_exact = |part: usize, around: &[Called<'_>]| is_in_part(&places[part], around, |a, b| a == b);
    let is_alike = |part: usize| is_in_part(&places[part], around, |a, b| (a.0, a.1) == (b.0, b.1));
    let parts = |is_meant: &dyn Fn(usize) -> bool| -> Vec<usize> {
        (0..places.len()).filter(|&part| part != set && is_meant(part)).collect()
    };
    let exact = parts(&|part| is_exact(part, around));
    if !exact.is_empty() {
        return exact;
    }
    let is_anothers = |part| arounds().any(|(other, around)| other != set && is_exact(part, around));
    parts(&|part| is_alike(part) && !is_anothers(part))
}

impl SourceFrame {
    /// The function in the form that the rules of sets take.
    pub fn called(&self) -> Called<'_> {
        (&self.function, &self.file, self.line)
    }
}

/// In a profile of wall time, moves times of waits to where names show that they belong: those of
/// tasks that yield to the runnable ones, those of sets to their parts. Without names nothing
/// changes.
pub fn settle_waits(profile: &mut Profile, symbols: &Symbols) {
    if profile.kind == ProfileKind::Wall {
        make_yields_runnable(profile, symbols);
        give_sets_to_parts(profile, symbols);
    }
}

fn give_sets_to_parts(profile: &mut Profile, symbols: &Symbols) {
    let mut by_group: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, sample) in profile.samples.iter().enumerate() {
        by_group.entry(sample.group).or_default().push(at);
    }
    let mut unseen = 0;
    for samples in by_group.values() {
        let places: Vec<Vec<Called<'_>>> =
            samples.iter().map(|&at| awaited(profile, profile.samples[at].stack, symbols)).collect();
        let mut sets: Vec<_> = places
            .iter()
            .enumerate()
            .filter_map(|(at, place)| Some((around_set(place)?.len(), at)))
            .collect();
        // A set in a part of another one has its share first.
        sets.sort_unstable();
        for (_, set) in sets {
            let parts: Vec<_> = parts_of(set, &places).into_iter().map(|part| samples[part]).collect();
            if !share_out(profile, samples[set], &parts) {
                unseen += profile.samples[samples[set]].values[0].max(1);
            }
        }
    }
    profile.samples.retain(|sample| sample.values != [0; 4]);
    if unseen > 0 {
        let note = format!("{unseen} waits are in sets whose parts are not seen (dormouse::part)");
        if !profile.coverage.notes.contains(&note) {
            profile.coverage.notes.push(note);
        }
    }
}

/// The functions of a place where something is awaited.
fn awaited<'a>(profile: &Profile, stack: u32, symbols: &'a Symbols) -> Vec<Called<'a>> {
    let stack: Vec<u64> = profile.stack(stack).collect();
    match stack.split_last() {
        Some((state, place)) if *state == WallState::Awaiting.address() => {
            let frames = place.iter().flat_map(|address| symbols.get(*address));
            frames.map(SourceFrame::called).collect()
        }
        _ => Vec::new(),
    }
}

/// Shares the time of a set among the places of its parts, in proportion to their own time. Its
/// waits are also theirs, and are not counted again. In no wait does the set have a greater share
/// than its parts. So if it has more than twice their time, most of it is from before they were
/// seen: then the time stays with the set, and this returns false.
fn share_out(profile: &mut Profile, set: usize, parts: &[usize]) -> bool {
    let ns = |profile: &Profile, at: usize| profile.samples[at].values[1];
    let (mut left, mut of_parts) = (ns(profile, set), parts.iter().map(|&at| ns(profile, at)).sum::<u64>());
    if left / 2 > of_parts || of_parts == 0 {
        return false;
    }
    for &at in parts {
        let own = ns(profile, at);
        let share = u128::from(left) * u128::from(own) / u128::from(of_parts.max(1));
        let share = u64::try_from(share).unwrap_or(left);
        profile.samples[at].values[1] += share;
        (left, of_parts) = (left - share, of_parts - own);
    }
    profile.samples[set].values = [0; 4];
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, Sample};

    const SET: Called<'_> = ("<FuturesUnordered<Fut> as Stream>::poll_next", "", 9);
    const PART: Called<'_> = ("poll<()>", "/r/dormouse-waits/src/part.rs", 30);
    const ALL: Called<'_> = ("shop::all", "/src/all.rs", 3);
    const MAIN: Called<'_> = ("main", "", 1);
    const FETCH: Called<'_> = ("shop::fetch", "/src/fetch.rs", 8);

    #[test]
    fn parts_are_of_the_set_around_them() {
        let (set, part) = (vec![SET, ALL, MAIN], vec![FETCH, PART, SET, ALL, MAIN]);
        assert_eq!(around_set(&set).unwrap(), [ALL, MAIN]);
        assert!(around_set(&part).is_none());
        let of = |others: &[&[Called<'_>]]| {
            let places = [&[&set[..]], others].concat().into_iter().map(<[_]>::to_vec).collect::<Vec<_>>();
            parts_of(0, &places)
        };
        assert_eq!(of(&[&part, &set, &part[..4]]), [1, 3], "also one that is cut");
        assert_eq!(of(&[&[FETCH, PART, SET, FETCH, MAIN]]), [0; 0], "another set");
        let nested = [SET, FETCH, PART, SET, ALL, MAIN];
        assert_eq!(around_set(&nested).unwrap(), &nested[1..]);
        assert_eq!(of(&[&nested]), [1], "a set in a part of it");
        let later = (ALL.0, ALL.1, 7);
        let at_another_line = [FETCH, PART, SET, later, MAIN];
        assert_eq!(of(&[&at_another_line]), [1]);
        assert_eq!(of(&[&at_another_line, &part]), [2], "the line fits better");
        assert_eq!(of(&[&at_another_line, &[SET, later, MAIN]]), [0; 0], "it is the other set's");
    }

    /// A profile of waits at places of these functions: the group, waits and nanoseconds of each.
    fn waits(of: &[(&[Called<'_>], u32, [u64; 2])]) -> (Profile, Symbols) {
        let (mut profile, mut symbols) = (Profile::default(), Symbols::default());
        profile.kind = ProfileKind::Wall;
        for &(place, group, [waits, ns]) in of {
            profile.stacks.push(Node { parent: 0, address: WallState::Awaiting.address() });
            for (function, file, line) in place.iter().rev() {
                let address = 100 + profile.stacks.len() as u64;
                profile.stacks.push(Node { parent: profile.stacks.len() as u32, address });
                let (function, file) = ((*function).to_owned(), (*file).to_owned());
                symbols.insert(address, vec![SourceFrame { function, file, line: *line, inlined: false }]);
            }
            let stack = profile.stacks.len() as u32;
            let sample = Sample { group, stack, values: [waits, ns, 0, 0], ..Sample::default() };
            profile.samples.push(sample);
        }
        (profile, symbols)
    }

    #[test]
    fn time_of_a_set_goes_to_its_parts() {
        let part = [FETCH, PART, SET, ALL, MAIN];
        let other = [MAIN, PART, SET, ALL, MAIN];
        let (mut profile, symbols) = waits(&[
            (&part, 1, [1, 300]),
            (&[SET, ALL, MAIN], 1, [1, 201]),
            (&other, 1, [1, 100]),
            (&[FETCH, ALL, MAIN], 1, [1, 50]),
            (&[SET, ALL, MAIN], 2, [4, 70]),
        ]);
        for _ in 0..2 {
            settle_waits(&mut profile, &symbols);
            let left: Vec<_> = profile.samples.iter().map(|of| (of.group, of.values)).collect();
            let right = [(1, [1, 450, 0, 0]), (1, [1, 151, 0, 0]), (1, [1, 50, 0, 0]), (2, [4, 70, 0, 0])];
            assert_eq!(left, right, "a second time, too");
            let notes = ["4 waits are in sets whose parts are not seen (dormouse::part)"];
            assert_eq!(profile.coverage.notes, notes);
        }
    }

    #[test]
    fn time_before_parts_were_seen_stays() {
        let (mut profile, symbols) =
            waits(&[(&[FETCH, PART, SET, ALL, MAIN], 1, [1, 5]), (&[SET, ALL, MAIN], 1, [9, 1000])]);
        settle_waits(&mut profile, &symbols);
        assert_eq!(profile.samples[1].values, [9, 1000, 0, 0]);
        assert_eq!(profile.coverage.notes.len(), 1);
    }
}

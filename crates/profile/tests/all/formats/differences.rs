//! Two profiles of two runs, whose addresses differ.

use dormouse_profile::{Diff, Error, Profile, ProfileKind, Symbols};

use super::known::{BLEND, profile, symbols};

/// The same program, loaded elsewhere.
fn moved() -> (Profile, Symbols) {
    const BY: u64 = 0x1000_0000;
    let (mut profile, old) = (profile(), symbols());
    let mut symbols = Symbols::default();
    for node in &mut profile.stacks {
        symbols.insert(node.address + BY, old.get(node.address).to_vec());
        node.address += BY;
    }
    for mapping in &mut profile.mappings {
        mapping.start += BY;
        mapping.end += BY;
    }
    (profile, symbols)
}

fn rows(diff: &Diff) -> Vec<(String, String, u64, u64)> {
    let rows = diff.profile.samples.iter().zip(&diff.old).map(|(sample, old)| {
        let stack = diff.symbols.stack(&diff.profile, sample);
        let group = diff.profile.groups[sample.group as usize].name.clone();
        (group, stack[0].name.to_string(), sample.values[1], old[1])
    });
    rows.collect()
}

#[test]
fn stacks_are_joined_by_their_names() {
    let (new, new_symbols) = moved();
    let diff = Diff::between((&profile(), &symbols()), (&new, &new_symbols)).unwrap();
    assert_eq!(diff.profile.samples.len(), 6);
    assert!(rows(&diff).iter().all(|(_, _, new, old)| new == old && *new > 0), "{:?}", rows(&diff));
    assert!((0..6).all(|row| diff.change(row) == 0.0));
    // Without names they are where they were in their files.
    let none = Symbols::default();
    let unnamed = Diff::between((&profile(), &none), (&new, &none)).unwrap();
    assert_eq!(unnamed.profile.samples.len(), 6);
}

#[test]
fn what_grew_is_told_by_the_second() {
    let (mut new, new_symbols) = moved();
    // A fifth of the time; blend as busy as it was, steep twice as busy, poll gone.
    new.duration_ns /= 5;
    for sample in &mut new.samples {
        sample.values[1] /= 5;
    }
    new.samples[2].values[1] *= 2;
    new.samples.retain(|it| it.group != 0);
    let diff = Diff::between((&profile(), &symbols()), (&new, &new_symbols)).unwrap();
    assert!((diff.scale(1) - 0.2).abs() < 1e-9);
    let changes: Vec<_> = rows(&diff)
        .iter()
        .enumerate()
        .map(|(row, it)| (it.0.clone(), it.1.clone(), diff.change(row).round() as i64))
        .filter(|it| it.2 != 0)
        .collect();
    let expected = [
        ("GET /steep", super::known::STEEP, 600_000_000),
        ("", "mio::poll", -200_000_000),
        ("", "(stack unknown)", -100_000_000),
    ];
    let expected = expected.map(|(group, name, change)| (group.to_owned(), name.to_owned(), change));
    assert_eq!(changes, expected);
}

#[test]
fn profiles_of_unknown_length_are_compared_by_share() {
    let (mut old, mut new) = (profile(), profile());
    old.duration_ns = 0;
    for sample in &mut new.samples {
        sample.values[1] *= 3;
    }
    let diff = Diff::between((&old, &symbols()), (&new, &symbols())).unwrap();
    assert!((diff.scale(1) - 3.0).abs() < 1e-9);
    let empty = Diff::between((&Profile::default(), &symbols()), (&new, &symbols())).unwrap();
    assert!((empty.scale(1) - 1.0).abs() < 1e-9);
    assert_eq!(empty.profile.samples.len(), 6);
}

#[test]
fn threads_and_inlining_do_not_part_stacks() {
    let mut new = profile();
    new.samples[0].stack = new.samples[1].stack;
    let diff = Diff::between((&Profile::default(), &symbols()), (&new, &symbols())).unwrap();
    let blend: Vec<_> = rows(&diff).into_iter().filter(|it| it.1 == BLEND).collect();
    assert_eq!(blend, [("GET /blend".to_owned(), BLEND.to_owned(), 5_000_000_000, 0)]);
}

#[test]
fn profiles_of_two_kinds_have_no_difference() {
    let other = Profile { kind: ProfileKind::Alloc, ..Profile::default() };
    let refused = Diff::between((&other, &symbols()), (&profile(), &symbols()));
    assert!(matches!(refused, Err(Error::Unreadable(why)) if why.contains("alloc") && why.contains("cpu")));
}

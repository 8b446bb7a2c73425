//! The reader of profiles ends on any file, and whatever it has read can be shown, compared and
//! written, and is read again.

use dormouse_profile::{Diff, Profile, Symbols, decode, encode};

/// Bytes are a file that somebody wants to compare a profile with.
///
/// # Panics
///
/// When a profile that was read cannot be written, or is then another one.
pub fn check(bytes: &[u8]) {
    let Ok((profile, symbols)) = decode::pprof(bytes) else { return };
    let file = encode::pprof(&profile, &symbols);
    let (again, names) = decode::pprof(&file).expect("a profile that was read");
    let lines = encode::folded(&profile, &symbols);
    assert_eq!(encode::folded(&again, &names), lines);
    assert_eq!(total(&again), total(&profile));
    let diff = Diff::between((&profile, &symbols), (&again, &names)).expect("one kind");
    assert_eq!(total(&diff.profile), total(&profile));
    encode::folded_diff(&diff);
    assert!(!encode::firefox(&profile, &Symbols::default()).is_empty());
}

fn total(profile: &Profile) -> [u64; 4] {
    let mut total = [0; 4];
    for sample in &profile.samples {
        for (sum, value) in total.iter_mut().zip(sample.values) {
            *sum += value;
        }
    }
    total
}

//! The same test in every tier.

/// The environments in which every tier but the last is asked for, one at a time.
pub(crate) const EACH_TIER: &[&[(&str, &str)]] =
    &[&[("DORMOUSE_CLOCK", "rseq")], &[("DORMOUSE_CLOCK", "page")], &[("DORMOUSE_CLOCK", "gap")]];

/// Whether the calling thread has the tier that the environment asks for; else the test is skipped, and
/// this says why.
pub(crate) fn has_wanted_tier() -> bool {
    let wanted = std::env::var("DORMOUSE_CLOCK").unwrap_or_default();
    let has = dormouse_clock::tier().name() == wanted;
    if !has {
        println!("1 skipped: no tier {wanted} here: {:?}", dormouse_clock::capability());
    }
    has
}

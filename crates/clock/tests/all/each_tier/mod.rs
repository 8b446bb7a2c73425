//! The same test in every tier.

/// The environments in which every tier but the last is asked for, one at a time.
pub(crate) const EACH_TIER: &[&[(&str, &str)]] =
    &[&[("DORMOUSE_CLOCK", "rseq")], &[("DORMOUSE_CLOCK", "page")], &[("DORMOUSE_CLOCK", "gap")]];

/// Whether the calling thread has the tier that the environment asks for; if not, the test is
/// skipped.
pub(crate) fn has_wanted_tier() -> bool {
    let wanted = std::env::var("DORMOUSE_CLOCK").unwrap_or_default();
    let has = dormouse_clock::tier().name() == wanted;
    if !has {
        dormouse_testkit::skip(format_args!("no tier {wanted} here: {:?}", dormouse_clock::capability()));
    }
    has
}

/// Whether this tier of the calling thread may be that of a thread without a page: the gap, or none
/// where the gap is no proof.
pub(crate) fn is_below_page(tier: dormouse_clock::Tier) -> bool {
    match tier {
        dormouse_clock::Tier::Gap => true,
        dormouse_clock::Tier::Syscall => asking_is_slow(),
        _ => false,
    }
}

/// Whether asking the kernel takes as long as a switch elsewhere, as in an emulator. A thread with
/// a better tier than the gap has no need to know.
fn asking_is_slow() -> bool {
    let report = dormouse_clock::capability();
    report.iter().any(|line| line.detail.contains("gap: asking the kernel takes"))
}

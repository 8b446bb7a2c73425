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

/// Whether a thread without a page may have this tier: the gap, or none where asking the kernel
/// takes as long as a switch elsewhere, as in an emulator.
pub(crate) fn is_below_page(tier: dormouse_clock::Tier) -> bool {
    let is_slow = || {
        let report = dormouse_clock::capability();
        report.iter().any(|line| line.detail.contains("gap: asking the kernel takes"))
    };
    match tier {
        dormouse_clock::Tier::Gap => true,
        dormouse_clock::Tier::Syscall => is_slow(),
        _ => false,
    }
}

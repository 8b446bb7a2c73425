//! Sentences about how complete a profile is.

use dormouse_profile::{Profile, ProfileKind, StackEnd, StackEnds};

use super::uses::{amount, has_groups, percent};
use crate::output::{DIM, FAIR};
use crate::text::{clean, count};

/// The average number of frames below which most of a stack is missing: a frame pointer that was
/// not changed since the thread's first function leads straight to that function.
const FEW_FRAMES: f64 = 5.0;

/// Below this share of stacks, functions are missing that somebody would look for.
const FEW_PERCENT: f64 = 90.0;

/// Lines for a reader, those that are worth a warning in its colour.
pub(crate) fn lines(profile: &Profile) -> Vec<String> {
    let coverage = &profile.coverage;
    let column = profile.kind.main_column();
    let mut lines = Vec::new();
    let mut fine = |line: String| lines.push(format!("{DIM}{line}{DIM:#}"));
    if coverage.total > 0 && has_groups(profile) {
        let (share, total) =
            (percent(coverage.in_groups, coverage.total), amount(profile.kind, column, coverage.total));
        fine(format!("in groups: {share:.1} % of the {total} that the process used"));
    }
    if profile.kind == ProfileKind::Cpu && coverage.threads > 0 {
        fine(format!("threads: {} of {} sampled", coverage.armed, coverage.threads));
    }
    if coverage.samples == 0 {
        fine("nothing was sampled".to_owned());
    }
    let ends = StackEnds::of(profile);
    let ended = percent(ends.whole, ends.stacks);
    let frames = frames(profile);
    // From outside it is unknown where a stack ends.
    let is_told = has_groups(profile) || coverage.ended > 0;
    let whole = if is_told { format!("{ended:.1} % ended properly, ") } else { String::new() };
    let stacks = format!("stacks of {}: {whole}{frames:.1} frames on average", count(ends.stacks, "sample"));
    // A stack that was cut, or lacks a library's caller, is short for another reason.
    let reasons = coverage.ended + coverage.cut + coverage.in_library;
    let known = percent(reasons.min(ends.stacks), ends.stacks);
    let is_short = ends.stacks > 0 && if is_told { known < FEW_PERCENT } else { frames < FEW_FRAMES };
    if ends.stacks > 0 && !is_short {
        fine(stacks.clone());
    }
    if coverage.overruns > 0 && coverage.overruns < coverage.samples {
        fine(format!("{}; the weight is kept", expiries(coverage.overruns)));
    }
    if ends.are_well() {
        ends.sentences().into_iter().for_each(|sentence| fine(clean(&sentence)));
    }
    let mut warn = |line: String| lines.push(format!("{FAIR}{line}{FAIR:#}"));
    if is_short {
        // A program may have short stacks by nature.
        let are = if is_told { "are" } else { "may be" };
        warn(format!("{stacks}; functions that called them {are} missing"));
    }
    if !ends.are_well() {
        ends.sentences().into_iter().for_each(|sentence| warn(clean(&sentence)));
    }
    // Those that are cut at their end are among them.
    let behind: u64 = ends.others.iter().filter(|of| of.why == StackEnd::Cut).map(|of| of.stacks).sum();
    let refused = if has_groups(profile) {
        "refused a timer by the kernel, and not sampled"
    } else {
        "refused an event by the kernel"
    };
    let dropped = match profile.kind {
        ProfileKind::Cpu | ProfileKind::Wall => {
            "dropped: the queue was full, or a later one of the thread came first; the weight is in the \
             thread's next sample"
        }
        ProfileKind::Alloc | ProfileKind::Faults => {
            "dropped: the queue was full; what they stood for is missing from their stacks"
        }
    };
    let missing = [
        (coverage.in_library, "sample", "in a library of the system, without the function that called it"),
        (
            coverage.cut.saturating_sub(behind),
            "stack",
            "longer than there is room for: functions in the middle are missing",
        ),
        (
            coverage.uncopied,
            "stack",
            "with callers by frame pointers alone: there was no room for its copy, or no unwind table",
        ),
        (coverage.merged, "sample", "without a stack: the table of stacks is full"),
        (coverage.dropped, "sample", dropped),
        (coverage.refused, "thread", refused),
        (coverage.blocking, "thread", "not sampled: the signal is blocked there"),
    ];
    for (n, what, why) in missing.into_iter().filter(|&(n, ..)| n > 0) {
        warn(format!("{} {why}", count(n, what)));
    }
    if coverage.overruns > 0 && coverage.overruns >= coverage.samples {
        let why = "the kernel's tick is longer than the period; the weight is kept";
        warn(format!("{}: {why}", expiries(coverage.overruns)));
    }
    for note in &coverage.notes {
        warn(clean(note));
    }
    lines
}

fn expiries(n: u64) -> String {
    let what = if n == 1 { "expiry" } else { "expiries" };
    format!("{n} {what} of timers merged with others")
}

/// The frames of a known stack, on average by weight.
fn frames(profile: &Profile) -> f64 {
    let mut depths: Vec<f64> = Vec::with_capacity(profile.stacks.len());
    for node in &profile.stacks {
        // A node comes after its parent.
        let parent = (node.parent as usize).checked_sub(1).and_then(|parent| depths.get(parent));
        let frame = if StackEnd::at(node.address).is_some() { 0.0 } else { 1.0 };
        depths.push(parent.unwrap_or(&0.0) + frame);
    }
    let column = profile.kind.main_column();
    let known = profile.samples.iter().filter_map(|sample| {
        let depth = depths.get((sample.stack as usize).checked_sub(1)?)?;
        Some((sample.values[column] as f64, depth))
    });
    let (weights, frames) =
        known.fold((0.0, 0.0), |(sum, frames), (weight, depth)| (sum + weight, frames + weight * depth));
    if weights > 0.0 { frames / weights } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::uses::tests::tea;
    use super::*;

    fn text(profile: &Profile) -> String {
        anstream::adapter::strip_str(&lines(profile).join("\n")).to_string()
    }

    #[test]
    fn few_whole_stacks_lead_to_the_one_line() {
        let (mut profile, _) = tea();
        insta::assert_snapshot!("unknown_language", text(&profile));
        profile.program = std::env::current_exe().unwrap().display().to_string();
        insta::assert_snapshot!("few_whole", text(&profile));
        profile.coverage.ended = 7;
        insta::assert_snapshot!("whole_and_flat", text(&profile));
        profile.stacks.splice(0..0, [dormouse_profile::Node::default(); 3]);
        for (index, node) in profile.stacks.iter_mut().enumerate() {
            node.parent = index as u32;
        }
        profile.samples.iter_mut().filter(|it| it.stack > 0).for_each(|it| it.stack += 3);
        insta::assert_snapshot!("whole_and_deep", text(&profile));
    }

    #[test]
    fn nothing_is_claimed_that_nobody_knows() {
        let (mut profile, _) = tea();
        profile.groups.truncate(1);
        profile.coverage.ended = 0;
        insta::assert_snapshot!("outside", text(&profile));
        profile.coverage.samples = 0;
        insta::assert_snapshot!("no_samples", text(&profile));
    }

    #[test]
    fn every_loss_is_told_with_its_reason() {
        let (mut profile, _) = tea();
        let coverage = &mut profile.coverage;
        (coverage.cut, coverage.merged, coverage.dropped) = (1, 2, 3);
        (coverage.overruns, coverage.refused, coverage.blocking) = (4, 5, 6);
        coverage.notes.push("a note\x1b[31m".into());
        insta::assert_snapshot!("losses", text(&profile));
        profile.kind = ProfileKind::Alloc;
        assert!(
            text(&profile).contains("what they stood for is missing"),
            "a later sample has its own weight"
        );
    }
}

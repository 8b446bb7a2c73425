//! `bench pound`: what it costs when many threads ask again and again how much CPU time they have used together.
//!
//! The origin's two programs, `pound_clock_gettime` and `pound_times`: N threads make 5,000,000 calls in all, N
//! from 2 to 128. Beside them the same loops with our group time: `group-stale` is what a user gets by
//! default, an O(1) read that walks the members once a millisecond; `group-fresh` asks the kernel for
//! every member at every read, with and without the origin's prefetch. A faster answer may be an older one,
//! so how far each is behind is measured too and printed beside its gain; and the walk alone is timed.

mod behind;
mod drive;
mod hardware;
mod origin;
mod tables;
mod walk;

use std::rc::Rc;

use self::drive::{Kind, pound};
use super::{Measured, Settings, goal};
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Case, Plan, Spec, run as run_cases};

/// Threads, as the origin ran them.
const THREADS: [usize; 10] = [2, 5, 8, 12, 21, 30, 48, 79, 110, 128];

/// Calls of all threads together, as the origin's programs make them; what values are scaled to.
const CALLS: usize = 5_000_000;

/// Calls of all threads together in quick mode, and questions to the kernel in the rows that ask for every member.
const QUICK_CALLS: usize = 50_000;

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    // Each sample makes thousands of calls on threads of its own: there is nothing to warm up, and a round is long.
    let plan = Plan { warmup: 0, ..settings.plan(10, 3) };
    let mut cases: Vec<Case<'static>> = Vec::new();
    for threads in THREADS {
        cases.extend(Kind::ALL.map(|kind| pound_case(kind, threads, calls(settings, kind, threads))));
        cases.extend(behind::cases(settings, threads));
        cases.push(walk::case(settings, threads));
    }
    let seen = Rc::new(hardware::Seen::default());
    for threads in THREADS {
        let counted = |kind| hardware::cases(kind, threads, calls(settings, kind, threads) / 10, &seen);
        cases.extend(Kind::ALL.into_iter().flat_map(counted));
    }
    let mut measured = Measured::of(run_cases(cases, &plan, progress, |_| false), &plan);
    measured.notes.extend(seen.notes());
    measured.params.insert("calls".to_owned(), calls(settings, Kind::ClockGettime, 2).into());
    measured.params.insert("scaled_to_calls".to_owned(), CALLS.into());
    compare(&mut measured, settings);
    measured
}

/// How many calls to make. The origin's programs make as many as the origin's do, and so does what is compared with
/// them; `process` is their system call again, and who asks the kernel for every member asks as often as there are
/// members, so these get fewer. They would be two thirds of the time and no nearer to their mean.
fn calls(settings: &Settings, kind: Kind, threads: usize) -> usize {
    let (calls, asked) = if settings.quick { (QUICK_CALLS, QUICK_CALLS) } else { (CALLS, 2_000_000) };
    match kind {
        Kind::ClockGettime | Kind::Times | Kind::GroupStale => calls,
        Kind::Process => calls / 5,
        Kind::GroupFresh | Kind::GroupFreshPrefetch => (asked / threads).clamp(threads * 4, calls),
    }
}

fn pound_case(kind: Kind, threads: usize, calls: usize) -> Case<'static> {
    let each = calls / threads;
    let spec = Spec::new(format!("pound/{}/{threads}", kind.name()), "s")
        .with("threads", threads)
        .with("calls", each * threads)
        .with("scaled_to_calls", CALLS)
        .with("clock", "wall");
    Case::new(vec![spec], move || {
        let elapsed = pound(kind, threads, each)?;
        Ok(vec![elapsed.as_secs_f64() * CALLS as f64 / (each * threads) as f64])
    })
}

/// In percent of the figure before, as the origin gives it: positive is faster.
fn gain(before: f64, after: f64) -> f64 {
    100.0 * (before - after) / before
}

/// Rows computed from the measured ones, the origin's tables beside them, and what to say of it all.
fn compare(measured: &mut Measured, settings: &Settings) {
    let rows = &measured.rows;
    let pounded = |kind: Kind, threads| find(rows, &format!("pound/{}/{threads}", kind.name()));
    let mut computed = Vec::new();
    for threads in THREADS {
        let before = pounded(Kind::ClockGettime, threads);
        for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::ClockGettime) {
            let spec = Spec::new(format!("gain/{}/{threads}", kind.name()), "%");
            computed.push(Row::paired(spec, &before, &pounded(kind, threads), gain));
        }
        let stale = pounded(Kind::GroupStale, threads);
        computed.push(Row::times(&format!("speedup/group-stale/{threads}"), &before, &stale));
        let walk = |name| find(rows, &format!("walk/{name}/{threads}"));
        let spec = Spec::new(format!("walk-gain/{threads}"), "%");
        computed.push(Row::paired(spec, &walk("no-prefetch"), &walk("prefetch"), gain));
    }
    measured.rows.append(&mut computed);
    let rows = &measured.rows;
    let worst = THREADS
        .iter()
        .map(|threads| find(rows, &format!("speedup/group-stale/{threads}")))
        .min_by(|a, b| a.median.unwrap_or(0.0).total_cmp(&b.median.unwrap_or(0.0)));
    if let Some(worst) = worst {
        let text =
            "group-stale at least 8 times faster than clock_gettime at every number of threads; the worst";
        measured.notes.push(goal(text, &worst, |times| times >= 8.0));
    }
    measured.tables.extend(tables::all(rows));
    if settings.quick {
        measured.notes.push(format!(
            "quick: {QUICK_CALLS} calls in all where the origin makes {CALLS}, and about as many questions to the kernel \
             in the group-fresh rows; values are scaled to {CALLS} calls"
        ));
    }
    measured.notes.extend(NOTES.iter().map(|&note| note.to_owned()));
}

const NOTES: &[&str] = &[
    "pound rows: wall time from the release of the threads, which have all started, to the end of the last one's \
     calls; each call's answer is compared with the one before it, as the origin's programs do",
    "process and group-fresh rows make fewer calls than the others (their parameter `calls`): the one is clock_gettime again, the \
     others ask the kernel for every member at each call. Their values are scaled to 5,000,000 calls like all others",
    "gain: 100 * (clock_gettime - X) / clock_gettime, of values of the same round; the origin's gain is that of \
     its patched kernel over the same kernel without the patch, which walk-gain is of our walk",
    "cycles and l1-misses rows: runs of their own with a tenth of the calls, under inherited counters of the whole process",
    "behind rows: process_exact() taken around the read, at least and at most, less what this process had used outside the \
     group; the median of the samples of a round. behind/…/group-stale-silent: members that compute and never read",
    "the origin measured a machine with 32 processors and two memory nodes, where a line that another processor \
     has written is far away; what prefetching it is worth depends on that",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_runs_make_fewer_calls_and_every_thread_makes_some() {
        for quick in [true, false] {
            let settings = Settings { quick, reps: None, seed: 1 };
            for (kind, threads) in Kind::ALL.into_iter().flat_map(|kind| THREADS.map(|n| (kind, n))) {
                let calls = calls(&settings, kind, threads);
                assert!(calls >= 4 * threads && calls <= CALLS, "{} {threads}: {calls}", kind.name());
            }
            assert_eq!(calls(&settings, Kind::Times, 128) < CALLS, quick);
        }
    }

    #[test]
    fn the_origins_gains_follow_from_its_figures() {
        for pair in [origin::CLOCK_GETTIME, origin::TIMES, origin::CYCLES, origin::L1_MISSES].as_flattened() {
            let gain = gain(pair.before, pair.after);
            // The figures are rounded to two digits, the gains were not made from those.
            assert!((gain - pair.gain).abs() < 0.5, "{pair:?}: {gain}");
        }
    }
}

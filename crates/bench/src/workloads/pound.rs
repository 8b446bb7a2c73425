//! `bench pound`: what it costs when many threads ask again and again how much CPU time they have used together.
//!
//! The origin's two programs, `pound_clock_gettime` and `pound_times`: N threads make 5,000,000 calls in all, N from 2
//! to 128. Beside them the same loops with our clocks of the process and with group time: `group-stale` is what a user
//! gets by default, an O(1) read that walks the members once a millisecond; `group-fresh` asks the kernel for every
//! member at every read, with and without the origin's prefetch. A faster answer may be an older one, so how far each
//! is from `process_exact()`, and from what its reader was told, is measured too and printed beside its gain; and the
//! walk alone is timed.

mod drive;
mod error;
mod hardware;
mod origin;
mod tables;
mod walk;

use std::rc::Rc;

use self::drive::{Kind, TURNS, in_turns, pound};
use super::{Measured, Settings, goal};
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Case, Plan, Spec, run as run_cases};

/// Threads, as the origin ran them.
const THREADS: [usize; 10] = [2, 5, 8, 12, 21, 30, 48, 79, 110, 128];

/// Calls of all threads together, as the origin's programs make them; what values are scaled to.
const CALLS: usize = 5_000_000;

/// Calls of all threads together where each is a system call.
const ASKING: usize = 500_000;

/// The same in quick mode.
const QUICK_ASKING: usize = 100_000;

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    // Each sample makes thousands of calls on threads of its own: there is nothing to warm up, and a round is long.
    let plan = Plan { warmup: 0, ..settings.plan(10, 3) };
    let mut cases: Vec<Case<'static>> = Vec::new();
    for threads in THREADS {
        cases.extend(Kind::ALL.map(|kind| pound_case(kind, threads, calls(settings, kind, threads))));
        cases.push(turns_case(threads, calls(settings, Kind::Process, threads)));
        cases.push(start_case(threads));
        cases.extend(error::cases(threads));
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

/// How many calls to make. A read that asks nobody is so short that it takes the origin's number of them to be long
/// against the start of 128 threads; of system calls a few are enough. Who asks the kernel for every thread does so
/// as often as there are threads, so these make fewer still.
fn calls(settings: &Settings, kind: Kind, threads: usize) -> usize {
    let asking = if settings.quick { QUICK_ASKING } else { ASKING };
    match kind {
        Kind::GroupStale if cfg!(debug_assertions) => asking,
        Kind::GroupStale => CALLS,
        Kind::ClockGettime | Kind::Times | Kind::Process => asking,
        // Listing a thread costs more than asking for it.
        Kind::ProcessExact => (asking / 20 / threads).max(threads * 4),
        Kind::GroupFresh | Kind::GroupFreshPrefetch => (asking / threads).max(threads * 4),
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

/// What is compared to a few percent, call by call.
fn turns_case(threads: usize, calls: usize) -> Case<'static> {
    let specs = TURNS.map(|kind| {
        Spec::new(format!("call/{}/{threads}", kind.name()), "ns")
            .with("threads", threads)
            .with("calls", calls)
            .with("clock", "thread CPU time")
    });
    Case::new(specs.into(), move || in_turns(threads, calls / threads))
}

/// What a pound row has in it beside the calls.
fn start_case(threads: usize) -> Case<'static> {
    let spec = Spec::new(format!("start/{threads}"), "ms").with("threads", threads).with("clock", "wall");
    Case::new(vec![spec], move || Ok(vec![pound(Kind::GroupStale, threads, 0)?.as_secs_f64() * 1e3]))
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
        let [plain, ours] = TURNS.map(|kind| find(rows, &format!("call/{}/{threads}", kind.name())));
        computed.push(Row::paired(
            Spec::new(format!("call-gain/process/{threads}"), "%"),
            &plain,
            &ours,
            gain,
        ));
        let stale = pounded(Kind::GroupStale, threads);
        let mut speedup = Row::times(&format!("speedup/group-stale/{threads}"), &before, &stale);
        let told = find(rows, &format!("pound-error/group-stale/{threads}/told-p50")).median;
        speedup.params.insert("behind_ns".to_owned(), told.into());
        computed.push(speedup);
        let walk = |name| find(rows, &format!("walk/{name}/{threads}"));
        let spec = Spec::new(format!("walk-gain/{threads}"), "%");
        computed.push(Row::paired(spec, &walk("no-prefetch"), &walk("prefetch"), gain));
    }
    let [few, many] = [THREADS[0], THREADS[THREADS.len() - 1]].map(|n| pounded(Kind::GroupStale, n));
    computed.push(Row::times("growth/group-stale", &many, &few));
    measured.rows.append(&mut computed);
    measured.notes.extend(goals(&measured.rows));
    measured.tables.extend(tables::all(&measured.rows));
    let [asking, stale] = [Kind::ClockGettime, Kind::GroupStale].map(|kind| calls(settings, kind, 2));
    measured.notes.push(format!(
        "calls: the origin's programs make {CALLS}. group-stale makes {stale}, clock_gettime, times and process {asking}, the \
         others fewer (their parameter `calls`), because they ask the kernel for every thread at each call. All values are \
         scaled to {CALLS}, and with them what the threads take to wake up and to end, which the start rows have alone"
    ));
    measured.notes.extend(NOTES.iter().map(|&note| note.to_owned()));
}

/// What was asked of the rows, each by its worst number of threads.
fn goals(rows: &[Row]) -> Vec<String> {
    // A row without values first: then the goal is not decided.
    let low = |row: &Row| row.median.unwrap_or(f64::NEG_INFINITY);
    let lowest = |name: &str| {
        let rows = THREADS.iter().map(|threads| find(rows, &format!("{name}/{threads}")));
        rows.min_by(|a, b| low(a).total_cmp(&low(b)))
    };
    let faster = lowest("speedup/group-stale").map(|row| {
        let text =
            "group-stale at least 8 times faster than clock_gettime at every number of threads; the worst";
        goal(text, &row, |times| times >= 8.0)
    });
    let process = lowest("call-gain/process").map(|row| {
        let text = "process at most 10 % slower than clock_gettime at every number of threads, call by call; the worst";
        goal(text, &row, |gain| gain >= -10.0)
    });
    let growth = find(rows, "growth/group-stale");
    let text = "group-stale takes at most twice as long with 128 threads as with 2";
    faster.into_iter().chain(process).chain([goal(text, &growth, |times| times <= 2.0)]).collect()
}

const NOTES: &[&str] = &[
    "pound rows: wall time from the release of the threads, which have all started, to the end of the last one's \
     calls; each call's answer is compared with the one before it, as the origin's programs do",
    "call rows: the two system calls in turns of 500 in the same threads, by the threads' CPU time: the pound rows of two such samples differ by what \
     the machine does meanwhile. start rows: the same as pound/group-stale without a call",
    "gain: 100 * (clock_gettime - X) / clock_gettime, of values of the same round; the origin's gain is that of \
     its patched kernel over the same kernel without the patch, which walk-gain is of our walk",
    "cycles and l1-misses rows: runs of their own with a tenth of the calls, under inherited counters of the whole process",
    "behind rows: how far the answer is behind at least and at most, by process_exact() taken after the read, less what this process \
     had used outside the group: the median of the samples of a round. */process-silent and */group-stale-silent: threads that compute and never read",
    "pound-error rows: p50 and max of the distances of a round's answers from the middle of that least and most; where these \
     are three times as far apart as at best, from the nearer one, if the answer is outside of both. told: the bound that the read gave (behind_ns; \
     for process a tick for each other processor). outside: answers that were certainly further behind than told, or ahead by more than a millisecond for \
     each member; one of a group fails the run",
    "the origin measured a machine with 32 processors and two memory nodes, where a line that another processor \
     has written is far away; what prefetching it is worth depends on that",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_runs_make_fewer_calls_and_every_thread_makes_some() {
        let [quick, full] = [true, false].map(|quick| Settings { quick, reps: None, seed: 1 });
        for (kind, threads) in Kind::ALL.into_iter().flat_map(|kind| THREADS.map(|n| (kind, n))) {
            let [few, many] = [&quick, &full].map(|settings| calls(settings, kind, threads));
            assert!(
                4 * threads <= few && few <= many && many <= CALLS,
                "{} {threads}: {few}, {many}",
                kind.name()
            );
        }
        assert!(calls(&quick, Kind::Times, 128) < calls(&full, Kind::Times, 128));
    }

    /// Without a round no row has values; that all are there does not hang on how long a full run takes.
    #[test]
    fn a_full_run_has_the_rows_of_a_quick_one() {
        let [quick, full] = [true, false].map(|quick| {
            let settings = Settings { quick, reps: Some(0), seed: 1 };
            run(&settings, &mut Progress::hidden())
        });
        let names = |of: &Measured| of.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&quick), names(&full));
        assert!(full.wrong.is_empty() && full.tables.len() == quick.tables.len());
        for kind in Kind::ALL {
            assert!(THREADS.iter().all(|n| names(&full).contains(&format!("pound/{}/{n}", kind.name()))));
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

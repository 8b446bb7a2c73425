//! `bench pound`: the price when many threads read again and again how much CPU time they have used
//! together.
//!
//! The origin's two programs, `pound_clock_gettime` and `pound_times`: N threads make 5,000,000
//! calls in all, N from 2 to 128. Beside them the same loops with our clocks of the process and
//! with group time: `group-stale` is the default, an O(1) read that walks the members once a
//! millisecond; `group-fresh` asks the kernel for every member at every read, with and without the
//! origin's prefetch. A faster answer may be an older one, so the distance of each from
//! `process_exact()`, and from the bound that its reader was told, is measured too and printed
//! beside its gain ([`error`]); and the walk alone is timed ([`walk`]).

mod drive;
mod error;
mod hardware;
mod origin;
mod walk;

use std::rc::Rc;

use crate::bench::Bench;
use crate::row::Spec;
use crate::runner::Plan;
use drive::{Call, TURNS, in_turns, pound};
use origin::{CALLS, THREADS, gain};

/// The origin's figures, with ours in their columns.
pub(crate) const ORIGIN: &str = include_str!("origin.txt");

pub(crate) fn run(bench: &mut Bench) {
    for threads in THREADS {
        for call in Call::ALL {
            let each = calls(bench, call, threads) / threads;
            let spec = Spec::new(format!("pound/{}/{threads}", call.name()), "s")
                .with("threads", threads)
                .with("calls", each * threads)
                .with("scaled_to_calls", CALLS)
                .with("clock", "wall");
            bench.sample(spec, move || {
                Ok(pound(call, threads, each)?.as_secs_f64() * CALLS as f64 / (each * threads) as f64)
            });
        }
        // These differ by a few percent, so they are compared call by call.
        let calls = calls(bench, Call::Process, threads);
        let specs = TURNS.map(|call| {
            Spec::new(format!("call/{}/{threads}", call.name()), "ns")
                .with("threads", threads)
                .with("calls", calls)
                .cpu()
        });
        bench.sample(specs, move || in_turns(threads, calls / threads));
        // A pound row has this in it beside the calls.
        let spec = Spec::new(format!("start/{threads}"), "ms").with("threads", threads).with("clock", "wall");
        bench.sample(spec, move || Ok(pound(Call::GroupStale, threads, 0)?.as_secs_f64() * 1e3));
        error::rows(bench, threads);
        walk::rows(bench, threads);
    }
    let seen = Rc::new(hardware::Conditions::default());
    for (threads, call) in THREADS.into_iter().flat_map(|threads| Call::ALL.map(|call| (threads, call))) {
        let calls = calls(bench, call, threads) / 10;
        hardware::rows(bench, call, threads, calls, &seen);
    }
    // Each sample makes thousands of calls on new threads: there is nothing to warm up, and a round
    // is long.
    bench.measure("reps", Plan { warmup: 0, ..bench.plan(10, 2) });
    seen.note(bench);
    bench.param("calls", calls(bench, Call::ClockGettime, 2));
    bench.param("scaled_to_calls", CALLS);
    compare(bench);
    goals(bench);
    let [asking, stale] = [Call::ClockGettime, Call::GroupStale].map(|call| calls(bench, call, 2));
    bench.notes.push(format!(
        "calls: the origin's programs make {CALLS}. group-stale makes {stale}, clock_gettime, times and process \
         {asking}, the others fewer (their parameter `calls`), because they ask the kernel for every thread at \
         each call. All values are scaled to {CALLS}, and with them what the threads take to wake up and to \
         end, which the start rows have alone"
    ));
    bench.explain(include_str!("notes.txt"));
}

/// How many calls to make. A read without a system call is so short that the origin's number is
/// needed to be long relative to the start of 128 threads; of system calls a few are enough. A call
/// that reads every thread does as much work as there are threads, so fewer still are made.
fn calls(bench: &Bench, call: Call, threads: usize) -> usize {
    let asking = bench.pick(500_000, 100_000);
    match call {
        Call::GroupStale if cfg!(debug_assertions) => asking,
        Call::GroupStale => CALLS,
        Call::ClockGettime | Call::Times | Call::Process => asking,
        // Listing a thread costs more than asking for it.
        Call::ProcessExact => (asking / 20 / threads).max(threads * 4),
        Call::GroupFresh | Call::GroupFreshPrefetch => (asking / threads).max(threads * 4),
    }
}

fn compare(bench: &mut Bench) {
    let pounded = |call: Call, threads: usize| format!("pound/{}/{threads}", call.name());
    for threads in THREADS {
        let mut gained = |name: String, before: &str, after: &str| {
            bench.paired(Spec::new(name, "%"), before, after, gain);
        };
        let before = pounded(Call::ClockGettime, threads);
        for call in &Call::ALL[1..] {
            gained(format!("gain/{}/{threads}", call.name()), &before, &pounded(*call, threads));
        }
        let [plain, ours] = TURNS.map(|call| format!("call/{}/{threads}", call.name()));
        gained(format!("call-gain/process/{threads}"), &plain, &ours);
        let [without, with] = ["no-prefetch", "prefetch"].map(|walk| format!("walk/{walk}/{threads}"));
        gained(format!("walk-gain/{threads}"), &without, &with);
        let told = bench.median(&format!("pound-error/group-stale/{threads}/told-p50"));
        let spec = Spec::new(format!("speedup/group-stale/{threads}"), "times").with("behind_ns", told);
        bench.paired(spec, &before, &pounded(Call::GroupStale, threads), |before, stale| before / stale);
    }
    let [few, many] = [THREADS[0], THREADS[THREADS.len() - 1]].map(|n| pounded(Call::GroupStale, n));
    bench.times("growth/group-stale", &many, &few);
}

/// The goals, each judged at its worst number of threads.
fn goals(bench: &mut Bench) {
    let worst =
        |bench: &Bench, name: &str| bench.smallest(THREADS.map(|threads| format!("{name}/{threads}")));
    let row = worst(bench, "speedup/group-stale");
    let text = "group-stale at least 8 times faster than clock_gettime at every number of threads; the worst";
    bench.at_least(text, &row, 8.0);
    let row = worst(bench, "call-gain/process");
    let text =
        "process at most 10 % slower than clock_gettime at every number of threads, call by call; the worst";
    bench.at_least(text, &row, -10.0);
    let text = "group-stale takes at most twice as long with 128 threads as with 2";
    bench.at_most(text, "growth/group-stale", 2.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Settings;
    use crate::progress::Progress;

    /// A quick run and a full one, without a round.
    fn both() -> [Bench; 2] {
        [true, false].map(|quick| Bench::new(Settings { quick, reps: Some(0), seed: 1 }, Progress::hidden()))
    }

    #[test]
    fn quick_runs_make_fewer_calls() {
        let benches = both();
        for (call, threads) in Call::ALL.into_iter().flat_map(|call| THREADS.map(|n| (call, n))) {
            let [few, many] = benches.each_ref().map(|bench| calls(bench, call, threads));
            assert!(
                4 * threads <= few && few <= many && many <= CALLS,
                "{} {threads}: {few}, {many}",
                call.name()
            );
        }
        let [quick, full] = benches.each_ref().map(|bench| calls(bench, Call::Times, 128));
        assert!(quick < full);
    }

    /// Without a round no row has values; the rows do not depend on how long a full run takes.
    #[test]
    fn full_runs_have_the_rows_of_quick_ones() {
        let [quick, full] = both().map(|mut bench| {
            run(&mut bench);
            bench
        });
        let names = |of: &Bench| of.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&quick), names(&full));
        assert!(full.wrong.is_empty());
        for call in Call::ALL {
            assert!(THREADS.iter().all(|n| names(&full).contains(&format!("pound/{}/{n}", call.name()))));
        }
    }
}

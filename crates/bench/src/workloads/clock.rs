//! `bench clock`: CPU time of a thread, in each tier of the clock.
//!
//! What a read costs, beside the counter alone, the kernel's clock and a crate that asks it; how far the value is from
//! the kernel's, on an idle processor and beside a competitor; what a tier adds to a switch of the kernel; what is left
//! of all that in a poll; and how late CPU budgets end. The tiers are forced one after the other within each round.

mod budget;
pub(super) mod error;
mod switch;

use dormouse::clock::{Tier, force, thread_cpu_ns, tier};

use super::{Measured, Settings, goal, poll, read};
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, run as run_cases};

/// The tiers that read without a system call.
const QUICK: [Tier; 3] = [Tier::Rseq, Tier::Page, Tier::Gap];
const ALL: [Tier; 4] = [Tier::Rseq, Tier::Page, Tier::Gap, Tier::Syscall];

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    let plan = settings.plan(40, 4);
    progress.say("calibrating");
    let mut cases = vec![
        read::rdtsc(settings),
        read::clock_gettime_thread(settings),
        read::case("read/cpu-time-crate", settings, || {
            cpu_time::ThreadTime::now().as_duration().as_nanos() as u64
        }),
    ];
    cases.extend(ALL.map(|tier| in_tier(settings, tier)));
    cases.push(poll::bare(settings));
    cases.extend(
        ALL.map(|tier| poll::charged(&format!("poll/dormouse-{tier}"), settings, move || only(tier))),
    );
    cases.extend(switch::cases(settings));
    cases.extend(error::cases(settings));
    cases.extend(budget::cases(settings));
    let stolen = error::stolen_ticks();
    let mut measured = Measured::of(run_cases(cases, &plan, progress, |_| false), &plan);
    // What the next workload of this process finds is what it would find alone. It was like that before.
    let _ = force(None);
    compare(&mut measured);
    measured.notes.extend(NOTES.iter().chain(&budget::NOTES).map(|&note| note.to_owned()));
    measured.notes.push(error::steal_note(stolen));
    measured
}

fn in_tier(settings: &Settings, tier: Tier) -> Case<'static> {
    read::case_in(&format!("read/thread-{tier}"), settings, move || only(tier), thread_cpu_ns)
}

/// Has this thread, and those that it starts, read by `wanted`.
fn only(wanted: Tier) -> Result<(), Failure> {
    force(Some(wanted))?;
    has(wanted)
}

fn has(wanted: Tier) -> Result<(), Failure> {
    match tier() {
        tier if tier == wanted => Ok(()),
        other => Err(Failure::Unavailable(format!("this thread could only have the tier {other}"))),
    }
}

/// Rows computed from the measured ones, and what to say of them.
fn compare(measured: &mut Measured) {
    let rows = &measured.rows;
    let (rdtsc, kernel) = (find(rows, "read/rdtsc"), find(rows, "read/clock_gettime-thread"));
    let (bare, none) = (find(rows, "poll/bare"), find(rows, "switch-cost/none"));
    let mut computed: Vec<Row> = Vec::new();
    let notes = &mut measured.notes;
    for tier in QUICK {
        let read = find(rows, &format!("read/thread-{tier}"));
        let times = Row::times(&format!("read-times-rdtsc/{tier}"), &read, &rdtsc);
        notes.push(goal(&format!("{tier} at most 1.5 times rdtsc"), &times, |x| x <= 1.5));
        let faster = Row::times(&format!("read-speedup/{tier}"), &kernel, &read);
        notes
            .push(goal(&format!("{tier} at least 8 times faster than clock_gettime"), &faster, |x| x >= 8.0));
        for load in error::LOADS {
            let row = find(rows, &format!("error/{tier}/{load}/p99.9"));
            notes.push(goal(&format!("{tier}, {load}: 99.9 % within 20 us"), &row, |x| x <= 20_000.0));
        }
        let cost = find(rows, &format!("switch-cost/{tier}"));
        computed.extend([times, faster, Row::minus(&format!("switch-added/{tier}"), "ns", &cost, &none)]);
    }
    for tier in ALL {
        let poll = find(rows, &format!("poll/dormouse-{tier}"));
        computed.push(Row::minus(&format!("poll-added/dormouse-{tier}"), "ns", &poll, &bare));
        let total = find(rows, &format!("switch-and-read/{tier}"));
        computed.push(Row::minus(&format!("switch-and-read-added/{tier}"), "ns", &total, &none));
    }
    measured.rows.append(&mut computed);
}

const NOTES: &[&str] = &[
    "read rows: CPU time of a loop that does nothing else; the loop asks the kernel once a millisecond, and that is in the value",
    "error rows: |the clock - the middle of two questions to the kernel around it|, after a random number of reads; a value is the \
     percentile or the largest of one round's samples. A sample whose two questions are far apart tells nothing unless the clock is outside of \
     both, and counts then with its distance from the nearer one; else it is not counted. competitor: a thread that spins on the same processor",
    "switch-cost rows: CPU time of two threads on one processor that hand a byte to each other, for each switch, pipe included. Nobody reads the \
     clock: rseq raises its flag before each switch, page has its page, gap has nothing. switch-and-read: each \
     thread also reads its clock once after each switch, which always finds that it was away",
];

/// Held by tests that force a tier: it is forced for the whole process.
#[cfg(test)]
static FORCING: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_that_was_forced_is_had_or_said_to_be_missing() {
        let _alone = FORCING.lock();
        for tier in ALL {
            match only(tier) {
                Ok(()) => assert_eq!(dormouse::clock::tier(), tier),
                Err(Failure::Unavailable(reason)) => assert!(reason.contains("tier"), "{reason}"),
                Err(wrong) => panic!("{wrong:?}"),
            }
        }
        force(None).unwrap();
    }
}

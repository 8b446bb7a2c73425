//! `bench keys`: what a static key costs asleep, what an update costs, and whom it interrupts.
//!
//! The headline is that of the origin: 56 sites switched one after the other and in one batch, while
//! another thread runs them.

#[cfg(test)]
mod child;
mod cold;
mod cold_code;
mod compile;
mod contended;
mod filter;
mod ipis;
mod loops;
mod neighbour;
mod off;
mod origin;
mod scale;
mod sites;
mod trap;
mod update;
mod ways;

use std::rc::Rc;

use super::{Measured, Settings, goal, read};
use crate::progress::Progress;
use crate::runner::{Case, run as run_cases};
use compile::Compile;

/// Sites of an update, as many as the origin's key had.
pub(crate) const SITES: usize = 56;

/// What the names of rows end in that were measured under a compile.
const BUSY: &str = "/busy";

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    static_keys::global_init();
    let filter = filter::install();
    let plan = settings.plan(100, 6);
    progress.say("calibrating");
    let mut cases = off::cases(settings, filter.as_ref());
    cases.extend(cold::cases(settings));
    cases.extend(cold_code::cases(settings));
    cases.extend(contended::cases(settings));
    cases.push(read::rdtsc(settings));
    cases.extend(update::cases(settings, ""));
    cases.extend(ipis::cases(settings, ""));
    cases.extend(update::alone_cases(settings));
    cases.extend(trap::cases(settings, 4096, ""));
    let mut measured = Measured::of(run_cases(cases, &plan, progress, |_| false), &plan);
    loops::disarm();
    let load = under_a_compile(settings, progress, &mut measured);
    if loops::was_taken() {
        measured.wrong.push("off/…: a branch that was off was taken".to_owned());
    }
    large_batches(settings, progress, &mut measured);
    compare(&mut measured);
    measured.notes.extend(load);
    measured.tables.push(origin::table(&measured.rows));
    measured
}

/// The rows that the origin measured, under the load that it had; says what that was.
fn under_a_compile(settings: &Settings, progress: &mut Progress, measured: &mut Measured) -> Option<String> {
    // Fewer rounds, because each lasts longer.
    let plan = settings.plan(30, 6);
    progress.say("calibrating");
    let mut cases = update::cases(settings, BUSY);
    cases.extend(ipis::cases(settings, BUSY));
    cases.extend(trap::cases(settings, SITES, BUSY));
    let load = Rc::new(Compile::start());
    let guarded = |case: Case<'static>| {
        let load = Rc::clone(&load);
        case.guarded(move || load.as_ref().as_ref()?.check())
    };
    let outcome = run_cases(cases.into_iter().map(guarded).collect(), &plan, progress, |_| false);
    measured.params.insert("busy_reps".to_owned(), plan.reps.into());
    measured.rows.extend(outcome.rows);
    measured.wrong.extend(outcome.wrong);
    let load = load.as_ref().as_ref().ok()?;
    Some(format!("…{BUSY}: the same in a run of its own, while the machine compiles: {}", load.description))
}

/// The rows of an object that, once loaded, stays: last, so that no other row has its sites about.
fn large_batches(settings: &Settings, progress: &mut Progress, measured: &mut Measured) {
    let plan = settings.plan(30, 6);
    progress.say("assembling");
    let outcome = run_cases(scale::cases(settings), &plan, progress, |_| false);
    measured.params.insert("scale_reps".to_owned(), plan.reps.into());
    measured.rows.extend(outcome.rows);
    measured.wrong.extend(outcome.wrong);
}

/// Rows computed from the measured ones, and what to say of them.
fn compare(measured: &mut Measured) {
    let rows = &measured.rows;
    let mut computed = off::compare(rows);
    computed.extend(cold::compare(rows));
    computed.extend(cold_code::compare(rows));
    computed.extend(contended::compare(rows));
    computed.extend(update::compare(rows));
    computed.extend(trap::compare(rows));
    computed.extend(scale::compare(rows));

    let notes = &mut measured.notes;
    notes.extend(off::goals(&computed));
    notes.extend(update::goals(rows, &computed));
    notes.extend(trap::goals(&computed));
    notes.extend(scale::goals(rows, &computed));
    notes.extend(off::NOTES.iter().map(|&note| note.to_owned()));
    notes.extend([cold::NOTE, cold_code::NOTE, contended::NOTE, filter::NOTE].map(str::to_owned));
    notes.extend(update::NOTES.iter().chain(ipis::NOTES).map(|&note| note.to_owned()));
    notes.extend([trap::NOTE, scale::NOTE].map(str::to_owned));
    measured.rows.append(&mut computed);
}

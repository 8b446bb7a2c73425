//! `bench keys`: what a static key costs asleep, what an update costs, and whom it interrupts.
//!
//! The headline is that of the origin: 56 sites switched one after the other and in one batch, while
//! another thread runs them.

mod cold;
mod filter;
mod neighbour;
mod off;
mod sites;
mod update;

use super::{Measured, Settings, goal, read};
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Spec, run as run_cases};
use crate::stats::ratio_of_medians;
use crate::table::{Table, value};

/// Sites of an update, as many as the origin's key had.
pub(crate) const SITES: usize = 56;

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    static_keys::global_init();
    let filter = filter::install();
    let plan = settings.plan(100, 6);
    progress.say("calibrating");
    let mut cases = off::cases(settings, filter.as_ref());
    cases.extend(cold::cases(settings));
    cases.push(read::rdtsc(settings));
    cases.extend(update::cases(settings));
    let mut measured = Measured::of(run_cases(cases, &plan, progress, |_| false), &plan);
    if off::was_taken() {
        measured.wrong.push("off/…: a branch that was off was taken".to_owned());
    }
    compare(&mut measured);
    measured.tables.push(origin(&measured.rows));
    measured
}

/// Rows computed from the measured ones, and what to say of them.
fn compare(measured: &mut Measured) {
    let rows = &measured.rows;
    let row = |name: &str| find(rows, name);
    let (batch, single) = (row("update/batch-flip"), row("update/one-by-one-flip"));
    let mut computed = Vec::new();
    for (body, peers) in off::BODIES {
        for peer in *peers {
            computed.push(Row::percent(
                &format!("{body}-difference/{peer}"),
                &row(&format!("{body}/{peer}")),
                &row(&format!("{body}/none")),
            ));
        }
    }
    let dense = row("off-dense/none");
    for peer in off::DENSE_PEERS {
        let spec = Spec::new(format!("off-dense-added/{peer}"), "ns").with("per", "site");
        let row = row(&format!("off-dense/{peer}"));
        computed.push(Row::paired(spec, &row, &dense, |row, none| (row - none) / off::DENSE));
    }
    computed.extend(cold::compare(rows));
    computed.push(Row::times("update/batch-speedup", &single, &batch));
    let ratio = ratio_of_medians(&single.values, &batch.values);

    let asleep = find(&computed, "off-difference/dormouse");
    let speedup = find(&computed, "update/batch-speedup");
    let notes = &mut measured.notes;
    notes.push(goal("off/dormouse within 5 % of off/none", &asleep, |x| x <= 5.0));
    notes.push(format!(
        "{}; the ratio of the medians is {}",
        goal("update/batch-flip at least 20 times faster than one by one", &speedup, |x| x >= 20.0),
        value(ratio)
    ));
    for name in ["neighbour/batch-flip", "neighbour/one-by-one-flip"] {
        if let Some(share) = row(name).median.filter(|&share| share < 90.0) {
            notes.push(format!(
                "the machine was too busy for the update rows: {name} has median {} %",
                value(Some(share))
            ));
        }
    }
    notes.extend(off::NOTES.iter().map(|&note| note.to_owned()));
    notes.push(cold::NOTE.to_owned());
    notes.push(filter::NOTE.to_owned());
    notes.extend(update::NOTES.iter().map(|&note| note.to_owned()));
    measured.rows.append(&mut computed);
}

/// The origin's figures beside ours.
fn origin(rows: &[Row]) -> Table {
    let median = |name: &str| find(rows, name).median;
    let ratio = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) if b > 0.0 => format!("{:.0}x", a / b),
        _ => "-".to_owned(),
    };
    let mut table = Table::new(
        Some(
            "Origin: jump labels updated in batches, Linux 2019, 24-processor Xeon 2.27 GHz, kernel text, \
             int3, 56 sites; means.\nHere: this run's medians, this process's text, byte flip, 56 sites.",
        ),
        &["", "one by one", "batched", "ratio"],
    );
    table.row(["origin, update", "57 ms", "1.4 ms", "41x"].map(str::to_owned));
    let update = (median("update/one-by-one-flip"), median("update/batch-flip"));
    table.row([
        "here, update".to_owned(),
        format!("{} us", value(update.0)),
        format!("{} us", value(update.1)),
        ratio(update.0, update.1),
    ]);
    table.row(["origin, IPIs an update", "168", "3", "56x"].map(str::to_owned));
    for (label, kind) in [("here, CAL an update", "cal"), ("here, TLB an update", "tlb")] {
        let ipis =
            (median(&format!("ipis/one-by-one-flip/{kind}")), median(&format!("ipis/batch-flip/{kind}")));
        table.row([label.to_owned(), value(ipis.0), value(ipis.1), ratio(ipis.0, ipis.1)]);
    }
    table
}

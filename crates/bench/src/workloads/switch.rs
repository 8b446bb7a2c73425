//! `bench switch`: what it costs to go from one task to the next while events are counted for both.
//!
//! The origin measured processes that hand a token round a ring (`lat_ctx` of lmbench), without events and under
//! inherited ones, before and after contexts were exchanged instead of read. Here the same is done twice: with
//! tasks on one thread and our contexts ([`ring`]), which still have both ways of switching, and with
//! processes and the running kernel's ([`kernel`]), which has only the one that the origin introduced.
//!
//! Futures on a runtime that knows nothing of us are what most services have: [`poll`].

mod kernel;
mod poll;
mod ring;

use dormouse_sys::perf::Counted;

use super::{Measured, Settings, goal};
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Spec, run as run_cases};
use crate::table::{Table, value};

/// Tasks or processes in a ring, as in the origin's table.
const SIZES: [usize; 3] = [2, 8, 32];

/// What the origin counted: four of the processor's, four of the kernel's.
const HARDWARE: [Counted; 8] = [
    Counted::Cycles,
    Counted::Instructions,
    Counted::CacheReferences,
    Counted::CacheMisses,
    Counted::TaskClock,
    Counted::ContextSwitches,
    Counted::CpuMigrations,
    Counted::PageFaults,
];

/// Runs, as many as the origin's figures are the mean of.
const REPS: usize = 20;

/// The origin's figures in microseconds: for each size the means, then the standard deviations, of no, 2
/// hardware, and 4 hardware and 4 software counters before, and of the same after.
const ORIGIN: [(usize, [f64; 6], [f64; 6]); 3] = [
    (2, [3.44, 6.45, 11.24, 3.12, 3.39, 3.60], [0.04, 0.04, 0.13, 0.05, 0.17, 0.19]),
    (8, [6.45, 8.79, 14.00, 5.57, 6.23, 7.57], [1.27, 1.04, 0.88, 1.42, 1.46, 1.42]),
    (32, [5.56, 8.43, 13.78, 5.28, 5.55, 7.15], [0.41, 0.47, 0.53, 0.54, 0.57, 0.81]),
];

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    let plan = settings.plan(REPS, REPS);
    progress.say("calibrating");
    let proof = ring::prove();
    let mut cases = ring::cases(settings);
    cases.extend(kernel::cases());
    cases.extend(poll::cases(settings));
    let mut measured = Measured::of(run_cases(cases, &plan, progress, |_| false), &plan);
    match proof {
        Ok(sentence) => measured.notes.push(sentence),
        Err(what) => measured.wrong.push(what),
    }
    compare(&mut measured);
    measured.tables.push(origin(&measured.rows));
    measured
}

/// Rows computed from the measured ones, and what to say of them.
fn compare(measured: &mut Measured) {
    let rows = &measured.rows;
    let mut computed = Vec::new();
    for size in SIZES {
        let none = find(rows, &format!("ring/none/{size}/swap"));
        for events in ["2", "8"] {
            for way in ["eager", "swap"] {
                let name = format!("{events}/{size}/{way}");
                let row = find(rows, &format!("ring/{name}"));
                computed.push(Row::times(&format!("ring-times-none/{name}"), &row, &none));
                computed.push(Row::minus(&format!("ring-added/{name}"), "ns", &row, &none));
            }
        }
        let bare = find(rows, &format!("ring/bare/{size}"));
        let swap = find(rows, &format!("ring/8/{size}/swap"));
        computed.push(Row::minus(&format!("ring-over-bare/8/{size}/swap"), "ns", &swap, &bare));
        let none = find(rows, &format!("kernel/none/{size}"));
        for events in kernel::EVENTS.iter().filter(|events| !events.list.is_empty()) {
            let name = format!("{}/{size}", events.name);
            let row = find(rows, &format!("kernel/{name}"));
            computed.push(Row::times(&format!("kernel-times-none/{name}"), &row, &none));
        }
    }
    let notes = &mut measured.notes;
    for size in SIZES {
        let row = find(&computed, &format!("ring-times-none/8/{size}/swap"));
        let eager = find(&computed, &format!("ring-times-none/8/{size}/eager"));
        let text = format!("swap with 8 events at most 1.10 times none, {size} tasks");
        notes.push(format!("{}; eager {} times", goal(&text, &row, |x| x <= 1.10), value(eager.median)));
    }
    notes.extend(ring::notes());
    notes.extend(kernel::notes());
    let hardware = find(&computed, "kernel-times-none/2hw/2");
    if hardware.median.is_some_and(|times| times > 3.0) {
        notes.push(format!(
            "kernel rows with hardware counters do not show the origin's shape here (kernel-times-none/2hw/2: {} times); most likely \
             because the kernel stops and starts the PMU around an exchange too, and in a virtual machine each access to it is an exit",
            value(hardware.median)
        ));
    }
    computed.extend(poll::compare(&measured.rows, &mut measured.notes));
    measured.rows.append(&mut computed);
}

/// The origin's table, and ours in its columns.
fn origin(rows: &[Row]) -> Table {
    let mut table = Table::new(
        Some(
            "Origin: lat_ctx under inherited perf counters, Linux 2009, us. Processes: the same on this kernel, which exchanges \
             contexts, us.\nTasks: our contexts on one thread, ns. Means (standard deviations).",
        ),
        &["", "none", "2 HW", "4H+4S", "2 soft", "8 soft"],
    );
    let ours = |name: String| {
        let row = find(rows, &name);
        if row.mean.is_none() {
            return "unavailable".to_owned();
        }
        format!("{} ({})", value(row.mean), value(row.stddev))
    };
    let columns = ["none", "2hw", "4h4s", "2", "8"];
    for (size, mean, stddev) in ORIGIN {
        table.row([format!("{size} in the ring")]);
        let figures: Vec<String> =
            mean.iter().zip(stddev).map(|(mean, stddev)| format!("{mean:.2} ({stddev:.2})")).collect();
        let absent = || ["-"; 2].map(str::to_owned);
        for (name, figures) in [("  origin, before", &figures[..3]), ("  origin, after", &figures[3..])] {
            table.row([name.to_owned()].into_iter().chain(figures.iter().cloned()).chain(absent()));
        }
        let kernel = columns.map(|events| ours(format!("kernel/{events}/{size}")));
        table.row(["  processes".to_owned()].into_iter().chain(kernel));
        for way in ["eager", "swap"] {
            let cells = columns.map(|events| ours(format!("ring/{events}/{size}/{way}")));
            table.row([format!("  tasks, {way}")].into_iter().chain(cells));
        }
    }
    table
}

/// A row of this workload.
fn spec(name: String, unit: &'static str, size: usize, events: &[&str]) -> Spec {
    Spec::new(name, unit).with("per", "switch").with("ring", size).with("events", events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_origins_figures_and_says_what_this_machine_lacks() {
        let rows = [Row::new(&spec("kernel/none/2".to_owned(), "us", 2, &[]), vec![1.0, 2.0])];
        let mut out = Vec::new();
        origin(&rows).write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for figure in ["11.24 (0.13)", "3.60 (0.19)", "13.78 (0.53)", "1.500 (0.707)", "unavailable"] {
            assert!(text.contains(figure), "{figure} in\n{text}");
        }
    }
}

//! `bench switch`: the price of going from one task to the next while events are counted for both.
//!
//! The origin (Linux, 2009) measured processes that pass a token round a ring (`lat_ctx` of
//! lmbench), without events and under inherited ones, before and after contexts were exchanged
//! instead of read. Here the same is done twice: with tasks on one thread and our contexts
//! ([`ring`]), which still have both ways of switching, and with processes and the running kernel's
//! ([`kernel`]), which has only the way that the origin introduced.
//!
//! Most services have futures on a runtime without hooks ([`poll`]); their peers are those of
//! `bench poll`. A group may also have a watch, which follows its tasks ([`watch`]).

mod kernel;
mod poll;
mod ring;
mod rings;
mod soft;
mod watch;

use crate::bench::Bench;
use crate::table::value;
use rings::SIZES;

/// Runs, as many as the origin's figures are the mean of.
const REPS: usize = 20;

/// The origin's figures, with ours in their columns.
pub(crate) const ORIGIN: &str = include_str!("origin.txt");

pub(crate) fn run(bench: &mut Bench) {
    bench.say("calibrating");
    let proof = ring::prove();
    ring::rows(bench);
    kernel::rows(bench);
    poll::rows(bench);
    watch::rows(bench);
    bench.measure("reps", bench.plan(REPS, REPS));
    match proof {
        Ok(sentence) => bench.notes.push(sentence),
        Err(what) => bench.wrong.push(what),
    }
    compare(bench);
    poll::compare(bench);
    watch::compare(bench);
}

fn compare(bench: &mut Bench) {
    for size in SIZES {
        let none = format!("ring/none/{size}/swap");
        for (events, way) in
            ["2", "8"].into_iter().flat_map(|events| ["eager", "swap"].map(|way| (events, way)))
        {
            let name = format!("{events}/{size}/{way}");
            bench.times(format!("ring-times-none/{name}"), &format!("ring/{name}"), &none);
            bench.minus(format!("ring-added/{name}"), &format!("ring/{name}"), &none);
        }
        let name = format!("8/{size}/swap");
        bench.minus(format!("ring-over-bare/{name}"), &format!("ring/{name}"), &format!("ring/bare/{size}"));
        for (events, _) in &kernel::EVENTS[1..] {
            let name = format!("{events}/{size}");
            let none = format!("kernel/none/{size}");
            bench.times(format!("kernel-times-none/{name}"), &format!("kernel/{name}"), &none);
        }
    }
    for size in SIZES {
        let eager = value(bench.median(&format!("ring-times-none/8/{size}/eager")));
        let text = format!("swap with 8 events at most 1.10 times none, {size} tasks");
        let goal = bench.goal(&text, &format!("ring-times-none/8/{size}/swap"), |times| times <= 1.10);
        goal.extend(["; eager ", &eager, " times"]);
    }
    bench.notes.push(ring::note());
    bench.notes.push(kernel::note());
    if let Some(times) = bench.median("kernel-times-none/2hw/2").filter(|&times| times > 3.0) {
        bench.notes.push(format!(
            "kernel rows with hardware counters do not show the origin's shape here (kernel-times-none/2hw/2: {} \
             times); most likely because the kernel stops and starts the PMU around an exchange too, and in a \
             virtual machine each access to it is an exit",
            value(Some(times))
        ));
    }
}

//! `bench clock`: CPU time of a thread, in each tier of the clock.
//!
//! The rows: the price of a read; how far the value is from the kernel's, on an idle processor and
//! beside a competitor ([`error`]); the price that a tier adds to a switch of the kernel
//! ([`switch`]); what is left of all that in a poll, and in one that comes late ([`sparse`]); and
//! how late CPU budgets end ([`budget`]). The tiers are forced one after the other within each
//! round. Peers: the counter alone, the kernel's clock, and a crate that reads it. There is no
//! origin.

mod budget;
mod error;
mod sparse;
mod switch;
mod tiers;

use dormouse::clock::{force, thread_cpu_ns};

use crate::bench::Bench;
use crate::workloads::poll::tasks;
use crate::yardsticks;
use tiers::{ALL, QUICK, only};

pub(crate) fn run(bench: &mut Bench) {
    bench.say("calibrating");
    yardsticks::rdtsc(bench);
    yardsticks::clock_gettime_thread(bench);
    yardsticks::read(bench, "cpu-time-crate", || cpu_time::ThreadTime::now().as_duration().as_nanos() as u64);
    for tier in ALL {
        yardsticks::read_after(bench, &format!("thread-{tier}"), move || only(tier), thread_cpu_ns);
    }
    tasks::bare(bench);
    for tier in ALL {
        tasks::charged(bench, &format!("dormouse-{tier}"), move || only(tier));
    }
    sparse::rows(bench);
    switch::rows(bench);
    error::rows(bench);
    budget::rows(bench);
    let stolen = error::stolen_ticks();
    bench.measure("reps", bench.plan(40, 4));
    // The next workload of this process finds the tier that it would find alone; so it was before.
    let _ = force(None);

    for tier in QUICK {
        let read = format!("read/thread-{tier}");
        let (times, faster) = (format!("read-times-rdtsc/{tier}"), format!("read-speedup/{tier}"));
        bench.times(times.as_str(), &read, "read/rdtsc");
        bench.times(faster.as_str(), "read/clock_gettime-thread", &read);
        bench.at_most(&format!("{tier} at most 1.5 times rdtsc"), &times, 1.5);
        bench.at_least(&format!("{tier} at least 8 times faster than clock_gettime"), &faster, 8.0);
        for load in error::LOADS {
            let row = format!("error/{tier}/{load}/p99.9");
            bench.at_most(&format!("{tier}, {load}: 99.9 % within 20 us"), &row, 20_000.0);
        }
        bench.minus(format!("switch-added/{tier}"), &format!("switch-cost/{tier}"), "switch-cost/none");
    }
    for tier in ALL {
        bench.added("poll", "bare", &[&format!("dormouse-{tier}")]);
        let total = format!("switch-and-read/{tier}");
        bench.minus(format!("switch-and-read-added/{tier}"), &total, "switch-cost/none");
    }
    sparse::compare(bench);
    bench.explain(include_str!("notes.txt"));
    bench.notes.push(error::steal_note(stolen));
}

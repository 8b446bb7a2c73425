//! `bench breakpoint`: the price of accounting the breakpoints that threads inherit, and of
//! watches.
//!
//! The origin is `perf bench breakpoint` and the change of `hw_breakpoint.c` that it was written
//! for: threads are made and joined, each inherits four breakpoints, and the accounting finds a
//! task's breakpoints by walking a list of all, or in a hash. Peers: no accounting, the kernel's
//! list before the change, and the running kernel.
//!
//! Watches have no origin. Their peers are the kernel's events without dormouse, gdb and perf stat.

mod accounting;
mod arm;
mod book;
mod hit;
mod kernel;
mod params;
mod threads;
mod tools;
mod watched;

use crate::bench::Bench;
use crate::row::Spec;
use crate::runner::{Failure, Plan};
use accounting::{Order, SIZES};
use book::Book;
pub(crate) use params::BreakpointArgs;

/// By how much the list's threads are divided, to show how the list grows and because it takes a
/// minute at full size.
const DIVISORS: [u32; 3] = [16, 8, 1];

/// The origin's figures, with ours in their columns.
pub(crate) const ORIGIN: &str = include_str!("origin.txt");

pub(crate) fn run(bench: &mut Bench, args: &BreakpointArgs) {
    let &BreakpointArgs { repeat, breakpoints, parallelism, threads, cpus } = args;
    // First: a child of a process with a large population would take long to fork.
    bench.say("calibrating");
    arm::rows(bench);
    hit::rows(bench);
    tools::rows(bench);
    bench.measure("watch_reps", bench.plan(20, 3));

    bench.say("populating");
    thread_rows(bench, "none", args, |_| Ok(Book::None));
    thread_rows(bench, "hash", args, Book::hash);
    // Odd and large is prime to 2^64, so that no number comes twice; one of the population comes by
    // a chance of one in 10^13.
    let orders = [
        Order { name: "hash", step: 1, watches: 0 },
        Order { name: "hash-scattered", step: 0x9e37_79b9_7f4a_7c15, watches: 0 },
        Order { name: "hash-watched", step: 1, watches: 3 },
    ];
    accounting::rows(bench, args, Book::hash, &orders, u32::MAX);
    kernel::rows(bench, args);
    bench.measure("reps", bench.plan(20, 5));

    // The list apart: a value of it takes as long as all else.
    bench.say("populating the list");
    let divided = |divisor: u32| BreakpointArgs { threads: (threads / divisor).max(1), ..args.clone() };
    let mut sizes: Vec<_> = DIVISORS.map(divided).into();
    sizes.dedup_by_key(|size| size.threads);
    if bench.pick(false, sizes.len() > 1) {
        sizes.pop();
    }
    let largest = sizes.pop().unwrap_or_else(|| args.clone());
    let list = |cpus| Ok(Book::list(cpus));
    thread_rows(bench, "list", &largest, list);
    for size in &sizes {
        thread_rows(bench, &format!("list-of-{}", size.population()), size, list);
    }
    accounting::rows(
        bench,
        &largest,
        list,
        &[Order { name: "list", step: 1, watches: 0 }],
        bench.pick(10_000, 1_000),
    );
    bench.measure("list_reps", Plan { reps: bench.pick(1, 2), warmup: 0, seed: bench.seed() });

    for (name, size) in [
        ("repeat", repeat),
        ("breakpoints", breakpoints),
        ("parallelism", parallelism),
        ("threads", threads),
        ("cpus", cpus),
        ("population", args.population()),
    ] {
        bench.param(name, size);
    }
    compare(bench);
}

/// Adds `thread/NAME` and its columns, as the origin printed them.
fn thread_rows(bench: &mut Bench, name: &str, args: &BreakpointArgs, make: fn(u32) -> Result<Book, Failure>) {
    let spec = |column: &str, unit, per: &str| {
        Spec::new(format!("thread/{name}{column}"), unit)
            .per(per)
            .wall()
            .with("threads", args.threads)
            .with("population", args.population())
    };
    let specs = [
        spec("", "us", "thread made and joined"),
        spec("/per-cpu", "us", "thread made and joined, times the parallel makers"),
        spec("/total", "s", "run"),
        spec("/waited", "us", "thread made and joined, summed over all threads that waited for locks"),
    ];
    let args = args.clone();
    bench.sample(specs, move || {
        let book = make(args.cpus)?;
        let took = threads::run(&args, |task| book.reserve(task))?;
        if book.tasks() > 0 {
            return Err(Failure::wrong(format!("{} ended tasks hold slots", book.tasks())));
        }
        let [each, waited] = [took, book.waited()].map(|time| time.as_secs_f64() * 1e6 / args.operations());
        Ok([each, each * f64::from(args.parallelism), took.as_secs_f64(), waited])
    });
}

fn compare(bench: &mut Bench) {
    bench.times("thread-ratio/hash-to-none", "thread/hash", "thread/none");
    bench.times("thread-ratio/list-to-hash", "thread/list", "thread/hash");
    let [few, .., many] = SIZES;
    for name in ["hash", "hash-scattered", "hash-watched"] {
        let [few, many] = [few, many].map(|tasks| format!("accounting/{name}/{tasks}"));
        bench.times(format!("accounting-growth/{name}"), &many, &few);
    }
    bench.times("kernel-ratio/4-to-0", "kernel/thread/4", "kernel/thread/0");
    bench.at_most("thread/hash at most 1.12 times thread/none", "thread-ratio/hash-to-none", 1.12);
    let text = format!("accounting/hash grows at most twofold from {few} to {many} tasks");
    bench.at_most(&text, "accounting-growth/hash", 2.0);
    bench.at_most("watches do not change that", "accounting-growth/hash-watched", 2.0);
    let slowest = bench.largest(SIZES.map(|tasks| format!("accounting/hash/{tasks}")));
    bench.at_most("accounting/hash at most 1 us a breakpoint at every size", &slowest, 1000.0);
    for threads in arm::SIZES {
        for verb in ["arm", "disarm"] {
            let name = format!("{verb}/{threads}-threads");
            bench.times(format!("{verb}-ratio/{threads}-threads"), &name, &format!("kernel/{name}"));
        }
    }
    bench.added("hit", "empty-handler", &["signal", "signal-filtered"]);
    for peer in ["gdb", "perf-stat"] {
        bench.times(format!("hit-ratio/{peer}-to-signal"), &format!("hit/{peer}"), "hit/signal");
    }
    bench.at_most("1,000 threads armed within 50 ms", "arm/1000-threads", 50.0);
    bench.at_most("our handler adds at most 2 us to an empty one", "hit-added/signal", 2000.0);
    bench.explain(include_str!("notes.txt"));
    if bench.pick(false, true) {
        bench.explain(include_str!("quick.txt"));
    }
}

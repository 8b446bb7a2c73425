//! `bench breakpoint`: what it costs to account the breakpoints that threads inherit.
//!
//! The headline is that of the origin: threads are made and joined, each inherits four breakpoints, and
//! the accounting finds a task's breakpoints by walking a list of all, or in a hash.

mod accounting;
mod kernel;
mod list;
mod params;
mod threads;

use std::time::Duration;

use super::{Measured, Settings, goal};
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Plan, Spec, run as run_cases};
use crate::table::{Table, value};
use accounting::{Accounting, Hashed, Listed, Nothing, SIZES};
pub use params::BreakpointArgs;

/// By how much the list's threads are divided, to show how it grows and because at full size it takes a
/// minute.
const DIVISORS: [u32; 3] = [16, 8, 1];

/// Runs the workload.
pub(crate) fn run(settings: &Settings, args: &BreakpointArgs, progress: &mut Progress) -> Measured {
    let plan = settings.plan(20, 5);
    progress.say("populating");
    let mut cases = vec![none_case(args), hash_case(args)];
    cases.extend(accounting::hash_cases(settings, args));
    cases.push(accounting::hash_waiting(settings, args));
    cases.extend(kernel::cases(settings, args));
    let mut measured = Measured::of(run_cases(cases, &plan, progress, |_| false), &plan);

    // The list apart: a value of it takes as long as all else.
    let once = Plan { reps: if settings.quick { 2 } else { 1 }, warmup: 0, seed: settings.seed };
    progress.say("populating the list");
    let list = run_cases(list_cases(settings, args), &once, progress, |_| false);
    measured.rows.extend(list.rows);
    measured.wrong.extend(list.wrong);

    measured.params.insert("list_reps".to_owned(), once.reps.into());
    let sizes = [
        ("repeat", args.repeat),
        ("breakpoints", args.breakpoints),
        ("parallelism", args.parallelism),
        ("threads", args.threads),
        ("cpus", args.cpus),
        ("population", args.population()),
    ];
    measured.params.extend(sizes.map(|(name, size)| (name.to_owned(), size.into())));
    compare(settings, &mut measured);
    measured.tables.push(origin(args, &measured.rows));
    measured.tables.push(growth(&measured.rows));
    measured
}

/// `thread/NAME` and its columns, as the origin printed them.
fn thread_case(
    name: &str,
    args: &BreakpointArgs,
    run: impl Fn(&BreakpointArgs) -> Result<(Duration, Duration), Failure> + 'static,
) -> Case<'static> {
    let spec = |column: &str, unit, per: &str| {
        Spec::new(format!("thread/{name}{column}"), unit)
            .with("per", per)
            .with("clock", "wall time")
            .with("threads", args.threads)
            .with("population", args.population())
    };
    let specs = vec![
        spec("", "us", "thread made and joined"),
        spec("/per-cpu", "us", "thread made and joined, times the parallel makers"),
        spec("/total", "s", "run"),
        spec("/waited", "us", "thread made and joined, summed over all threads that waited for locks"),
    ];
    let args = args.clone();
    Case::new(specs, move || {
        let (took, waited) = run(&args)?;
        let [each, waited] = [took, waited].map(|time| time.as_secs_f64() * 1e6 / args.operations());
        Ok(vec![each, each * f64::from(args.parallelism), took.as_secs_f64(), waited])
    })
}

fn none_case(args: &BreakpointArgs) -> Case<'static> {
    thread_case("none", args, |args| Ok((threads::run(args, &Nothing)?, Nothing.waited())))
}

fn hash_case(args: &BreakpointArgs) -> Case<'static> {
    thread_case("hash", args, |args| {
        let hashed = Hashed::new(args.cpus)?;
        let took = threads::run(args, &&hashed)?;
        left_over(hashed.tasks())?;
        Ok((took, (&hashed).waited()))
    })
}

/// Whoever has ended has no slots.
fn left_over(tasks: usize) -> Result<(), Failure> {
    if tasks == 0 { Ok(()) } else { Err(Failure::Wrong(format!("{tasks} ended tasks hold slots"))) }
}

fn list_cases(settings: &Settings, args: &BreakpointArgs) -> Vec<Case<'static>> {
    let mut sizes: Vec<_> = DIVISORS.map(|divisor| args.with_threads_over(divisor)).into();
    sizes.dedup_by_key(|size| size.threads);
    if settings.quick && sizes.len() > 1 {
        sizes.pop();
    }
    let full = sizes.pop();
    let list = |name: &str, size: &BreakpointArgs| {
        thread_case(name, size, |args| {
            let listed = Listed::new(args.cpus);
            Ok((threads::run(args, &&listed)?, (&listed).waited()))
        })
    };
    let mut cases: Vec<_> = full.iter().map(|size| list("list", size)).collect();
    cases.extend(sizes.iter().map(|size| list(&format!("list-of-{}", size.population()), size)));
    cases.extend(accounting::list_cases(settings, args, if settings.quick { 1_000 } else { 10_000 }));
    // With the smaller population where a turn of all threads takes half a minute otherwise.
    cases.push(accounting::list_waiting(settings, full.as_ref().unwrap_or(args)));
    cases
}

/// Rows computed from the measured ones, and what to say of them.
fn compare(settings: &Settings, measured: &mut Measured) {
    let row = |name: &str| find(&measured.rows, name);
    let size = |name: &str, tasks: u32| row(&format!("accounting/{name}/{tasks}"));
    let [few, .., many] = SIZES;
    let computed = vec![
        Row::times("thread-ratio/hash-to-none", &row("thread/hash"), &row("thread/none")),
        Row::times("thread-ratio/list-to-hash", &row("thread/list"), &row("thread/hash")),
        Row::times("accounting-growth/hash", &size("hash", many), &size("hash", few)),
        Row::times(
            "accounting-growth/hash-scattered",
            &size("hash-scattered", many),
            &size("hash-scattered", few),
        ),
        Row::times("kernel-ratio/4-to-0", &row("kernel/thread/4"), &row("kernel/thread/0")),
    ];
    let mut notes = vec![
        goal("thread/hash at most 1.12 times thread/none", &computed[0], |x| x <= 1.12),
        goal(
            &format!("accounting/hash grows at most twofold from {few} to {many} tasks"),
            &computed[2],
            |x| x <= 2.0,
        ),
    ];
    let slowest = SIZES.map(|tasks| size("hash", tasks)).into_iter().max_by(|a, b| {
        let median = |row: &Row| row.median.unwrap_or(f64::INFINITY);
        median(a).total_cmp(&median(b))
    });
    if let Some(slowest) = slowest {
        notes
            .push(goal("accounting/hash at most 1 us a breakpoint at every size", &slowest, |x| x <= 1000.0));
    }
    notes.push(
        "thread rows: wall time of making and joining a thread with real threads, divided as perf bench \
         does; breakpoints are reserved by the maker and released by the thread as it ends; no \
         repetition lets its threads go before all that can run beside it have made theirs, so that the \
         origin's population lives on few processors too (perf bench leaves that to the processors)"
            .to_owned(),
    );
    if settings.quick {
        notes.push(
            "quick: thread/list runs with an eighth of the threads, waiting/list beside as many tasks, \
             so thread-ratio/list-to-hash is far too small: the list grows with the population"
                .to_owned(),
        );
    }
    notes.extend(accounting::NOTES.iter().chain(kernel::NOTES).map(|&note| note.to_owned()));
    measured.notes.append(&mut notes);
    measured.rows.extend(computed);
}

/// The origin's figures beside ours.
fn origin(args: &BreakpointArgs, rows: &[Row]) -> Table {
    let median = |name: &str| find(rows, name).median;
    let mut table = Table::new(
        Some(&format!(
            "Origin: perf bench -r 30 breakpoint thread -b 4 -p 64 -t 64, Linux 2022, 256 processors.\n\
             Here: -r {} -b {} -p {} -t {}, {} processors accounted; this run's medians.",
            args.repeat, args.breakpoints, args.parallelism, args.threads, args.cpus
        )),
        &["", "threads alive", "total s", "usecs/op", "usecs/op/cpu", "to none"],
    );
    let origin = [
        ["origin, list", "1985", "236.418", "123134.79", "7880626.83", "-"],
        ["origin, hash", "1985", "0.208", "108.42", "6939.03", "-"],
        ["origin, whole series", "1985", "-", "35.29", "-", "1.12"],
    ];
    for row in origin {
        table.row(row.map(str::to_owned));
    }
    let none = median("thread/none");
    for name in ["none", "list", "hash"] {
        let row = find(rows, &format!("thread/{name}"));
        let column = |column: &str| value(median(&format!("thread/{name}{column}")));
        let alive = row.params.get("population").map_or_else(|| "-".to_owned(), ToString::to_string);
        let ratio = row.median.zip(none).map(|(row, none)| row / none);
        table.row([
            format!("here, {name}"),
            alive,
            column("/total"),
            column(""),
            column("/per-cpu"),
            value(ratio),
        ]);
    }
    let base = median("kernel/thread/0");
    for breakpoints in 0..=4 {
        let row = find(rows, &format!("kernel/thread/{breakpoints}"));
        let ratio = row.median.zip(base).map(|(row, none)| row / none);
        let label = format!("this kernel, {breakpoints} breakpoints");
        let alive = args.population().to_string();
        let per_cpu = row.median.map(|each| each * f64::from(args.parallelism));
        let total = row.median.map(|each| each * args.operations() / 1e6);
        table.row([label, alive, value(total), value(row.median), value(per_cpu), value(ratio)]);
    }
    table
}

/// How either grows with the tasks.
fn growth(rows: &[Row]) -> Table {
    let heading = ["", "10^2", "10^3", "10^4", "10^5", "10^6"];
    let mut table = Table::new(Some("A breakpoint reserved and released beside N tasks, ns"), &heading);
    for name in ["list", "hash", "hash-scattered"] {
        let cells = SIZES.map(|tasks| value(find(rows, &format!("accounting/{name}/{tasks}")).median));
        table.row(std::iter::once(name.to_owned()).chain(cells));
    }
    table
}

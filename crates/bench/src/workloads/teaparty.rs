//! `bench teaparty`: a whole service, built with dormouse and without, under load.
//!
//! Both builds are made from this workspace when the bench runs and are started in turn (A B, B A, …), a fresh
//! process each time. Clients are in this process, the service in another, each on its own half of the processors
//! where there are two. The build with dormouse has its agent running and a client connected that has
//! said hello; all its keys are off, and that is checked.
//!
//! The run ends by itself when the 95 % interval of the difference lies within ±3 %.

mod build;
mod load;
mod server;

use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use load::{MENU, MIX};
use server::{Side, Usage};

use super::{Measured, Settings};
use crate::affinity::Halves;
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Order, Plan, Spec, run as run_cases};

/// Half the width that the interval of the difference is to fit in, in percent.
const BOUND: f64 = 3.0;

/// Fewer pairs than this say nothing about their own spread.
const FEWEST: usize = 6;

/// Connections for each processor of the service.
const CLIENTS_PER_CPU: usize = 16;

/// Loads, by the prefix of their rows.
const LOADS: [(&str, &[load::Ask]); 2] = [("teaparty", &MIX), ("teaparty-menu", &MENU)];

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    let plan = Plan {
        reps: settings.reps(40, 3),
        warmup: usize::from(!settings.quick),
        seed: settings.seed,
        order: Order::Mirrored,
    };
    eprintln!("building the tea house with and without dormouse, in target/bench-teaparty");
    progress.say("building the tea house twice");
    let halves = Halves::of_this_thread();
    let cases = match build::both().and_then(|binaries| Ok((binaries, RuntimeDir::new()?))) {
        Ok((binaries, runtime_dir)) => {
            let runtime_dir = Rc::new(runtime_dir);
            [(Side::With, binaries.with), (Side::Without, binaries.without)]
                .map(|(side, binary)| case(side, binary, settings, halves.clone(), Rc::clone(&runtime_dir)))
                .into()
        }
        Err(reason) => [Side::With, Side::Without]
            .map(|side| Case::unavailable(specs(side, settings, &halves), &reason))
            .into(),
    };
    let outcome = run_cases(cases, &plan, progress, |rows| {
        let so_far = difference(rows, "teaparty");
        let narrow = so_far.ci95.is_some_and(|interval| interval.is_within(BOUND));
        so_far.n >= FEWEST && so_far.n.is_multiple_of(2) && narrow
    });
    let mut measured = Measured::of(outcome, &plan);
    compare(&mut measured, &halves);
    measured
}

/// `PREFIX/difference` of rows `PREFIX/with` and `PREFIX/without`.
fn difference(rows: &[Row], prefix: &str) -> Row {
    let (with, without) = (find(rows, &format!("{prefix}/with")), find(rows, &format!("{prefix}/without")));
    Row::percent(&format!("{prefix}/difference"), &with, &without)
}

fn compare(measured: &mut Measured, halves: &Halves) {
    let rows = &measured.rows;
    let mut computed: Vec<Row> =
        ["teaparty", "teaparty-menu", "teaparty-cpu"].iter().map(|prefix| difference(rows, prefix)).collect();
    measured.notes.push(verdict(&computed[0]));
    measured.notes.extend([
        "…/difference: 100 * (with / without - 1), of runs next to each other; negative means that dormouse costs \
         throughput (for teaparty-cpu: that it saves CPU time)"
            .to_owned(),
        format!(
            "stops at the first even number of pairs from {FEWEST} on whose interval fits, which makes the interval a \
             little too narrow"
        ),
        "teaparty: the mix of routes that the tea house offers its own guests; teaparty-menu: its cheapest route alone, where \
         dormouse's share is largest; teaparty-cpu: CPU time of the service's process a request under the mix, by /proc; teaparty-refused: requests of the mix that were \
         answered with an error (sold out, for instance) and do not count"
            .to_owned(),
        "with: agent running, one client connected that said hello, every key off (checked); without: built with \
         --no-default-features"
            .to_owned(),
        placement(halves),
    ]);
    measured.rows.append(&mut computed);
}

/// The goal is one of the interval, not of the median as elsewhere.
fn verdict(difference: &Row) -> String {
    let text = "95 % interval of the mean of teaparty/difference within 3 % either way";
    match &difference.ci95 {
        Some(interval) if interval.is_within(BOUND) => format!("goal, {text}: met; {interval}"),
        Some(interval) => format!("goal, {text}: missed; {interval}"),
        None => {
            let reason = difference.unavailable.as_deref().unwrap_or("it takes two pairs");
            format!("goal, {text}: not decided: {reason}")
        }
    }
}

fn placement(halves: &Halves) -> String {
    if !halves.are_two() {
        return "service and clients share one processor".to_owned();
    }
    let (service, clients) = (halves.first().len(), halves.second().len());
    format!("processors: {service} for the service, {clients} for its clients")
}

fn specs(side: Side, settings: &Settings, halves: &Halves) -> Vec<Spec> {
    let clients = CLIENTS_PER_CPU * halves.first().len().max(1);
    let spec = |prefix: &str, unit| {
        Spec::new(format!("{prefix}/{side}"), unit)
            .with("seconds", span(settings).as_secs_f64())
            .with("clients", clients)
    };
    let mut specs: Vec<Spec> = LOADS.iter().map(|(prefix, _)| spec(prefix, "requests/s")).collect();
    specs.push(spec("teaparty-cpu", "us").with("per", "request"));
    specs.push(spec("teaparty-refused", "%").with("of", "requests"));
    specs
}

/// How long one load lasts.
fn span(settings: &Settings) -> Duration {
    Duration::from_millis(if settings.quick { 1000 } else { 4000 })
}

/// One side: a sample starts a service, warms it up, loads it and stops it.
fn case(
    side: Side,
    binary: PathBuf,
    settings: &Settings,
    halves: Halves,
    runtime_dir: Rc<RuntimeDir>,
) -> Case<'static> {
    let span = span(settings);
    let clients = CLIENTS_PER_CPU * halves.first().len().max(1);
    Case::new(specs(side, settings, &halves), move || {
        let mut server = halves.on_first(|| server::start(&binary, side, &runtime_dir.0))??;
        let load =
            |asks: &[load::Ask], span| halves.on_second(|| load::run(server.addr, asks, clients, span));
        load(&MIX, span / 8)??;
        let mut values = Vec::new();
        let mut of_mix = None;
        for (_, asks) in LOADS {
            let before = Usage::of(server.pid())?;
            let done = load(asks, span)??;
            let used = Usage::of(server.pid())?.since(before);
            if done.answered == 0 {
                return Err(Failure::from("the service answered nothing"));
            }
            let answered = done.answered as f64;
            let refused = 100.0 * done.refused as f64 / (answered + done.refused as f64);
            // The mix is the first load.
            of_mix.get_or_insert([used.as_secs_f64() * 1e6 / answered, refused]);
            values.push(answered / done.elapsed.as_secs_f64());
        }
        server.check()?;
        values.extend(of_mix.into_iter().flatten());
        Ok(values)
    })
}

/// A runtime directory of the services' own: nobody else's sockets are in it, and it goes with us.
#[derive(Debug)]
struct RuntimeDir(PathBuf);

impl RuntimeDir {
    fn new() -> Result<Self, String> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("dormouse-bench-{}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        // What stays behind is an empty directory in a temporary place.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Outcome;

    #[test]
    fn without_sources_all_rows_are_there_and_say_why() {
        let settings = Settings { quick: true, reps: None, seed: 1 };
        let halves = Halves::of_this_thread();
        let rows: Vec<Row> = [Side::With, Side::Without]
            .iter()
            .flat_map(|&side| specs(side, &settings, &halves))
            .map(|spec| Row::unavailable(&spec, "no sources"))
            .collect();
        let plan = settings.shuffled(1, 1);
        let mut measured = Measured::of(Outcome { rows, wrong: Vec::new() }, &plan);
        compare(&mut measured, &halves);
        for name in ["teaparty/with", "teaparty/without", "teaparty/difference"] {
            let row = find(&measured.rows, name);
            assert!(row.unavailable.unwrap().contains("no sources"), "{name}");
        }
    }
}

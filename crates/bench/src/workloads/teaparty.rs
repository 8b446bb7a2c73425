//! `bench teaparty`: a whole service, built with dormouse and without, under load.
//!
//! Both builds are made from this workspace when the bench runs. A round starts a fresh process of each
//! and loads them in turn, for half a second at a time, A B B A, B A A B: what else the machine does meanwhile
//! falls on both. Clients are in this process, the services in others, each party on its own half of the
//! processors where there are two. The build with dormouse has its agent running and a client connected
//! that has said hello; all its keys are off, and that is checked.
//!
//! The run ends by itself when the 95 % interval of the difference lies within ±3 %.

mod build;
mod load;
mod server;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use build::Binaries;
use load::{Clients, Load, MENU, MIX};
use server::{Server, Side, Usage};

use super::{Measured, Settings};
use crate::affinity::Halves;
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Plan, Spec, run as run_cases};

/// Half the width that the interval of the difference is to fit in, in percent.
const BOUND: f64 = 3.0;

/// Fewer rounds than this say nothing about their own spread.
const FEWEST: usize = 6;

/// Connections for each processor of the service.
const CLIENTS_PER_CPU: usize = 16;

/// The sides, in the order of their rows.
const SIDES: [Side; 2] = [Side::With, Side::Without];

/// A load: the prefix of its rows, what is asked for, and how many turns of four slices it gets.
type Loading = (&'static str, &'static [load::Ask], usize);

const LOADS: [Loading; 2] = [("teaparty", &MIX, 2), ("teaparty-menu", &MENU, 2)];

/// Whose slice it is, in one turn.
const TURN: [usize; 4] = [0, 1, 1, 0];

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    let plan = Plan { warmup: usize::from(!settings.quick), ..settings.plan(60, 3) };
    eprintln!("building the tea house with and without dormouse, in target/bench-teaparty");
    progress.say("building the tea house twice");
    let halves = Halves::of_this_thread();
    let case = match build::both().and_then(|binaries| Ok((binaries, RuntimeDir::new()?))) {
        Ok((binaries, runtime_dir)) => case(binaries, settings, halves.clone(), runtime_dir),
        Err(reason) => Case::unavailable(specs(settings, &halves), reason),
    };
    let outcome = run_cases(vec![case], &plan, progress, |rows| {
        let so_far = difference(rows, "teaparty");
        let narrow = so_far.ci95.is_some_and(|interval| interval.is_within(BOUND));
        so_far.n >= FEWEST && so_far.n.is_multiple_of(2) && narrow
    });
    let mut measured = Measured::of(outcome, &plan);
    measured.params.insert("order".to_owned(), "A B B A, B A A B".into());
    if let Ok(tcp) = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control") {
        measured.params.insert("tcp".to_owned(), tcp.trim().into());
    }
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
    let mut computed: Vec<Row> = ["teaparty", "teaparty-cpu", "teaparty-menu", "teaparty-menu-cpu"]
        .iter()
        .map(|prefix| difference(rows, prefix))
        .collect();
    measured.notes.push(verdict(&computed[0]));
    measured.notes.extend([
        "…/difference: 100 * (with / without - 1), of the sums of a round; negative means that \
         dormouse costs throughput (in the …-cpu rows: that it saves CPU time)"
            .to_owned(),
        format!(
            "stops at the first even number of rounds from {FEWEST} on whose interval fits, which makes the \
             interval a little too narrow"
        ),
        "teaparty: the mix of routes that the tea house offers its own guests; teaparty-menu: its cheapest \
         route alone, where dormouse's share is largest; …-cpu: CPU time of the service's process a request, \
         by /proc; teaparty-refused: requests of the mix that were answered with an error (sold out, for \
         instance) and do not count"
            .to_owned(),
        "the rates of short answers also depend on the machine's TCP congestion control (see the \
         parameters): bbr paces a connection by what it has sent before. The …-cpu rows do not"
            .to_owned(),
        "with: agent running, one client connected that said hello, every key off (checked); without: \
         built with --no-default-features"
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
            let reason = difference.unavailable.as_deref().unwrap_or("it takes two rounds");
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

/// Rows of one side after those of the other, as [`case`] fills them.
fn specs(settings: &Settings, halves: &Halves) -> Vec<Spec> {
    let clients = CLIENTS_PER_CPU * halves.first().len().max(1);
    let side_specs = |side: Side| {
        let spec = |prefix: &str, unit| Spec::new(format!("{prefix}/{side}"), unit).with("clients", clients);
        let rate = |(prefix, _, turns): Loading| {
            let seconds = slice(settings).as_secs_f64() * (2 * turns) as f64;
            spec(prefix, "requests/s").with("seconds", seconds)
        };
        let cpu = |(prefix, _, _): Loading| spec(&format!("{prefix}-cpu"), "us").with("per", "request");
        let mut specs: Vec<Spec> = LOADS.into_iter().flat_map(|load| [rate(load), cpu(load)]).collect();
        specs.push(spec("teaparty-refused", "%").with("of", "requests"));
        specs
    };
    SIDES.into_iter().flat_map(side_specs).collect()
}

/// How long one side is loaded before it is the other's turn.
fn slice(settings: &Settings) -> Duration {
    Duration::from_millis(if settings.quick { 150 } else { 500 })
}

/// A sample starts both services and, for each load, warms them up and loads them in turn.
fn case(binaries: Binaries, settings: &Settings, halves: Halves, runtime_dir: RuntimeDir) -> Case<'static> {
    let slice = slice(settings);
    let count = CLIENTS_PER_CPU * halves.first().len().max(1);
    let mut round = 0;
    Case::new(specs(settings, &halves), move || {
        let start = |side| halves.on_first(|| server::start(binaries.of(side), side, &runtime_dir.0));
        let mut servers = [start(SIDES[0])??, start(SIDES[1])??];
        let load = |clients: &mut Clients, asks| {
            let done = halves.on_second(|| clients.run(asks, slice))??;
            Ok::<_, Failure>(done)
        };
        let mut values = [Vec::new(), Vec::new()];
        let mut refusals = [None; 2];
        for (_, asks, turns) in LOADS {
            // Not those of the load before: congestion control remembers how little that sent.
            let connect = |server: &Server| Clients::connect(server.addr, count);
            let mut clients = [connect(&servers[0])?, connect(&servers[1])?];
            for clients in &mut clients {
                load(clients, asks)?;
            }
            let before = [Usage::of(servers[0].pid())?, Usage::of(servers[1].pid())?];
            let mut sums = [Load::default(); 2];
            for turn in 0..turns {
                for side in TURN.map(|side| side ^ ((round + turn) % 2)) {
                    sums[side] += load(&mut clients[side], asks)?;
                }
            }
            for side in 0..2 {
                let Load { answered, refused, elapsed } = sums[side];
                if answered == 0 {
                    return Err(Failure::from("a service answered nothing"));
                }
                let used = Usage::of(servers[side].pid())?.since(before[side]);
                values[side].push(answered as f64 / elapsed.as_secs_f64());
                values[side].push(used.as_secs_f64() * 1e6 / answered as f64);
                // Of the mix, which is the first load.
                refusals[side].get_or_insert(100.0 * refused as f64 / (answered + refused) as f64);
            }
        }
        for server in &mut servers {
            server.check()?;
        }
        round += 1;
        let side_values = |(values, refused): (Vec<f64>, _)| values.into_iter().chain(refused);
        Ok(values.into_iter().zip(refusals).flat_map(side_values).collect())
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

    #[test]
    fn without_sources_all_rows_are_there_and_say_why() {
        let settings = Settings { quick: true, reps: None, seed: 1 };
        let halves = Halves::of_this_thread();
        let plan = settings.plan(1, 1);
        let case = Case::unavailable(specs(&settings, &halves), "no sources");
        let outcome = run_cases(vec![case], &plan, &mut Progress::hidden(), |_| false);
        let mut measured = Measured::of(outcome, &plan);
        compare(&mut measured, &halves);
        for name in ["teaparty/with", "teaparty/without", "teaparty/difference"] {
            let row = find(&measured.rows, name);
            assert!(row.unavailable.unwrap().contains("no sources"), "{name}");
        }
    }
}

//! `bench teaparty`: a whole service, built with dormouse and without, under load.
//!
//! The command contains the tea house with dormouse; the one without is built from this workspace
//! when the bench runs. A round starts a fresh process of each and loads them in turn, for half a
//! second at a time, A B B A, B A A B, so that other work of the machine affects both. Clients are
//! in this process, the services in others, each party on its half of the processors if there are
//! two. The one with dormouse has its agent running and a client connected that has sent hello; all
//! its keys are off, and that is checked. The instructions of a request are counted once, without a
//! client.
//!
//! The run ends by itself when the 95 % interval of the difference lies within ±3 %. The peer is
//! the same service without dormouse; there is no origin.

mod build;
mod instructions;
mod load;
pub(crate) mod own;
pub(crate) mod profiled;
pub(crate) mod replayed;
mod server;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::affinity::Halves;
use crate::bench::Bench;
use crate::row::{Better, Row, Spec, find};
use crate::runner::{Failure, Plan};
use crate::workloads::command;
pub(crate) use build::{first_error, program_of, root};
use load::{Ask, Clients, Load, MENU, MIX};
use server::{SIDES, Server};

/// Half the width that the interval of the difference is to fit in, in percent.
const BOUND: f64 = 3.0;

/// With fewer rounds than this their spread is unknown.
const FEWEST: usize = 6;

/// Connections for each processor of the service.
const CLIENTS_PER_CPU: usize = 16;

/// Loads: the prefix of their rows and their requests.
const LOADS: [(&str, &[Ask]); 2] = [("teaparty", &MIX), ("teaparty-menu", &MENU)];

/// Turns of four slices that each load gets in a round.
const TURNS: usize = 2;

/// The side of each slice, in one turn.
const TURN: [usize; 4] = [0, 1, 1, 0];

pub(crate) fn run(bench: &mut Bench) {
    let halves = Halves::of_this_thread();
    let made = has_tea_house().and_then(|()| {
        eprintln!("building the tea house without dormouse");
        bench.say("building the tea house without dormouse");
        without_dormouse()
    });
    if let Some((without, directory)) = bench.need(specs(bench, &halves), made) {
        instructions::rows(bench, &without, directory.path());
        rows(bench, (without, directory), &halves);
    }
    let plan = Plan { warmup: bench.pick(1, 0), ..bench.plan(60, 3) };
    bench.measure_until("reps", plan, |rows| {
        let so_far = difference(rows, "teaparty");
        let narrow = so_far.ci95.is_some_and(|interval| interval.is_within(BOUND));
        so_far.n >= FEWEST && so_far.n.is_multiple_of(2) && narrow
    });
    bench.param("order", "A B B A, B A A B");
    if let Ok(tcp) = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control") {
        bench.param("tcp", tcp.trim());
    }
    compare(bench, &halves);
}

/// `PREFIX/difference` of rows `PREFIX/with` and `PREFIX/without`.
fn difference(rows: &[Row], prefix: &str) -> Row {
    let [with, without] = SIDES.map(|side| find(rows, &format!("{prefix}/{side}")));
    let spec = Spec::new(format!("{prefix}/difference"), "%");
    Row::paired(spec, &with, &without, |with, without| 100.0 * (with / without - 1.0))
}

fn compare(bench: &mut Bench, halves: &Halves) {
    for prefix in ["teaparty", "teaparty-cpu", "teaparty-menu", "teaparty-menu-cpu"] {
        let row = difference(&bench.rows, prefix);
        bench.rows.push(row);
    }
    // The goal is one of the interval, not of the median as elsewhere.
    let row = bench.row("teaparty/difference");
    let verdict = match row.ci95 {
        Some(interval) if interval.is_within(BOUND) => format!("met; {interval}"),
        Some(interval) => format!("missed; {interval}"),
        None => {
            format!("not decided: {}", row.unavailable.as_deref().unwrap_or("it takes two rounds"))
        }
    };
    bench.notes.push(format!(
        "goal, 95 % interval of the mean of teaparty/difference within 3 % either way: {verdict}"
    ));
    bench.explain(include_str!("notes.txt"));
    bench.notes.push(if halves.are_two() {
        let (service, clients) = (halves.first().len(), halves.second().len());
        format!("processors: {service} for the service, {clients} for its clients")
    } else {
        "service and clients share one processor".to_owned()
    });
}

/// The verb of the command.
const TEA_HOUSE: &str = "teaparty";

/// Whether the command was built with the tea house in it.
fn has_tea_house() -> Result<(), String> {
    let asked = command()?.args([TEA_HOUSE, "--help"]).output();
    let is_there = asked.is_ok_and(|output| output.status.success());
    if is_there { Ok(()) } else { Err("the command was built without its feature `demo`".to_owned()) }
}

/// The tea house with dormouse.
fn tea_house() -> Result<Command, String> {
    let mut tea_house = command()?;
    tea_house.arg(TEA_HOUSE);
    Ok(tea_house)
}

/// The one without, in a directory of its own: a build of the workspace may replace it meanwhile.
fn without_dormouse() -> Result<(PathBuf, TempDir), String> {
    let directory = TempDir::with_prefix("dormouse-bench-")
        .map_err(|error| format!("cannot create a directory for the services: {error}"))?;
    let built = program_of("dormouse-teaparty", &["--no-default-features"])?;
    let program = directory.path().join("without");
    fs::copy(&built, &program).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
    Ok((program, directory))
}

/// How long one side is loaded before it is the other's turn.
fn slice(bench: &Bench) -> Duration {
    Duration::from_millis(bench.pick(500, 150))
}

fn clients(halves: &Halves) -> usize {
    CLIENTS_PER_CPU * halves.first().len().max(1)
}

/// Rows of one side after those of the other, as [`rows`] fills them.
fn specs(bench: &Bench, halves: &Halves) -> Vec<Spec> {
    let seconds = slice(bench).as_secs_f64() * (2 * TURNS) as f64;
    let of_side = |side| {
        let spec = move |prefix: &str, unit| {
            Spec::new(format!("{prefix}/{side}"), unit).with("clients", clients(halves))
        };
        let of_load = move |(prefix, _)| {
            let cpu = spec(&format!("{prefix}-cpu"), "us").per("request");
            [spec(prefix, "requests/s").with("seconds", seconds), cpu]
        };
        let refused = spec("teaparty-refused", "%").better(Better::Lower).with("of", "requests");
        LOADS.into_iter().flat_map(of_load).chain([refused])
    };
    SIDES.into_iter().flat_map(of_side).collect()
}

/// Adds the rows. A sample starts both services and, for each load, warms them up and loads them in
/// turn.
fn rows(bench: &mut Bench, (without, directory): (PathBuf, TempDir), halves: &Halves) {
    let (slice, count, specs) = (slice(bench), clients(halves), specs(bench, halves));
    let halves = halves.clone();
    let mut round = 0;
    bench.sample(specs, move || {
        let start = |program: Command, has_agent: bool| {
            halves.on_first(|| Server::start(program, has_agent, directory.path()))
        };
        // In the order of `SIDES`.
        let mut servers = [start(tea_house()?, true)??, start(Command::new(&without), false)??];
        let load =
            |clients: &mut Clients, asks| Ok::<_, Failure>(halves.on_second(|| clients.run(asks, slice))??);
        let mut values = [Vec::new(), Vec::new()];
        let mut refusals = [None; 2];
        for (_, asks) in LOADS {
            // New connections: congestion control remembers how little the load before sent.
            let connect = |server: &Server| Clients::connect(server.addr, count);
            let mut clients = [connect(&servers[0])?, connect(&servers[1])?];
            for clients in &mut clients {
                load(clients, asks)?;
            }
            let before = [servers[0].cpu_ns()?, servers[1].cpu_ns()?];
            let mut sums = [Load::default(); 2];
            for side in (0..TURNS).flat_map(|turn| TURN.map(|side| side ^ ((round + turn) % 2))) {
                sums[side] += load(&mut clients[side], asks)?;
            }
            for side in 0..2 {
                let Load { answered, refused, elapsed } = sums[side];
                if answered == 0 {
                    return Err(Failure::from("a service answered nothing"));
                }
                let used = servers[side].cpu_ns()?.saturating_sub(before[side]) as f64;
                values[side].push(answered as f64 / elapsed.as_secs_f64());
                values[side].push(used / 1e3 / answered as f64);
                // Of the mix, which is the first load.
                refusals[side].get_or_insert(100.0 * refused as f64 / (answered + refused) as f64);
            }
        }
        servers.iter_mut().try_for_each(Server::check)?;
        round += 1;
        Ok(values
            .into_iter()
            .zip(refusals)
            .flat_map(|(values, refused)| values.into_iter().chain(refused))
            .collect::<Vec<_>>())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Settings;
    use crate::progress::Progress;

    #[test]
    fn without_sources_all_rows_say_why() {
        let mut bench = Bench::new(Settings { quick: true, reps: None, seed: 1 }, Progress::hidden());
        let halves = Halves::of_this_thread();
        bench.unavailable(specs(&bench, &halves), "no sources");
        bench.measure("reps", bench.plan(1, 1));
        compare(&mut bench, &halves);
        for name in ["teaparty/with", "teaparty/without", "teaparty/difference"] {
            assert!(bench.row(name).unavailable.unwrap().contains("no sources"), "{name}");
        }
    }
}

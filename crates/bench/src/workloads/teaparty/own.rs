//! `bench self`: what dormouse reports of its own cost, compared with the truth: the CPU time of a
//! request to the tea house with dormouse, less that of one without.
//!
//! | row | is |
//! |---|---|
//! | `self-told/STATE` | what the service reports of itself (`own` of `stat`), in percent of its CPU time |
//! | `self-true/STATE` | the difference to the service without, in percent of the CPU time of the one with |
//! | `self-error/STATE` | the one less the other, in points |
//!
//! In each state both services answer the mix of the tea house's guests in turn, A B B A, so that
//! other work of the machine affects both. The client that brings the service into the state stays
//! connected, and reads it before and after.

use std::path::PathBuf;
use std::time::Duration;

use dormouse_protocol::OwnCost;
use tempfile::TempDir;

use super::load::{Clients, MIX};
use super::server::{Awake, SIDES, Server, cpu_time_of};
use super::{TURN, TURNS, clients, has_tea_house, slice, tea_house, without_dormouse};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::row::{Better, Spec};
use crate::runner::{Failure, Plan};

const STATES: [(&str, Awake); 3] =
    [("asleep", Awake::Nothing), ("counted", Awake::Counts), ("times", Awake::Times)];

pub(crate) fn run(bench: &mut Bench) {
    let halves = Halves::of_this_thread();
    let made = has_tea_house().and_then(|()| {
        bench.say("building the tea house without dormouse");
        without_dormouse()
    });
    if let Some(without) = bench.need(specs(), made) {
        rows(bench, without, &halves);
    }
    bench.measure("reps", Plan { warmup: bench.pick(1, 0), ..bench.plan(20, 3) });
    for (state, _) in STATES {
        let of = |kind: &str| format!("self-{kind}/{state}");
        bench.paired(Spec::new(of("error"), "points"), &of("told"), &of("true"), |told, real| told - real);
        let error = bench.median(&of("error")).unwrap_or(f64::NAN);
        let verdict = if error.abs() <= 0.2 { "met" } else { "missed" };
        bench.notes.push(format!("goal, {state}: reported within 0.2 points of the truth: {verdict}"));
    }
    bench.explain(include_str!("own.txt"));
}

/// Rows of each state, as [`rows`] fills them.
fn specs() -> Vec<Spec> {
    let of_state = |(state, _)| {
        ["told", "true"].map(|kind| {
            let spec = Spec::new(format!("self-{kind}/{state}"), "%");
            spec.with("of", "the service's CPU time").better(Better::Lower)
        })
    };
    STATES.into_iter().flat_map(of_state).collect()
}

fn rows(bench: &mut Bench, (without, directory): (PathBuf, TempDir), halves: &Halves) {
    let (slice, count, halves) = (slice(bench), clients(halves), halves.clone());
    bench.sample(specs(), move || {
        let mut values = Vec::new();
        for (_, awake) in STATES {
            let services = [tea_house()?, std::process::Command::new(&without)];
            let [mut with, without] = start(services, directory.path(), &halves)?;
            with.wake(awake)?;
            let connect = |server: &Server| Clients::connect(server.addr, count);
            let mut clients = [connect(&with)?, connect(&without)?];
            let mut load = |side: usize, span: Duration| {
                Ok::<_, Failure>(halves.on_second(|| clients[side].run(&MIX, span))??.answered)
            };
            for side in [0, 1] {
                load(side, slice)?;
            }
            let before = [cpu_time_of(with.pid())?, cpu_time_of(without.pid())?];
            let (own_before, mut answered) = (with.own()?, [0; SIDES.len()]);
            for side in [TURN; TURNS].concat() {
                answered[side] += load(side, slice)?;
            }
            let own = with.own()?.since(own_before);
            let after = [cpu_time_of(with.pid())?, cpu_time_of(without.pid())?];
            let cpu_ns = |side: usize| after[side].saturating_sub(before[side]).as_nanos() as f64;
            values.extend(told_and_true(own, [0, 1].map(|side| (cpu_ns(side), answered[side]))));
        }
        Ok(values)
    });
}

fn start(
    services: [std::process::Command; 2],
    directory: &std::path::Path,
    halves: &Halves,
) -> Result<[Server; 2], Failure> {
    let [with, without] = services;
    let start = |program, has_agent| halves.on_first(|| Server::start(program, has_agent, directory));
    Ok([start(with, true)??, start(without, false)??])
}

/// In percent of the CPU time of the service with dormouse: what it reports, and what each request
/// took more than without. `used` has CPU nanoseconds and answered requests, with and without.
fn told_and_true(own: OwnCost, used: [(f64, u64); 2]) -> [f64; 2] {
    let each = used.map(|(ns, answered)| ns / answered as f64);
    [100.0 * own.cpu_ns() as f64 / used[0].0, 100.0 * (1.0 - each[1] / each[0])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_shares_of_the_same_time() {
        let own = OwnCost { threads_ns: 10, polls_ns: Some(30), ..OwnCost::default() };
        // 20 ns a request with dormouse, 19 without, for which more requests were answered.
        let [told, real] = told_and_true(own, [(1000.0, 50), (1900.0, 100)]);
        assert!((told - 4.0).abs() < 1e-9 && (real - 5.0).abs() < 1e-9, "{told} {real}");
    }
}

//! The tea house under load while it is profiled at several rates: rows of `bench profile`.
//!
//! One process serves slices at each rate in turn, so that its state is the same for all. The cost
//! of a profile is less than the noise of a load, so it is also computed: the time of dormouse's
//! own thread, plus that of the samples at the price of one.

use std::time::Duration;

use dormouse::clock::process_cpu_ns_of;
use tempfile::TempDir;

use super::load::{Clients, Load, MIX};
use super::server::Server;
use super::{clients, has_tea_house, slice, tea_house};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// Samples per second; 0 for no profile.
const RATES: [u32; 3] = [0, 19, 99];
/// The rate of each slice, in one round.
const TURN: [usize; 6] = [0, 1, 2, 2, 1, 0];

/// Adds `teaparty-profiled/…`.
pub(crate) fn rows(bench: &mut Bench) {
    let halves = Halves::of_this_thread();
    let each = RATES.map(|hz| {
        let spec = |kind: &str, unit| Spec::new(format!("teaparty-{kind}/{hz}"), unit).with("hz", hz);
        [
            spec("requests", "requests/CPU s"),
            spec("sampler", "%").better(Better::Lower).with("of", "the service's CPU time"),
            spec("samples", "samples/CPU s"),
        ]
    });
    let specs = each.concat();
    let made = TempDir::with_prefix("dormouse-bench-")
        .map_err(|error| format!("cannot create a directory for the service: {error}"))
        .and_then(|directory| has_tea_house().map(|()| directory));
    let Some(directory) = bench.need(specs.clone(), made) else { return };
    let (slice, count) = (slice(bench) * 2, clients(&halves));
    bench.sample(specs, move || {
        let tea = tea_house()?;
        let server = halves.on_first(|| Server::start(tea, true, directory.path()))??;
        let mut clients = Clients::connect(server.addr, count)?;
        let mut run = |span: Duration| Ok::<Load, Failure>(halves.on_second(|| clients.run(&MIX, span))??);
        run(slice)?;
        let used = || process_cpu_ns_of(server.pid()).ok_or("the service has ended");
        let (mut answered, mut cpu, mut ours, mut samples) = ([0; 3], [0; 3], [0; 3], [0; 3]);
        for rate in TURN {
            let mut profile = match RATES[rate] {
                0 => None,
                hz => Some(server.profile(directory.path(), hz, false)?),
            };
            // The time to begin is a row of its own (`arm/…`).
            let began = if profile.is_some() { server.sampler_ns()? } else { 0 };
            let before = used()?;
            answered[rate] += run(slice)?.answered;
            if let Some(profile) = &mut profile {
                ours[rate] += server.sampler_ns()?.saturating_sub(began);
                samples[rate] += profile.samples()?;
            }
            cpu[rate] += used()? - before;
        }
        let of = |rate: usize| {
            let time = cpu[rate] as f64;
            let second = time / 1e9;
            [answered[rate] as f64 / second, 100.0 * ours[rate] as f64 / time, samples[rate] as f64 / second]
        };
        Ok([of(0), of(1), of(2)].concat())
    });
}

/// Compares them; `per_sample` is the row with the price of a sample, the signal included.
pub(crate) fn compare(bench: &mut Bench, per_sample: &str) {
    let price = bench.median(per_sample).unwrap_or(f64::NAN);
    for hz in RATES.iter().skip(1) {
        let of = |kind: &str| format!("teaparty-{kind}/{hz}");
        // Samples a second at nanoseconds each: parts of 1e9.
        bench.paired(
            Spec::new(of("share"), "%").with("of", "the service's CPU time"),
            &of("sampler"),
            &of("samples"),
            |sampler, samples| sampler + 100.0 * samples * price / 1e9,
        );
        bench.percent(of("requests-difference"), &of("requests"), "teaparty-requests/0");
    }
    bench.at_most("99 Hz at most 0.2 % of the tea house's CPU time", "teaparty-share/99", 0.2);
}

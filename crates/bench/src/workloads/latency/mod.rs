//! `bench latency`: the latency that dormouse shows of a route, beside the one that its clients
//! measure.
//!
//! The service is a forked child, the clients are threads of this process, with clocks of their
//! own: they know nothing of dormouse. They are open-loop: requests are sent at a constant rate,
//! whether or not others have been answered, so a service that stands still meets the requests that
//! come meanwhile. A client's latency lasts from the moment before it sends a request to the moment
//! at which it has the first bytes of the answer; `open-loop` counts from the moment at which the
//! request was due. The two differ where a client was late.
//!
//! | row | is |
//! |---|---|
//! | `client/SERVICE/WORKERS/CASE/{p50,p99}` | the latency as the client measures it |
//! | `open-loop/SERVICE/WORKERS/CASE/p99` | the same, from the moment at which the request was due |
//! | `shown/SERVICE/WORKERS/CASE/{p50,p99}` | the latency of the route's group |
//! | `received/SERVICE/WORKERS/CASE/{p50,p99}` | the client's, until its kernel had the answer |
//! | `wake/SERVICE/WORKERS/CASE/p99` | from there until the client had read it |
//! | `shown-error/SERVICE/WORKERS/CASE/{p50,p99}` | how far shown is from client, without the sign |
//! | `received-error/SERVICE/WORKERS/CASE/{p50,p99}` | how far shown is from received |
//! | `shown/streams/{alone,again,beside}/p99` | the latency of a route in windows without streams, twice, and with 200 |
//! | `received/streams/{alone,again,beside}/p99` | the same, as the client's kernel has it |
//! | `received/streams/{bare-alone,bare-again,bare-beside}/p99` | the same of a service without dormouse |
//! | `shown-error/streams/{p99,null-p99}` | how far `beside`, and `again`, are from `alone`, without the sign |
//! | `received-error/streams/{p99,null-p99,bare-p99,bare-null-p99}` | the same of `received`, and of those without dormouse |
//! | `request/{asleep,times}{,-read}/{task,queued,again}` | a request, from its task or its arrival on |
//! | `write/{asleep,counted}/{connection,route}` | a response that is made, written and flushed |
//!
//! There is no peer: the client is the oracle. There is no origin.

mod ask;
mod cost;
mod events;
mod http1;
mod http2;
mod load;
mod service;
mod streams;
mod writes;

use std::time::Duration;

use self::load::{Latencies, Load, Protocol};
use self::service::{Dormouse, Service};
use crate::bench::Bench;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// A service with the protocol that its clients speak: `axum::serve` behind
/// [`dormouse::axum::listener`], and connections of hyper's own with [`dormouse::hyper::Executor`].
const SERVICES: [(&str, Protocol); 2] = [("axum-http1", Protocol::Http1), ("hyper-http2", Protocol::Http2)];

/// Threads of the service's runtime.
const WORKERS: [usize; 2] = [1, 4];

/// A case: its name, the requests for each worker in a second, how long a request awaits something,
/// how long it keeps its worker on average, and how many requests there are to one that keeps it
/// for [`LONG`].
const CASES: [(&str, u32, Duration, Duration, Option<usize>); 3] = [
    // No request waits for another one.
    ("idle", 50, Duration::from_millis(5), Duration::ZERO, None),
    // Seven tenths of the time of each worker, in uneven parts.
    ("loaded", 350, Duration::ZERO, Duration::from_millis(2), None),
    // The others wait for the long one.
    ("blocked", 300, Duration::from_millis(5), Duration::ZERO, Some(100)),
];

/// Seconds after which the kernel ends a service.
const PATIENCE: u32 = 60;

/// A blocking call in a handler.
const LONG: Duration = Duration::from_millis(30);

pub(crate) fn run(bench: &mut Bench) {
    bench.say("calibrating");
    cost::rows(bench);
    writes::rows(bench);
    // Each place of the memory once, or four times.
    bench.measure("requests", bench.plan(4 * cost::PLACES, cost::PLACES));
    cost::noted_rows(bench);
    bench.measure("noted", bench.plan(60, 4));
    cost::compare(bench);
    writes::compare(bench);
    let length = Duration::from_millis(bench.pick(2_000, 250));
    bench.param("seconds", length.as_secs_f64());
    bench.param("long_ms", LONG.as_millis() as u64);
    for (service, protocol) in SERVICES {
        for workers in WORKERS {
            for (case, rate, awaits, each, long_every) in CASES {
                let rate = rate * workers as u32;
                let load = Load { protocol, rate, length, awaits, each, long_every, long: LONG };
                let at = format!("{service}/{workers}/{case}");
                bench.sample(specs(&at, &load), move || sample(workers, &load));
            }
        }
    }
    streams::rows(bench);
    bench.measure("reps", bench.plan(5, 1));
    streams::compare(bench);
    for part in ["p50", "p99"] {
        let worst = errors(bench, part, "shown-error", "client");
        bench.at_most(&format!("the shown {part} is within 10 % of the client's"), &worst, 10.0);
        let worst = errors(bench, part, "received-error", "received");
        let goal = format!("the shown {part} is within 10 % of when the client's kernel has the answer");
        bench.at_most(&goal, &worst, 10.0);
    }
    bench.explain(include_str!("notes.txt"));
}

/// Adds how far the shown latency is from `oracle`, and returns the name of the worst row.
fn errors(bench: &mut Bench, part: &str, rows: &str, oracle: &str) -> String {
    let mut errors = Vec::new();
    for (service, _) in SERVICES {
        for workers in WORKERS {
            for (case, ..) in CASES {
                let at = format!("{service}/{workers}/{case}/{part}");
                let spec = Spec::new(format!("{rows}/{at}"), "%").better(Better::Lower);
                let error = |shown: f64, measured: f64| 100.0 * (shown / measured - 1.0).abs();
                bench.paired(spec, &format!("shown/{at}"), &format!("{oracle}/{at}"), error);
                errors.push(format!("{rows}/{at}"));
            }
        }
    }
    bench.largest(errors)
}

fn specs(at: &str, load: &Load) -> Vec<Spec> {
    let spec = |name: &str| Spec::new(name.replace("AT", at), "ms").wall().with("requests_per_s", load.rate);
    let client = ["client/AT/p50", "client/AT/p99", "open-loop/AT/p99"].map(spec);
    let kernel = ["received/AT/p50", "received/AT/p99", "wake/AT/p99"].map(spec);
    client.into_iter().chain(kernel).chain(["shown/AT/p50", "shown/AT/p99"].map(spec)).collect()
}

/// In the order of [`specs`].
fn sample(workers: usize, load: &Load) -> Result<[f64; 8], Failure> {
    let mut service = Service::start(load.protocol, workers, Dormouse::Inside, PATIENCE)?;
    let Latencies { mut sent, mut due, mut received, mut wake } = load.run(service.address())?;
    service.end_window(0)?;
    let shown = service.end()?;
    let [shown] = shown[..] else { return Err(Failure::wrong(format!("the service shows {shown:?}"))) };
    if shown.count != sent.len() as u64 {
        return Err(Failure::wrong(format!("{} of {} requests are counted", shown.count, sent.len())));
    }
    Ok([
        quantile(&mut sent, 0.5)?,
        quantile(&mut sent, 0.99)?,
        quantile(&mut due, 0.99)?,
        quantile(&mut received, 0.5)?,
        quantile(&mut received, 0.99)?,
        quantile(&mut wake, 0.99)?,
        shown.p50_ms,
        shown.p99_ms,
    ])
}

/// In milliseconds.
fn quantile(of: &mut [Duration], share: f64) -> Result<f64, Failure> {
    if of.is_empty() {
        return Err(Failure::wrong("the kernel has stamped no answer"));
    }
    of.sort_unstable();
    Ok(of[((of.len() as f64 * share) as usize).min(of.len() - 1)].as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_counts_what_its_clients_sent() {
        for (_, protocol) in SERVICES {
            let (length, awaits) = (Duration::from_millis(200), Duration::from_millis(1));
            let (each, long_every) = (Duration::ZERO, Some(5));
            let load = Load { protocol, rate: 100, length, awaits, each, long_every, long: LONG };
            let [p50, p99, due, received, ..] = sample(1, &load).unwrap();
            assert!(p50 > 0.0 && p99 >= p50 && due >= p99, "{p50} {p99} {due}");
            assert!(received > 0.0 && received <= due, "{received} {due}");
        }
    }
}

//! The latency of a route that also has streams, beside that of the same route without them, and
//! beside both in a service without dormouse.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::ask::connect;
use super::events::EVENTS;
use super::load::{Load, Protocol};
use super::quantile;
use super::service::{Dormouse, Service};
use crate::bench::Bench;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// The clients of streams.
const STREAMS: usize = 200;

const WORKERS: usize = 2;
const RATE: u32 = 200;
const AWAITS: Duration = Duration::from_millis(20);

/// A case, its streams, and whether dormouse is in the service. `again` is `alone` once more: their
/// difference is the machine's.
const CASES: [(&str, usize, Dormouse); 5] = [
    ("alone", 0, Dormouse::Inside),
    ("again", 0, Dormouse::Inside),
    ("beside", STREAMS, Dormouse::Inside),
    ("bare", 0, Dormouse::Nowhere),
    ("bare-beside", STREAMS, Dormouse::Nowhere),
];

pub(super) fn rows(bench: &mut Bench) {
    let length = Duration::from_millis(bench.pick(20_000, 500));
    bench.param("streams_seconds", length.as_secs_f64());
    for (case, streams, dormouse) in CASES {
        let spec =
            |by: &str| Spec::new(format!("{by}/streams/{case}/p99"), "ms").wall().with("streams", streams);
        let sample = move || sample(length, streams, dormouse);
        match dormouse {
            Dormouse::Inside => bench.sample([spec("received"), spec("shown")], sample),
            Dormouse::Nowhere => bench.sample([spec("received")], move || Ok([sample()?[0]])),
        }
    }
}

pub(super) fn compare(bench: &mut Bench) {
    let mut error = |by: &str, name: &str, case: &str, other: &str| {
        let spec = Spec::new(format!("{by}-error/streams/{name}"), "%").better(Better::Lower);
        let [case, other] = [case, other].map(|case| format!("{by}/streams/{case}/p99"));
        bench.paired(spec, &case, &other, |case, other| 100.0 * (case / other - 1.0).abs());
    };
    for by in ["shown", "received"] {
        error(by, "p99", "beside", "alone");
        error(by, "null-p99", "again", "alone");
    }
    error("received", "bare-p99", "bare-beside", "bare");
    let goal = "200 streams in a route move the p99 of its requests by at most 5 %";
    bench.at_most(goal, "shown-error/streams/p99", 5.0);
}

/// The p99 of the requests, as the client's kernel has it, and as dormouse shows it.
fn sample(length: Duration, streams: usize, dormouse: Dormouse) -> Result<[f64; 2], Failure> {
    let (awaits, each, long) = (AWAITS, Duration::ZERO, Duration::ZERO);
    let protocol = Protocol::Http1;
    let load = Load { protocol, rate: RATE, length, awaits, each, long_every: None, long };
    let service = Service::start(protocol, WORKERS, dormouse)?;
    let open: Vec<_> = (0..streams).map(|_| stream(service.address())).collect::<io::Result<_>>()?;
    let mut latencies = load.run(service.address())?;
    let answered = latencies.sent.len() as u64;
    drop(open);
    let shown = service.end()?;
    if dormouse == Dormouse::Inside && shown.count != answered {
        let text = format!("{} of {answered} requests are counted beside {streams} streams", shown.count);
        return Err(Failure::wrong(text));
    }
    Ok([quantile(&mut latencies.received, 0.99)?, shown.p99_ms])
}

/// A client of a stream. The kernel keeps the events that it does not read.
fn stream(target: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = connect(target)?;
    write!(stream, "GET {EVENTS} HTTP/1.1\r\nhost: bench\r\n\r\n")?;
    // It has begun.
    stream.peek(&mut [0])?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_not_among_the_measured_requests() {
        for dormouse in [Dormouse::Inside, Dormouse::Nowhere] {
            let [received, shown] = sample(Duration::from_millis(100), 3, dormouse).unwrap();
            assert!(received > 0.0 && (shown > 0.0) == (dormouse == Dormouse::Inside), "{received} {shown}");
        }
    }
}

//! The latency of a route that also has streams, beside that of the same route without them.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::ask::connect;
use super::events::EVENTS;
use super::load::{Load, Protocol};
use super::service::Service;
use crate::bench::Bench;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// The clients of streams.
const STREAMS: usize = 200;

const WORKERS: usize = 2;
const RATE: u32 = 200;
const AWAITS: Duration = Duration::from_millis(20);

pub(super) fn rows(bench: &mut Bench) {
    let length = Duration::from_millis(bench.pick(20_000, 250));
    bench.param("streams_seconds", length.as_secs_f64());
    for (case, streams) in [("alone", 0), ("beside", STREAMS)] {
        let spec = Spec::new(format!("shown/streams/{case}/p99"), "ms");
        bench.sample(vec![spec.wall().with("streams", streams)], move || sample(length, streams));
    }
}

pub(super) fn compare(bench: &mut Bench) {
    let spec = Spec::new("shown-error/streams/p99", "%").better(Better::Lower);
    let error = |beside: f64, alone: f64| 100.0 * (beside / alone - 1.0).abs();
    bench.paired(spec, "shown/streams/beside/p99", "shown/streams/alone/p99", error);
    let goal = "200 streams in a route move the p99 of its requests by at most 5 %";
    bench.at_most(goal, "shown-error/streams/p99", 5.0);
}

fn sample(length: Duration, streams: usize) -> Result<[f64; 1], Failure> {
    let (awaits, each, long) = (AWAITS, Duration::ZERO, Duration::ZERO);
    let protocol = Protocol::Http1;
    let load = Load { protocol, rate: RATE, length, awaits, each, long_every: None, long };
    let service = Service::start(protocol, WORKERS)?;
    let open: Vec<_> = (0..streams).map(|_| stream(service.address())).collect::<io::Result<_>>()?;
    let answered = load.run(service.address())?.sent.len() as u64;
    drop(open);
    let shown = service.end()?;
    if shown.count != answered {
        let text = format!("{} of {answered} requests are counted beside {streams} streams", shown.count);
        return Err(Failure::wrong(text));
    }
    Ok([shown.p99_ms])
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
        let [p99] = sample(Duration::from_millis(100), 3).unwrap();
        assert!(p99 > 0.0);
    }
}

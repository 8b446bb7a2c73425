//! The latency of a route that also has streams, beside that of the same route without them, and
//! beside both in a service without dormouse.
//!
//! Windows with streams and without follow one another in one service, so that a busy machine, or a
//! slow start, disturbs both alike. Between two windows all requests and streams have ended.

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

/// The kinds of windows, with their streams. `again` is `alone` once more: their difference is the
/// machine's.
const KINDS: [(&str, usize); 3] = [("alone", 0), ("again", 0), ("beside", STREAMS)];

/// The orders in which the windows of one turn come: each kind is as often before as after each
/// other one, so what changes slowly disturbs all alike.
const TURNS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

/// The windows of one service.
#[derive(Debug, Clone, Copy)]
struct Windows {
    turns: usize,
    length: Duration,
}

impl Windows {
    /// For how long the kernel lets the service live: three times as long as the windows take, and
    /// a minute.
    fn patience(self) -> u32 {
        60 + (3 * self.turns * KINDS.len()) as u32 * self.length.as_secs().max(1) as u32
    }
}

pub(super) fn rows(bench: &mut Bench) {
    let windows = bench.pick(
        Windows { turns: 6, length: Duration::from_secs(3) },
        Windows { turns: 2, length: Duration::from_millis(500) },
    );
    bench.param("streams_seconds", windows.length.as_secs_f64() * windows.turns as f64);
    let spec = |by: &str, at: &str, (kind, streams): (&str, usize)| {
        Spec::new(format!("{by}/streams/{at}{kind}/p99"), "ms").wall().with("streams", streams)
    };
    let inside = ["received", "shown"].into_iter().flat_map(|by| KINDS.map(|kind| spec(by, "", kind)));
    bench.sample(inside.collect::<Vec<_>>(), move || {
        let (received, shown) = sample(windows, STREAMS, Dormouse::Inside)?;
        Ok([received, shown].concat())
    });
    let bare = KINDS.map(|kind| spec("received", "bare-", kind));
    bench.sample(bare, move || Ok(sample(windows, STREAMS, Dormouse::Nowhere)?.0));
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
    error("received", "bare-p99", "bare-beside", "bare-alone");
    error("received", "bare-null-p99", "bare-again", "bare-alone");
    let goal = "200 streams in a route move the p99 of its requests by at most 5 %";
    bench.at_most(goal, "shown-error/streams/p99", 5.0);
}

/// The p99 of the requests of each kind of windows, as the client's kernel has it, and as dormouse
/// shows it. One service serves all windows, one after the other.
fn sample(windows: Windows, streams: usize, dormouse: Dormouse) -> Result<([f64; 3], [f64; 3]), Failure> {
    let (awaits, each, long) = (AWAITS, Duration::ZERO, Duration::ZERO);
    let protocol = Protocol::Http1;
    let load = Load { protocol, rate: RATE, length: windows.length, awaits, each, long_every: None, long };
    let mut service = Service::start(protocol, WORKERS, dormouse, windows.patience())?;
    let mut received: [Vec<Duration>; 3] = Default::default();
    let mut answered = [0; 3];
    for kind in TURNS.iter().cycle().take(windows.turns).flatten().copied() {
        let wanted = if KINDS[kind].1 == 0 { 0 } else { streams };
        let open: Vec<_> = (0..wanted).map(|_| stream(service.address())).collect::<io::Result<_>>()?;
        let latencies = load.run(service.address())?;
        answered[kind] += latencies.sent.len() as u64;
        received[kind].extend(latencies.received);
        drop(open);
        service.end_window(kind as u8)?;
    }
    let shown = service.end()?;
    let [alone, again, beside] = received.each_mut().map(|of| quantile(of, 0.99));
    let received = [alone?, again?, beside?];
    if dormouse == Dormouse::Nowhere {
        return Ok((received, [f64::NAN; 3]));
    }
    let counted: Vec<u64> = shown.iter().map(|kind| kind.count).collect();
    match shown[..] {
        [alone, again, beside] if counted == answered => {
            Ok((received, [alone, again, beside].map(|kind| kind.p99_ms)))
        }
        _ => Err(Failure::wrong(format!("{counted:?} of {answered:?} requests are counted beside streams"))),
    }
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
    use dormouse_testkit::long_only;

    use super::*;

    /// For ten minutes of each kind: half an hour.
    #[test]
    fn streams_leave_the_p99_alone() {
        if !long_only() {
            return;
        }
        let windows = Windows { turns: 60, length: Duration::from_secs(10) };
        let (received, shown) = sample(windows, STREAMS, Dormouse::Inside).unwrap();
        eprintln!("p99 of {KINDS:?}: {received:?} ms, shown as {shown:?} ms");
        let [alone, again, beside] = shown;
        let moved = |other: f64| 100.0 * (other / alone - 1.0).abs();
        assert!(
            moved(beside) <= 5.0 + moved(again),
            "{shown:?}: the machine alone moves it by {}",
            moved(again)
        );
    }

    #[test]
    fn streams_are_not_among_the_measured_requests() {
        let windows = Windows { turns: 2, length: Duration::from_millis(100) };
        for dormouse in [Dormouse::Inside, Dormouse::Nowhere] {
            let (received, shown) = sample(windows, 3, dormouse).unwrap();
            assert!(received.iter().all(|ms| *ms > 0.0), "{received:?}");
            assert!(shown.iter().all(|ms| (*ms > 0.0) == (dormouse == Dormouse::Inside)), "{shown:?}");
        }
    }
}

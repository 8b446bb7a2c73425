//! Open-loop clients: a request is due at its time, whatever has become of those before.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::ask::Ask;
use super::{http1, http2};

/// The protocol of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Many connections, each with one request at a time.
    Http1,
    /// One connection.
    Http2,
}

/// Requests at a constant rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) protocol: Protocol,
    /// In a second.
    pub(super) rate: u32,
    pub(super) length: Duration,
    /// How long a request awaits something.
    pub(super) awaits: Duration,
    /// How long it keeps its worker, on average.
    pub(super) each: Duration,
    /// If set, one of this number of requests keeps its worker for `long`, and is not measured.
    pub(super) long_every: Option<usize>,
    pub(super) long: Duration,
}

/// The latencies of all measured requests.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    /// From the moment at which the request was sent.
    pub(super) sent: Vec<Duration>,
    /// From the moment at which it was due.
    pub(super) due: Vec<Duration>,
    /// From the moment at which the request was sent to that at which the client's kernel had
    /// received the answer.
    pub(super) received: Vec<Duration>,
    /// From there to the moment at which the client had read it.
    pub(super) wake: Vec<Duration>,
}

impl Load {
    /// Sends all requests, and waits for the answers.
    pub(super) fn run(&self, target: SocketAddr) -> io::Result<Latencies> {
        let answered = match self.protocol {
            Protocol::Http1 => http1::run(target, |begin| self.asks(begin))?,
            Protocol::Http2 => http2::run(target, |begin| self.asks(begin))?,
        };
        let begin = answered.0;
        let asks = self.asks(begin);
        let mut all = Latencies::default();
        for it in answered.1.iter().filter(|it| asks[it.id].is_measured) {
            all.sent.push(it.first_byte.read - it.sent);
            all.due.push(it.first_byte.read - asks[it.id].due);
            if let Some(received) = it.first_byte.received {
                all.received.push(received.saturating_duration_since(it.sent));
                all.wake.push(it.first_byte.read.saturating_duration_since(received));
            }
        }
        Ok(all)
    }

    /// The requests, if the first one is due at `begin`.
    fn asks(&self, begin: Instant) -> Vec<Ask> {
        let count = (f64::from(self.rate) * self.length.as_secs_f64()) as usize;
        let gap = Duration::from_secs(1) / self.rate;
        // From a half to one and a half of the average, the same in each run.
        let uneven = |id: usize| self.each / 2 + self.each / 64 * ((id * 37) % 64) as u32;
        let ask = |id: usize| {
            // Not the first one, so that there is something to be held up.
            let is_long = self.long_every.is_some_and(|every| id % every == every / 2);
            let keeps = if is_long { self.long } else { uneven(id) };
            Ask { id, due: begin + gap * id as u32, is_measured: !is_long, awaits: self.awaits, keeps }
        };
        (0..count).map(ask).collect()
    }
}

//! The load generator: keep-alive HTTP/1.1 clients that request everything the house offers.
//!
//! Request n is due n/rate seconds after the start, whichever client sends it and however the
//! service is doing, and never before. Its latency counts from then if all clients were busy: a
//! service that stalls is charged for the requests it kept from being sent, not only for the one
//! that it delayed. If a client waited for the request to become due, the latency counts from when
//! it woke up: a late timer is not the service's fault.
//!
//! It runs on one thread with its own runtime, so that a service which blocks its workers does not
//! block the measurement; entering a group on that thread charges all of it.
//!
//! # Invariants
//!
//! Rate, number and time are all bounded by the command line, and the target is a [`Loopback`]
//! address.

mod client;
mod mix;
mod report;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    runtime,
    task::JoinSet,
    time::{Instant, sleep_until},
};

pub use report::{Latency, Report, RouteReport};

use crate::{
    Loopback, Stop,
    load::{client::Client, mix::MIX, report::Tally},
};

/// The limits of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests per second.
    pub rate: u32,
    /// Total number of requests; each one sent costs four bytes until the report.
    pub requests: u32,
    /// Total time. A request that was sent may still be answered after it.
    pub duration: Duration,
    /// Number of connections, each with one request at a time.
    pub clients: u16,
}

impl Default for Limits {
    /// 200 requests a second for ten seconds.
    fn default() -> Self {
        Self { rate: 200, requests: 10_000_000, duration: Duration::from_secs(10), clients: 8 }
    }
}

/// Loads the service at `target` until a limit is reached or `stop` is pulled. Blocks the calling
/// thread.
pub fn run(target: Loopback, limits: &Limits, stop: &Stop) -> anyhow::Result<Report> {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the load generator's runtime")?
        .block_on(generate(target, *limits, stop))
}

async fn generate(target: Loopback, limits: Limits, stop: &Stop) -> anyhow::Result<Report> {
    let schedule =
        Arc::new(Schedule { limits, start: Instant::now(), next: AtomicU64::new(0), stop: stop.clone() });
    // The latest placed order, for requests that read one; the first is the house's own.
    let latest_order = Arc::new(AtomicU64::new(1));
    let mut clients = JoinSet::new();
    for _ in 0..limits.clients {
        let client = Client::new(target, Arc::clone(&latest_order));
        clients.spawn(drink(client, Arc::clone(&schedule)));
    }
    let mut tally = Tally::default();
    while let Some(one) = clients.join_next().await {
        tally.merge(one.context("a client of the load generator panicked")?);
    }
    Ok(tally.report(limits.rate, schedule.start.elapsed()))
}

/// One client: takes tickets until there are no more.
async fn drink(mut client: Client, schedule: Arc<Schedule>) -> Tally {
    let mut tally = Tally::default();
    while let Some((number, begun)) = schedule.ticket().await {
        let shape = number as usize % MIX.len();
        let outcome = client.ask(MIX[shape]).await;
        tally.add(MIX[shape], begun.elapsed(), outcome);
    }
    tally
}

/// When each request is due.
#[derive(Debug)]
struct Schedule {
    limits: Limits,
    start: Instant,
    next: AtomicU64,
    stop: Stop,
}

impl Schedule {
    /// The number of the next request and the moment from which it counts; waits until it is due.
    async fn ticket(&self) -> Option<(u64, Instant)> {
        let number = self.next.fetch_add(1, Relaxed);
        let offset = Duration::from_secs_f64(number as f64 / f64::from(self.limits.rate));
        let late = self.start.elapsed() >= self.limits.duration || offset >= self.limits.duration;
        if number >= self.limits.requests.into() || late || self.stop.is_pulled() {
            return None;
        }
        let due = self.start + offset;
        if due <= Instant::now() {
            return Some((number, due));
        }
        tokio::select! {
            () = sleep_until(due) => Some((number, Instant::now())),
            () = self.stop.pulled() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_ticket_comes_before_it_is_due() {
        let limits = Limits { rate: 200, requests: 10, ..Limits::default() };
        let schedule = Schedule { limits, start: Instant::now(), next: AtomicU64::new(0), stop: Stop::new() };
        let mut handed_out = 0;
        while let Some((number, begun)) = schedule.ticket().await {
            assert_eq!(number, handed_out);
            assert!(schedule.start.elapsed() >= Duration::from_millis(5) * number as u32);
            assert!(begun >= schedule.start);
            handed_out += 1;
        }
        assert_eq!(handed_out, 10);
    }

    #[tokio::test]
    async fn a_pulled_cord_ends_a_tickets_wait() {
        let limits = Limits { rate: 1, duration: Duration::from_secs(3600), ..Limits::default() };
        let schedule =
            Schedule { limits, start: Instant::now(), next: AtomicU64::new(1000), stop: Stop::new() };
        let (ticket, ()) = tokio::join!(schedule.ticket(), async { schedule.stop.pull() });
        assert_eq!(ticket, None);
    }
}

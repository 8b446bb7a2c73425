//! The outcome of a load: counts and latencies, in all and per route.

use std::{borrow::Cow, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::load::mix::Ask;

/// The outcome of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Number of requests answered with success.
    pub served: u64,
    /// Number of requests refused, failed or not answered.
    pub errors: u64,
    /// The first of the errors.
    pub first_error: Option<String>,
    /// From the start to the last answer, in nanoseconds.
    pub elapsed_ns: u64,
    /// Requests served per second.
    pub served_per_s: f64,
    /// Requested requests per second. If far fewer were served the house was full, and latencies
    /// show how long the queue got.
    pub asked_per_s: u32,
    /// Latencies of all requests that were served.
    pub latency: Latency,
    /// The results of each route.
    pub routes: Vec<RouteReport>,
}

/// The results of one route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RouteReport {
    /// The route's name, which is also the name of its group.
    pub route: Cow<'static, str>,
    /// Number of requests answered with success.
    pub served: u64,
    /// Number of requests refused, failed or not answered.
    pub errors: u64,
    /// Latencies of the requests that were served.
    pub latency: Latency,
}

/// Quantiles of the latency, in microseconds, by nearest rank: each is a sample. All zero if there
/// is no sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// The median.
    pub p50_us: u32,
    /// The 90th percentile.
    pub p90_us: u32,
    /// The 99th percentile.
    pub p99_us: u32,
    /// The maximum.
    pub max_us: u32,
}

/// A report in the making.
#[derive(Debug, Default)]
pub(super) struct Tally {
    routes: [RouteTally; Ask::ALL.len()],
    first_error: Option<String>,
}

#[derive(Debug, Default)]
struct RouteTally {
    /// Latencies of the served requests, in microseconds.
    served: Vec<u32>,
    errors: u64,
}

impl Tally {
    pub(super) fn add(&mut self, ask: Ask, latency: Duration, outcome: anyhow::Result<()>) {
        let route = &mut self.routes[ask as usize];
        match outcome {
            Ok(()) => route.served.push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX)),
            Err(error) => {
                route.errors += 1;
                self.first_error.get_or_insert_with(|| format!("{}: {error:#}", ask.route()));
            }
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (mine, theirs) in self.routes.iter_mut().zip(other.routes) {
            mine.served.extend(theirs.served);
            mine.errors += theirs.errors;
        }
        self.first_error = self.first_error.take().or(other.first_error);
    }

    pub(super) fn report(mut self, asked_per_s: u32, elapsed: Duration) -> Report {
        let routes: Vec<_> = Ask::ALL
            .iter()
            .zip(&mut self.routes)
            .map(|(ask, tally)| RouteReport {
                route: ask.route().into(),
                served: tally.served.len() as u64,
                errors: tally.errors,
                latency: Latency::of(&mut tally.served),
            })
            .collect();
        let mut all: Vec<u32> = self.routes.into_iter().flat_map(|tally| tally.served).collect();
        Report {
            served: all.len() as u64,
            errors: routes.iter().map(|route| route.errors).sum(),
            first_error: self.first_error,
            elapsed_ns: elapsed.as_nanos() as u64,
            served_per_s: all.len() as f64 / elapsed.as_secs_f64(),
            asked_per_s,
            latency: Latency::of(&mut all),
            routes,
        }
    }
}

impl Latency {
    fn of(samples: &mut [u32]) -> Self {
        samples.sort_unstable();
        let quantile = |per_cent: usize| match samples.len() {
            0 => 0,
            len => samples[(len * per_cent).div_ceil(100) - 1],
        };
        Self { p50_us: quantile(50), p90_us: quantile(90), p99_us: quantile(99), max_us: quantile(100) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { served, errors, served_per_s, asked_per_s, .. } = self;
        let seconds = Duration::from_nanos(self.elapsed_ns).as_secs_f64();
        writeln!(
            f,
            "{served} requests served in {seconds:.1} s ({served_per_s:.0}/s of {asked_per_s}/s), {errors} errors"
        )?;
        if let Some(error) = &self.first_error {
            writeln!(f, "first error: {error}")?;
        }
        writeln!(
            f,
            "{:<18}{:>9}{:>8}{:>9}{:>9}{:>9}{:>9}",
            "route", "served", "errors", "p50 us", "p90 us", "p99 us", "max us"
        )?;
        let total =
            RouteReport { route: "all".into(), served: *served, errors: *errors, latency: self.latency };
        for RouteReport { route, served, errors, latency } in self.routes.iter().chain([&total]) {
            let Latency { p50_us, p90_us, p99_us, max_us } = latency;
            writeln!(f, "{route:<18}{served:>9}{errors:>8}{p50_us:>9}{p90_us:>9}{p99_us:>9}{max_us:>9}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_by_nearest_rank() {
        let mut samples: Vec<u32> = (1..=200).rev().collect();
        assert_eq!(Latency::of(&mut samples), Latency { p50_us: 100, p90_us: 180, p99_us: 198, max_us: 200 });
        assert_eq!(Latency::of(&mut [7]), Latency { p50_us: 7, p90_us: 7, p99_us: 7, max_us: 7 });
        assert_eq!(Latency::of(&mut []), Latency::default());
    }

    #[test]
    fn errors_count_by_route_and_first_is_told() {
        let mut tally = Tally::default();
        tally.add(Ask::Menu, Duration::from_micros(5), Ok(()));
        tally.add(Ask::Blend, Duration::ZERO, Err(anyhow::anyhow!("burnt")));
        let mut other = Tally::default();
        other.add(Ask::Blend, Duration::ZERO, Err(anyhow::anyhow!("burnt again")));
        tally.merge(other);
        let report = tally.report(1, Duration::from_secs(1));
        assert_eq!((report.served, report.errors), (1, 2));
        assert_eq!(report.first_error.as_deref(), Some("GET /blend: burnt"));
        let blend = report.routes.iter().find(|route| route.route == "GET /blend").unwrap();
        assert_eq!((blend.served, blend.errors), (0, 2));
    }
}

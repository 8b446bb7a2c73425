//! The command line, for the program of this crate and for others that run the house inside them.
//! What passes is in range: a mistake is told with the usage, before anything starts.

use std::{fmt, num::NonZero, ops::RangeInclusive, time::Duration};

use clap::builder::RangedI64ValueParser;

use crate::{Config, Loopback, load::Limits};

/// The most worker threads that may be asked for.
const WORKERS: RangeInclusive<u16> = 1..=256;

/// Flags of the tea house.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address to listen on, loopback only; port 0 takes any free one.
    #[arg(long, value_name = "ADDR", default_value_t = Loopback::ANY_PORT)]
    pub addr: Loopback,

    /// Worker threads; one per CPU by default.
    #[arg(long, value_name = "N", value_parser = within(WORKERS))]
    pub workers: Option<u16>,

    /// CPU time that a request may use, as 500us, 50ms or 1s; one that uses more leaves a record of the probe
    /// `http.over_budget`.
    #[arg(long, value_name = "DURATION", value_parser = budget, default_value = "50ms")]
    pub cpu_budget: Duration,

    /// Load the house with so many requests a second, and close it after that.
    #[arg(long, value_name = "RATE", value_parser = within(Limits::RATE))]
    pub load: Option<u32>,

    /// End the load after so many requests.
    #[arg(long, value_name = "N", requires = "load", value_parser = within(Limits::REQUESTS))]
    #[arg(default_value_t = Limits::default().requests)]
    pub requests: u32,

    /// End the load after so long, as 500ms, 10s, 5m or 1h.
    #[arg(long = "for", value_name = "DURATION", requires = "load", value_parser = duration, default_value = "10s")]
    pub duration: Duration,

    /// Connections of the load, each with one request at a time.
    #[arg(long, value_name = "N", requires = "load", value_parser = within(Limits::CLIENTS))]
    #[arg(default_value_t = Limits::default().clients)]
    pub clients: u16,

    /// Close when standard input ends, as it does when the parent that holds its other end dies.
    #[arg(long)]
    pub exit_with_parent: bool,

    /// Write what awake tracing callsites say to standard error; `RUST_LOG` narrows it.
    #[arg(long)]
    pub log: bool,
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        let Args { addr, workers, cpu_budget, load, requests, duration, clients, exit_with_parent, log } =
            args;
        let default = Self::default();
        Self {
            addr,
            workers: workers.and_then(|n| NonZero::new(n.into())).unwrap_or(default.workers),
            cpu_budget,
            load: load.map(|rate| Limits { rate, requests, duration, clients }),
            exit_with_parent,
            log,
        }
    }
}

fn within<T>(range: RangeInclusive<T>) -> RangedI64ValueParser<T>
where
    T: Copy + Into<i64> + TryFrom<i64, Error: fmt::Display> + Send + Sync + 'static,
{
    RangedI64ValueParser::new().range((*range.start()).into()..=(*range.end()).into())
}

/// How long the load lasts.
fn duration(text: &str) -> Result<Duration, String> {
    let duration = time(text)?;
    duration.filter(|duration| Limits::DURATION.contains(duration)).ok_or_else(|| {
        format!("a load may last from {:?} to {:?}", Limits::DURATION.start(), Limits::DURATION.end())
    })
}

fn budget(text: &str) -> Result<Duration, String> {
    time(text)?.ok_or_else(|| "more than there will ever be".into())
}

/// A whole number and its unit; none where that is more than can be counted.
fn time(text: &str) -> Result<Option<Duration>, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_us = match &text[digits.len()..] {
        "us" => 1,
        "ms" => 1000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return Err("a duration is a whole number and us, ms, s, m or h, as 10s".into()),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{digits:?} is not a whole number"))?;
    Ok(number.checked_mul(unit_us).map(Duration::from_micros))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn parse(flags: &[&str]) -> Result<Config, String> {
        let program = ["teaparty"].iter().chain(flags);
        Program::try_parse_from(program).map(|it| it.args.into()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_reach_the_config() {
        let flags = "--addr [::1]:8080 --workers 3 --load 50 --requests 7 --for 2m --clients 2 --log --cpu-budget 700us";
        let config = parse(&flags.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(config.addr.to_string(), "[::1]:8080");
        assert_eq!(config.workers.get(), 3);
        let limits = Limits { rate: 50, requests: 7, duration: Duration::from_secs(120), clients: 2 };
        assert_eq!(config.load, Some(limits));
        assert_eq!(config.cpu_budget, Duration::from_micros(700));
        assert!(config.log && !config.exit_with_parent);
    }

    #[test]
    fn without_load_there_is_none_and_its_flags_are_refused() {
        let default = parse(&[]).unwrap();
        assert_eq!((default.load, default.cpu_budget), (None, Config::default().cpu_budget));
        assert_eq!(parse(&["--load", "5"]).unwrap().load, Some(Limits { rate: 5, ..Limits::default() }));
        assert!(parse(&["--for", "1s"]).unwrap_err().contains("--load"));
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_the_flag_and_the_reason() {
        for (flags, flag, reason) in [
            (&["--addr", "0.0.0.0:80"][..], "--addr", "not a loopback address"),
            (&["--workers", "0"], "--workers", "1..=256"),
            (&["--load", "0"], "--load", "1..=100000"),
            (&["--load", "1", "--requests", "99999999"], "--requests", "1..=10000000"),
            (&["--load", "1", "--clients", "257"], "--clients", "1..=256"),
            (&["--load", "1", "--for", "25h"], "--for", "may last from 1ms to 86400s"),
            (&["--load", "1", "--for", "0s"], "--for", "may last from"),
            (&["--load", "1", "--for", "999us"], "--for", "may last from"),
            (&["--load", "1", "--for", "10"], "--for", "ms, s, m or h"),
            (&["--cpu-budget", "9999999999999999h"], "--cpu-budget", "more than there"),
            (&["--cpu-budget", "50"], "--cpu-budget", "as 10s"),
            (&["--load", "1", "--for", "1.5s"], "--for", "whole number"),
            (&["--load", "1", "--for", "99999999999999999h"], "--for", "may last from"),
        ] {
            let refused = parse(flags).unwrap_err();
            assert!(refused.contains(flag) && refused.contains(reason), "{flags:?}: {refused}");
        }
    }

    #[test]
    fn every_unit_of_a_duration_is_understood() {
        for (text, ms) in [("7000us", 7), ("250ms", 250), ("3s", 3_000), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)));
        }
    }
}

//! The command line, for the program of this crate and for others that run the house inside them.
//! Every accepted value is in range: a mistake is reported with the usage, before anything starts.

use std::time::Duration;

use clap::value_parser;

use crate::{Loopback, load::Limits, server::DEFAULT_TAX};

/// The longest load.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Flags of the tea house.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address to listen on, loopback only; port 0 takes any free one.
    #[arg(long, value_name = "ADDR", default_value_t = Loopback::ANY_PORT)]
    pub addr: Loopback,

    /// Number of worker threads; by default one for each CPU.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=256))]
    pub workers: Option<u16>,

    /// CPU time that a request may use, such as 500us, 50ms or 1s; one that uses more leaves a
    /// record of the probe `dormouse.over_budget`.
    #[arg(long, value_name = "DURATION", value_parser = budget, default_value = "50ms")]
    pub cpu_budget: Duration,

    /// Additional CPU time of a request while the key `teaparty.tax` is on, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = DEFAULT_TAX)]
    #[arg(value_parser = value_parser!(u16).range(1..=1000))]
    pub tax: u16,

    /// Load the house with RATE requests a second, and close it after that.
    #[arg(long, value_name = "RATE", value_parser = value_parser!(u32).range(1..=100_000))]
    pub load: Option<u32>,

    /// End the load after N requests.
    #[arg(long, value_name = "N", requires = "load", default_value_t = Limits::default().requests)]
    #[arg(value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub requests: u32,

    /// End the load after this time, such as 500ms, 10s, 5m or 1h.
    #[arg(long = "for", value_name = "DURATION", requires = "load", value_parser = duration, default_value = "10s")]
    pub duration: Duration,

    /// Connections of the load, each with one request at a time.
    #[arg(long, value_name = "N", requires = "load", default_value_t = Limits::default().clients)]
    #[arg(value_parser = value_parser!(u16).range(1..=256))]
    pub clients: u16,

    /// Close when standard input ends, as it does when the parent that holds its other end dies.
    #[arg(long)]
    pub exit_with_parent: bool,

    /// Write the messages of awake tracing callsites to standard error; `RUST_LOG` narrows them.
    #[arg(long)]
    pub log: bool,
}

impl Args {
    /// The limits of the load, if there is one.
    pub(crate) fn limits(&self) -> Option<Limits> {
        let Self { requests, duration, clients, .. } = *self;
        self.load.map(|rate| Limits { rate, requests, duration, clients })
    }
}

/// How long the load lasts.
fn duration(text: &str) -> Result<Duration, String> {
    let is_known = |duration: &Duration| (Duration::from_millis(1)..=DAY).contains(duration);
    time(text)?.filter(is_known).ok_or_else(|| format!("a load may last from 1ms to {DAY:?}"))
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

    fn parse(flags: &[&str]) -> Result<Args, String> {
        let program = ["teaparty"].iter().chain(flags);
        Program::try_parse_from(program).map(|it| it.args).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_are_understood() {
        let flags = "--addr [::1]:8080 --workers 3 --load 50 --requests 7 --for 2m --clients 2 --log --cpu-budget 700us --tax 30";
        let args = parse(&flags.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(args.addr.to_string(), "[::1]:8080");
        assert_eq!(args.workers, Some(3));
        let limits = Limits { rate: 50, requests: 7, duration: Duration::from_secs(120), clients: 2 };
        assert_eq!(args.limits(), Some(limits));
        assert_eq!(args.cpu_budget, Duration::from_micros(700));
        assert_eq!(args.tax, 30);
        assert!(args.log && !args.exit_with_parent);
    }

    #[test]
    fn load_flags_need_a_load() {
        let default = parse(&[]).unwrap();
        assert_eq!((default.limits(), default.cpu_budget), (None, crate::server::CPU_BUDGET));
        assert_eq!(parse(&["--load", "5"]).unwrap().limits(), Some(Limits { rate: 5, ..Limits::default() }));
        assert!(parse(&["--for", "1s"]).unwrap_err().contains("--load"));
    }

    #[test]
    fn out_of_range_names_flag_and_reason() {
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
            (&["--tax", "0"], "--tax", "1..=1000"),
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

//! `dormouse trace`: switches probes on, prints what they record, and switches them off by going
//! away.
//!
//! The end of the connection is what switches the probes off, so it does not matter whether this
//! command ends by Ctrl-C, by its own limits, by a closed pipe or by SIGKILL.

use std::num::NonZero;
use std::time::{Duration, Instant};

use dormouse::wire::{BatchStat, Op, ProbeInfo, Tracing};
use serde::Serialize;

use crate::args::KeyArgs;
use crate::client::Client;
use crate::duration::parse_positive;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, FAIR, say};
use crate::signals::Signals;
use crate::stream::{Limits, Stream, Tally, summary};
use crate::text::{count, list};

/// Switch probes on and print what they record, until Ctrl-C
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    keys: KeyArgs,
    /// End after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_positive)]
    length: Option<Duration>,
    /// End after so many records
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<NonZero<u64>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Document<'a> {
    Start { pid: u32, matched: &'a [String], probes: &'a [ProbeInfo], batch: &'a BatchStat },
    End { elapsed_ns: u64, tally: Tally },
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    let (mut client, _) = Client::open(&args.keys.target, context.patience)?;
    let signals = Signals::to_end()?;
    let tracing: Tracing = client.call(Op::Trace { glob: args.keys.glob.clone() })?;
    if context.json {
        let Tracing { matched, probes, batch, .. } = &tracing;
        context.document(&Document::Start { pid: client.pid, matched, probes, batch })?;
        context.flush()?;
    } else {
        announce(&tracing, &client.who);
    }
    let start = Instant::now();
    let mut stream = Stream::new(client, tracing, context.patience);
    let result = stream.print(&Limits { length: args.length, records: args.count }, &signals, context);
    if matches!(result, Err(Failure::StdoutClosed)) {
        return Err(Failure::StdoutClosed);
    }
    let elapsed_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let tally = stream.tally;
    if context.json {
        context.document(&Document::End { elapsed_ns, tally })?;
    }
    context.flush()?;
    if !context.json && (result.is_ok() || tally != Tally::default()) {
        say(summary(tally, elapsed_ns));
    }
    result.map(|()| Exit::Ok)
}

fn announce(tracing: &Tracing, who: &str) {
    let mut names: Vec<&str> = tracing.probes.iter().map(|probe| probe.name.as_str()).collect();
    let probes = names.len();
    // Several keys may have the same name; an agent of an earlier version counts names.
    let keys = tracing.keys.max(tracing.matched.len());
    let others = keys.saturating_sub(probes);
    names.dedup();
    if names.is_empty() {
        say(format_args!(
            "{FAIR}warning:{FAIR:#} none of the {} is a probe: they are on in {who}, but record nothing here",
            count(keys as u64, "matched key"),
        ));
        return;
    }
    let beside =
        if others == 0 { String::new() } else { format!(" and {}", count(others as u64, "other key")) };
    say(format_args!(
        "tracing {}{beside} in {who}: {}; Ctrl-C ends it",
        count(probes as u64, "probe"),
        list(&names, 6),
    ));
}

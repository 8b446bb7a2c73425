//! `dormouse demo`: shows what the command does, on a service of its own.
//!
//! The service is this program again, as a child, under load. It is found, asked and switched in
//! the same ways as any other process; nothing here accesses it in another way.

mod child;
mod script;
mod summary;
mod toggle;

pub(super) use child::{Begin, End};
pub(super) use script::Begun;
pub(super) use summary::Summary;
pub(super) use toggle::Second;

use std::num::NonZero;
use std::time::{Duration, Instant};

use dormouse_protocol::{Stat, StatRequest};

use crate::client::Client;
use crate::duration::parse_positive;
use crate::exit::{Exit, Failure, Outcome};
use crate::live;
use crate::output::{Context, is_interactive, say};
use crate::sample::events::EventRequest;
use crate::sample::source::Source;
use crate::target::Target;
use crate::verb::Subcommand;
use child::TeaHouse;

/// How long the service lives by default: for a live view, until the user leaves.
const LIVE: Duration = Duration::from_secs(3600);
/// The time for which a user watches text scroll by.
const PLAIN: Duration = Duration::from_secs(10);

/// Start a service under load and look into it
///
/// On a terminal this opens the live view. Elsewhere, and with --plain, it shows the tables a few
/// times, switches every key on, prints some records, switches them off and sums up.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long it runs; without this a live view ends when you leave it
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_length)]
    length: Option<Duration>,
    /// Print text even on a terminal
    #[arg(long)]
    plain: bool,
    /// Switch every key on and off as fast as possible, and print the interrupts that this causes
    #[arg(long)]
    toggle: bool,
    /// Requests per second
    #[arg(long, value_name = "RATE", default_value_t = const { NonZero::new(200).unwrap() })]
    load: NonZero<u16>,
}

fn parse_length(text: &str) -> Result<Duration, String> {
    parse_positive(text).and_then(|length| match length {
        _ if length < Duration::from_secs(1) => Err("it must be at least 1s".into()),
        _ if length > LIVE => Err("it must be at most 1h".into()),
        length => Ok(length),
    })
}

impl Subcommand for Args {
    fn run(&self, context: &mut Context) -> Outcome {
        let is_live = is_interactive() && !self.plain && !self.toggle && !context.json;
        let length = self.length.unwrap_or(if is_live { LIVE } else { PLAIN });
        let mut house = TeaHouse::open(self.load, length, context.patience)?;
        match play(&mut house, self, is_live, length, context) {
            Ok(Some(summary)) => {
                summary.print(context)?;
                context.flush()?;
                if !context.json {
                    say(
                        "\nyour own service: call dormouse::init() in it, then try dormouse ps, top, keys and trace",
                    );
                }
                Ok(summary.exit())
            }
            Ok(None) => Ok(Exit::Interrupted),
            // The service's own end explains why it could not be talked to.
            Err(failure) => Err(house.explain(failure)),
        }
    }
}

/// Shows the service, or toggles its keys, and closes it; `None` when a signal came first.
fn play(
    house: &mut TeaHouse,
    args: &Args,
    is_live: bool,
    length: Duration,
    context: &mut Context,
) -> Outcome<Option<Summary>> {
    let target = Target::Pid(house.pid());
    let end = Instant::now() + length;
    let (mut client, hello) = Client::open(&target, context.patience)?;
    EventRequest::default().ask(&mut client)?;
    let mut batches = None;
    if args.toggle {
        if toggle::play(&mut client, end, context)? {
            return Ok(None);
        }
    } else {
        let source = Source::open(&target, &EventRequest::default(), context.patience)?;
        if is_live {
            live::run(source, Duration::from_secs(1), Some(end), false)?;
        } else {
            batches = script::play(&mut client, source, &target, house, length, context)?;
            if batches.is_none() {
                return Ok(None);
            }
        }
    }
    // While it lives: its totals go with it.
    let stat: Stat = client.call(StatRequest::default())?;
    let load = house.close()?;
    Ok(Some(Summary::of((house.pid(), house.url.clone()), &hello, batches, stat, load)))
}

/// Run the demo's service
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Teaparty {
    #[command(flatten)]
    args: dormouse_teaparty::Args,
}

impl Subcommand for Teaparty {
    fn run(&self, context: &mut Context) -> Outcome {
        serve_tea(&self.args, context)
    }
}

fn serve_tea(args: &dormouse_teaparty::Args, context: &mut Context) -> Outcome {
    let json = context.json;
    let mut told = Ok(());
    let summary = dormouse_teaparty::run(args, |url| {
        told = child::announce(url, json, context);
    })
    .map_err(|error| Failure::failed(format!("{error:#}")))?;
    told?;
    if json {
        context.document(&child::End { summary })?;
    } else {
        context.line(summary)?;
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_has_a_length_in_bounds() {
        assert_eq!(parse_length("10s"), Ok(Duration::from_secs(10)));
        assert!(parse_length("500ms").is_err());
        assert!(parse_length("2h").is_err());
        assert!(parse_length("soon").is_err());
    }
}

//! `dormouse experiment`: how much CPU time, latency or occurrences of an event the code behind a
//! key costs each request, found by switching the key on the live service.
//!
//! [`switch`] acquires the keys and switches them, [`plan`] draws when, [`metric`] reads what
//! requests used, [`pairs`] computes differences, and [`judge`] decides what they show. [`trial`]
//! runs all of that.

mod judge;
mod metric;
mod pairs;
mod plan;
mod report;
mod switch;
mod trial;

pub(super) use report::Document;

#[cfg(test)]
mod tests;

use std::io::Write as _;
use std::time::Duration;

use crate::args::help;
use crate::client::Client;
use crate::duration::{parse_hold, short_of};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, FAIR, is_drawable, say};
use crate::signals::Signals;
use crate::target::Target;
use crate::verb::Subcommand;
use judge::Verdict;
use metric::Metric;
use report::so_far;
use trial::{End, Trial};

/// Find out how much the code behind a key costs each request, on the live service
///
/// The keys are switched on and off at random times, and the use of requests is compared between
/// the two states, by group. The keys go off with the command, however it ends. CHANGE is how much
/// more a request uses with the keys on; it lies between AT LEAST and AT MOST. `~` means that no
/// change was found; the number in brackets is the size of a change that would have been found.
/// CHANGE is that of usual requests: a large cost of a few requests shows only in OFF and ON.
/// `(average)` is the average of the groups' changes, in which steadier groups count more: a small
/// cost of all requests shows there first, and so does a large cost of one group. With several keys
/// the cost is that of all together. A process can have one experiment at a time.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(help = help::TARGET)]
    target: Target,
    #[arg(help = help::GLOB)]
    glob: String,
    /// End after this time, or earlier if the answer is clear
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_hold, default_value = "60s")]
    length: Duration,
    /// The cost of a request: cpu-per-request, latency, or an event as `dormouse list` has them
    #[arg(long, value_name = "METRIC", default_value = "cpu-per-request")]
    metric: Metric,
}

impl Subcommand for Args {
    fn run(&self, context: &mut Context) -> Outcome {
        let Args { target, glob, .. } = self;
        let conversation = Client::open(target, context.patience)?;
        // From here on a signal ends the turn, not the process in the middle of a line.
        let signals = Signals::to_end_or_stop()?;
        let mut trial = Trial::prepare(conversation, signals, self.metric.clone(), glob)?;
        let is_drawn = !context.json && is_drawable(&std::io::stderr());
        if !context.json {
            say(format_args!(
                "switching {} on and off in {} for {}; Ctrl-C ends it",
                crate::text::list(&trial.switch.names, 4),
                trial.who(),
                short_of(self.length),
            ));
        }
        let end = trial.run(self.length, |trial| {
            if is_drawn {
                let (elapsed, length) = (short_of(trial.elapsed), short_of(self.length));
                let line = format!("{elapsed} of {length}, {} pairs: {}", trial.pairs.len(), so_far(trial));
                let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
            }
        });
        if is_drawn {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        let has_requests = !trial.judge.findings.is_empty();
        if has_requests || matches!(end, End::Asked) {
            if context.json {
                context.document(&Document::of(&trial, &end))?;
            } else {
                context.text(report::text(&trial, &end))?;
            }
        }
        if let End::Broken(failure) = end {
            if has_requests && !context.json {
                say(format_args!("{FAIR}it ended early:{FAIR:#} the figures are of the time until then"));
            }
            return Err(failure);
        }
        let is_judged = trial.judge.findings.iter().any(|finding| finding.verdict != Verdict::TooFew);
        if is_judged || matches!(end, End::Asked) {
            return Ok(Exit::Ok);
        }
        let enough = if has_requests { "enough requests" } else { "a request" };
        Err(Failure::failed(format!("no group of {} has ended {enough}", trial.who()))
            .hint("dormouse top TARGET shows requests by group; --for takes more time"))
    }
}

//! `dormouse top`: CPU time of a process by group and by thread.
//!
//! Every figure per second is the difference of two samples ([`crate::sample`]) over the time between them, never an
//! average since the start. A process without dormouse in it has threads and no groups. On a terminal it is a live
//! table ([`live`]); elsewhere text or JSON, one snapshot after the other.

mod draw;
pub(super) mod live;
pub(super) mod model;
pub(super) mod plain;
mod screen;

use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use crate::args::help;
use crate::duration::parse_positive;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, is_interactive};
use crate::sample::events::Wish;
use crate::sample::{Sample, Source};
use crate::signals::{Signals, wait};
use crate::target::Target;
use model::View;

/// The shortest interval: below it the agent would show up in its own figures.
const SHORTEST: Duration = Duration::from_millis(50);

/// Show where the CPU time of a process goes: groups and threads, live
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(help = help::TARGET)]
    target: Target,
    /// Print one snapshot and end
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Print so many snapshots and end
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<NonZero<u64>>,
    /// Time between two snapshots
    #[arg(short, long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print text, also on a terminal
    #[arg(long)]
    plain: bool,
    /// Events with a column of their own, as `dormouse list` has them
    #[arg(short, long = "event", value_name = "EVENTS", default_value = "task-clock")]
    events: Wish,
}

/// In which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Live,
    /// So many snapshots, or without end.
    Printed(Option<NonZero<u64>>),
}

impl Args {
    fn form(&self, json: bool, interactive: bool) -> Form {
        let count = if self.once { Some(NonZero::<u64>::MIN) } else { self.count };
        if json || self.plain || count.is_some() || !interactive { Form::Printed(count) } else { Form::Live }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    parse_positive(text).and_then(|length| {
        if length < SHORTEST { Err("it must be at least 50ms".into()) } else { Ok(length) }
    })
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    let form = args.form(context.json, is_interactive());
    let mut source = Source::open(&args.target, &args.events, context.patience)?;
    match form {
        Form::Live => live::run(source, args.interval, None),
        Form::Printed(count) => {
            let signals = Signals::to_end()?;
            source.warn();
            let events = source.columns();
            let mut before = next(&mut source)?;
            let mut due = Instant::now() + args.interval;
            let mut left = count.map_or(u64::MAX, NonZero::get);
            while left > 0 {
                if ended_before(due, &signals)? {
                    break;
                }
                let after = next(&mut source)?;
                let view = View::between(&before, &after, &events);
                if context.json {
                    context.document(&plain::Snapshot {
                        kind: "snapshot",
                        pid: source.pid(),
                        name: source.name(),
                        view: &view,
                    })?;
                } else {
                    context.text(plain::render(source.who(), &view))?;
                    if left > 1 {
                        context.line("")?;
                    }
                }
                context.flush()?;
                before = after;
                left -= 1;
                // A late snapshot does not bring the next one closer.
                due = (due + args.interval).max(Instant::now());
            }
            Ok(Exit::Ok)
        }
    }
}

/// The next sample; the end of the process is a failure here.
fn next(source: &mut Source) -> Outcome<Sample> {
    let sample = source.sample()?;
    sample.ok_or_else(|| Failure::new(Exit::Failed, format!("{} has ended", source.who())))
}

/// Waits until `due`; true when a signal came first.
pub(super) fn ended_before(due: Instant, signals: &Signals) -> Outcome<bool> {
    let [signalled] = wait([signals.as_fd()], Some(due))
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot wait: {error}")))?;
    Ok(signalled && signals.take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_printed_unless_a_person_watches() {
        let (target, events) = (Target::Pid(1), Wish::default());
        let args = Args { target, once: false, count: None, interval: SHORTEST, plain: false, events };
        assert_eq!(args.form(false, true), Form::Live);
        assert_eq!(args.form(false, false), Form::Printed(None));
        assert_eq!(args.form(true, true), Form::Printed(None));
        let once = Args { once: true, ..args };
        assert_eq!(once.form(false, true), Form::Printed(NonZero::new(1)));
    }

    #[test]
    fn an_interval_below_the_shortest_is_refused() {
        assert!(interval("49ms").is_err());
        assert_eq!(interval("50ms"), Ok(SHORTEST));
    }
}

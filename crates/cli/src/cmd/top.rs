//! `dormouse top`: CPU time of a process by group and by thread.
//!
//! Every figure per second is the difference of two samples ([`crate::sample`]) divided by the time
//! between them, never an average since the start; every total of CPU time is since the first
//! sample, when counting began. A process without dormouse in it has threads and no groups. On a
//! terminal it is a live table ([`crate::live`]); elsewhere text or JSON, one view after the other.

use std::num::NonZero;
use std::time::Duration;

use crate::args::help;
use crate::duration::parse_positive;
use crate::exit::{Exit, Outcome};
use crate::live;
use crate::output::{Context, is_interactive};
use crate::render::watch::Watch;
use crate::sample::events::Wish;
use crate::sample::source::Source;
use crate::signals::Signals;
use crate::target::Target;

/// The shortest interval: below it the agent would show up in its own figures.
const SHORTEST: Duration = Duration::from_millis(50);

/// Show where the CPU time of a process goes: groups and threads, live
///
/// CPU % and figures per second are of the last interval. CPU s and CPU/REQ are since `top` began;
/// (before) is what the process had used by then. REQ/s counts tasks of a group that ended, without
/// parts of other tasks. (unattributed) is CPU time in no group. In a narrow window the least
/// important columns are left out.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(help = help::TARGET)]
    target: Target,
    /// Print one snapshot and end
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Exit after this many snapshots
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
    /// Show where tasks spend their time, and latencies of requests (key w)
    #[arg(short, long)]
    waits: bool,
}

/// In which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Live,
    /// The given number of snapshots, or without end.
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
    // The live view catches them itself, before it has the terminal.
    let signals = matches!(form, Form::Printed(_)).then(Signals::to_end).transpose()?;
    let mut source = Source::open(&args.target, &args.events, context.patience)?;
    if args.waits {
        source.begin_waits()?;
    }
    let (Form::Printed(count), Some(signals)) = (form, signals) else {
        return live::run(source, args.interval, None, args.waits);
    };
    source.warn();
    let mut watch = Watch::start(source, args.interval, args.interval)?;
    let mut left = count.map_or(u64::MAX, NonZero::get);
    while left > 0 && !signals.came_before(watch.due)? {
        let view = watch.view()?;
        left -= 1;
        if context.json {
            context.document(&view.document(watch.source.pid, &watch.source.name))?;
        } else {
            context.text(view.text(&watch.source.who))?;
            if left > 0 {
                context.line("")?;
            }
        }
        context.flush()?;
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_printed_unless_a_person_watches() {
        let (target, events) = (Target::Pid(1), Wish::default());
        let args =
            Args { target, once: false, count: None, interval: SHORTEST, plain: false, events, waits: false };
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

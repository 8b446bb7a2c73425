//! `dormouse tasks --long-poll`: polls that last long, while they last.

use std::time::{Duration, Instant};

use dormouse_profile::NameFinder;
use dormouse_protocol::LongPollRow;

use super::choice::Choice;
use super::listing::long_poll::{LongPollDocument, report};
use crate::client::Client;
use crate::duration::short_of;
use crate::exit::{Exit, Outcome};
use crate::output::{Context, FAIR};
use crate::sample::tasks::Numbers;
use crate::target::{Proc, Target};
use crate::text::{clean, count};
use crate::waiting::reports;
use crate::waiting::stacks::names_of;

/// The time between two questions for reports.
const LOOK: Duration = Duration::from_millis(50);

/// The longest time between two readings of a service, but for one with very many threads.
const USUAL: Duration = Duration::from_millis(10);

pub(super) fn run(
    target: &Target,
    (threshold, length): (Duration, Option<Duration>),
    choice: &Choice,
    context: &mut Context,
) -> Outcome {
    let (mut client, _) = Client::open(target, context.patience)?;
    let signals = context.cancel()?;
    reports::begin(&mut client, threshold)?;
    let mut finder = NameFinder::of(client.pid).map_err(|why| {
        context.note(format_args!("{FAIR}functions have no names:{FAIR:#} {}", clean(&why.to_string())));
    });
    let mut numbers = Numbers::of(Proc::system(), client.pid);
    let end = length.map(|length| Instant::now() + length);
    let mut has_any = false;
    loop {
        let due = Instant::now() + LOOK;
        let is_over = signals.came_before(end.map_or(due, |end| end.min(due)))?
            || end.is_some_and(|end| Instant::now() >= end);
        let (reports, lost, between) = reports::take(&mut client)?;
        for row in reports.into_iter().filter(|row| choice.has_group(&row.group)) {
            has_any = true;
            let row = outside(row, &mut numbers);
            let frames = names_of(finder.as_mut().ok(), &row.stack);
            if context.json {
                context.document(&LongPollDocument::new(&row, &frames))?;
            } else {
                context.text(report(&row, &frames))?;
            }
        }
        context.flush()?;
        if is_over {
            if between > USUAL {
                let between = short_of(between);
                context.note(format_args!(
                    "{FAIR}looked only every {between}:{FAIR:#} very many threads are in tasks"
                ));
            }
            if lost > 0 {
                let lost = count(lost, "report");
                context.note(format_args!("{FAIR}{lost} lost:{FAIR:#} too many came at once"));
            }
            return Ok(if has_any { Exit::Ok } else { Exit::Failed });
        }
    }
}

/// With the thread's number as it is here.
fn outside(row: LongPollRow, numbers: &mut Option<Numbers>) -> LongPollRow {
    let tid = numbers.as_mut().and_then(|numbers| numbers.outer(row.tid)).unwrap_or(row.tid);
    LongPollRow { tid, ..row }
}

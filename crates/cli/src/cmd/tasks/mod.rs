//! `dormouse tasks`: what each task of a process does, since when, and where it waits.
//!
//! The service takes times of its tasks as long as this command is connected, unless it does so
//! anyway. It reads its tasks while they run, a few thousand at a time: each is listed in its state
//! at one moment, which differs from task to task.

mod choice;
mod leaks;
mod listing;
mod long_polls;

pub(super) use leaks::document::LeaksDocument;
#[cfg(feature = "serve")]
pub(super) use leaks::encoded::encoded as encoded_leaks;
pub(super) use listing::document::TasksDocument;
pub(super) use listing::long_poll::LongPollDocument;
pub(super) use listing::tree::TreeDocument;

use std::collections::BTreeSet;
use std::io;
use std::mem::take;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use dormouse_protocol::WireTaskState;
use serde::Deserialize;

use crate::args::help;
use crate::client::Client;
use crate::client::session::Subject;
use crate::client::waits::await_times;
use crate::duration::parse;
use crate::exit::{Exit, Outcome};
use crate::length::Length;
use crate::output::{Context, DIM};
use crate::target::Target;
use crate::text::{count, read_by_text};
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;
use crate::waiting::list::{self, Taken, TaskList};
use crate::waiting::place::PlaceNames;

use choice::{Choice, Sort};
use listing::cancelled::{CancelledListing, stacks};
use listing::tree;
use listing::{Listing, text};

/// The time for which times and places are taken before a list.
const LENGTH: Duration = Duration::from_secs(1);
/// The reason why tasks have no place; with the remedy, where there is one.
const BEFORE: &str = "took a waker before places were noted";
const BEFORE_WAKE: &str =
    "took a waker before places were noted: --wake polls each once more, and notes where it waits";

/// List the tasks of a process: what each does, since when, and where it waits
///
/// A task is in a poll, runnable (woken, and not polled yet) or awaiting. FOR is the time in this
/// state, BUSY the time in polls so far. A task is listed if it has begun or been polled since
/// times are taken: since this command has connected, or since the start of a service with
/// `DORMOUSE_WAITS=1`. If it began before that, only a lower bound of its age is known (>). The
/// other tasks are counted by group. A task that has only yielded counts as runnable, if the names
/// of its place show that. Below the tasks stand the requests that were cancelled lately: where
/// they waited, and what dropped them. Exits with code 1 if no task is listed.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
#[serde(default)]
pub(crate) struct Request {
    /// Wait for this long before the list [default: until times and places were taken for 1s];
    /// Ctrl-C ends it early. With --long-poll: end after this time
    #[arg(long = "for", value_name = "DURATION")]
    #[serde(rename = "for")]
    length: Option<Pause>,
    /// Only tasks of groups that match, such as 'GET /*,!GET /health'
    #[arg(long, value_name = "GLOB")]
    group: Option<String>,
    /// Only tasks in these states: awaiting, runnable, polled
    #[arg(long, value_name = "STATES", value_delimiter = ',', hide_possible_values = true)]
    state: Vec<StateArg>,
    /// Only tasks of at least this age, or of unknown age
    #[arg(long, value_name = "DURATION")]
    older: Option<Length>,
    /// Only tasks that have been in their state for this long or longer
    #[arg(long, value_name = "DURATION")]
    waiting: Option<Length>,
    /// Order, with the first ones shown: the longest in their state (for), the oldest (age), those
    /// with most polls, wakes, time in polls (busy) or CPU time (cpu, with --cpu), or by group
    /// [default: for]
    #[arg(long, value_name = "BY", hide_possible_values = true)]
    sort: Option<Sort>,
    /// List at most this many tasks
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<usize>,
    /// Wake each task whose wait began before places were taken, once: it is polled once more, as
    /// any runtime may do, and then its place is known
    #[arg(long)]
    #[serde(skip)]
    wake: bool,
    /// Also show the CPU time of each task since the command began: CPU. Measuring it costs two
    /// reads of the thread's clock for each poll
    #[arg(long)]
    cpu: bool,
    /// Show how many tasks wait at which place instead, by group
    #[arg(long)]
    tree: bool,
    /// List tasks that leak instead: those that nothing can wake any more, which is proved; and,
    /// suspected, the lines that spawn tasks whose number keeps growing. Takes 10s, unless times
    /// have been taken for that long, or --for another time
    #[arg(long)]
    leaks: bool,
    /// Report polls that last this long or longer, in place of the list, with the stack of their
    /// thread, until Ctrl-C: one report when a poll has lasted this long, one each time that its
    /// length has doubled, and one when it has ended
    #[arg(long, value_name = "DURATION")]
    long_poll: Option<Length>,
}

/// A duration, which may be nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pause(Duration);

impl FromStr for Pause {
    type Err = String;

    fn from_str(text: &str) -> Result<Pause, String> {
        parse(text).map(Pause)
    }
}

read_by_text!(Pause);

/// A state, as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StateArg {
    Awaiting,
    Runnable,
    Polled,
}

impl From<StateArg> for WireTaskState {
    fn from(of: StateArg) -> Self {
        match of {
            StateArg::Awaiting => Self::Awaiting,
            StateArg::Runnable => Self::Runnable,
            StateArg::Polled => Self::Polled,
        }
    }
}

impl Asked for Request {
    const NAME: &'static str = "tasks";
    const TARGET: &'static str = help::TARGET_OR_FILE;
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn is_stream(&self) -> bool {
        self.long_poll.is_some()
    }

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let choice = Choice::new(self)?;
        match self.long_poll {
            Some(Length(threshold)) => {
                let length = self.length.map(|Pause(length)| length);
                long_polls::run(&subject.target, (threshold, length), &choice, context)
            }
            None if self.leaks => {
                leaks::run(self.length.map(|Pause(length)| length), &choice, &subject.target, context)
            }
            None => list(self, &choice, &subject.target, context),
        }
    }
}

fn list(request: &Request, choice: &Choice, target: &Target, context: &mut Context) -> Outcome {
    let (mut client, hello) = Client::open(target, context.patience)?;
    // Before times begin: from then on there is a list, also for a signal.
    let signals = context.cancel()?;
    let has_places = list::begin(&mut client, &hello, request.cpu)?;
    if request.wake {
        let woken = list::wake(&mut client)?;
        context.note(format_args!("{DIM}{} woken{DIM:#}", count(woken, "task")));
    }
    let length = wait_length(request, &mut client)?;
    await_times(&mut client, length, &signals)?;
    let taken = list::taken(&mut client)?;
    let begun = Instant::now();
    let mut list = list::list(&mut client)?;
    let took = begun.elapsed();
    let names = names(&mut client, &list, context)?;
    names.find_yields(&mut list);
    names.leave_out_sets(&mut list);
    let cancelled = take(&mut list.cancelled);
    let mut listing = Listing::new((client.pid, client.who.clone()), taken, took, &list);
    let group = |group: u32| listing.groups.get(&group).copied().filter(|name| choice.has_group(name));
    listing.cancelled = CancelledListing::new(cancelled, &names, group);
    listing.places = names;
    listing.unplaced = match (has_places, request.wake || client.file().is_some()) {
        (false, _) => "wait at unknown places: the service has no memory for places, or an older dormouse",
        (true, false) => BEFORE_WAKE,
        (true, true) => BEFORE,
    };
    listing.is_cut = client.file().is_some_and(|file| file.is_without("more tasks"));
    choice.arrange(&mut listing);
    match (request.tree, context.json) {
        (false, false) => context.text(text::report(&listing, width()))?,
        (false, true) => context.document(&TasksDocument::new(&listing))?,
        (true, false) => context.text(tree::report(&listing, width()))?,
        (true, true) => context.document(&TreeDocument::new(&listing))?,
    }
    Ok(if listing.tasks.is_empty() { Exit::Failed } else { Exit::Ok })
}

/// How long to wait before the list.
fn wait_length(request: &Request, client: &mut Client) -> Outcome<Duration> {
    // A file's times have been taken.
    if client.file().is_some() {
        return Ok(Duration::ZERO);
    }
    let known_ns = match request.length {
        Some(Pause(length)) => return Ok(length),
        // Those that were woken are to be polled first, and CPU time is taken from now on.
        None if request.wake || request.cpu => 0,
        None => {
            let Taken { times_ns, places_ns } = list::taken(client)?;
            times_ns.min(places_ns.unwrap_or(0))
        }
    };
    Ok(LENGTH.saturating_sub(Duration::from_nanos(known_ns)))
}

/// The functions of all places at which tasks of the list wait, or cancelled ones waited, and of
/// the stacks that dropped these.
fn names(client: &mut Client, list: &TaskList, context: &Context) -> Outcome<PlaceNames> {
    let places = list.tasks.iter().flat_map(|task| &task.places).copied();
    let wanted: BTreeSet<u32> = places.chain(stacks(&list.cancelled)).collect();
    PlaceNames::of(client, &wanted, context)
}

/// The width of the terminal, if there is one.
fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verb::Line;
    use crate::waiting::tests::{list, task};
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Tasks {
        #[command(flatten)]
        line: Line<Request>,
    }

    fn request(line: &str) -> Result<Request, clap::Error> {
        Tasks::try_parse_from(line.split(' ')).map(|tasks| tasks.line.request)
    }

    /// The numbers of the tasks that a line shows, and how many more there are.
    fn shown(line: &str) -> (Vec<u64>, usize) {
        let mut old = task(1, 1, WireTaskState::Awaiting, 5_000_000_000);
        (old.age_ns, old.polls) = (None, 1);
        let mut busy = task(2, 1, WireTaskState::Runnable, 2_000_000_000);
        (busy.poll_ns, busy.wakes, busy.polls) = (9_000, 7, 2);
        let mut polled = task(3, 2, WireTaskState::Polled, 7_000_000_000);
        (polled.age_ns, polled.cpu_ns) = (Some(8_000_000_000), Some(1));
        let list = list(vec![old, busy, polled]);
        let choice = Choice::new(&request(line).unwrap()).unwrap();
        let taken = Taken { times_ns: 1, places_ns: Some(1) };
        let mut listing = Listing::new((7, "tea".into()), taken, Duration::ZERO, &list);
        choice.arrange(&mut listing);
        (listing.tasks.iter().map(|task| task.task).collect(), listing.more)
    }

    #[test]
    fn filters_and_order_are_as_asked() {
        for (line, right) in [
            ("tasks tea", &[3, 1, 2][..]),
            ("tasks tea --sort age", &[1, 3, 2]),
            ("tasks tea --sort polls", &[3, 2, 1]),
            ("tasks tea --sort wakes", &[2, 3, 1]),
            ("tasks tea --sort busy", &[2, 3, 1]),
            ("tasks tea --cpu --sort cpu", &[3, 1, 2]),
            ("tasks tea --sort group", &[3, 1, 2]),
            ("tasks tea --state awaiting", &[1]),
            ("tasks tea --state polled,runnable", &[3, 2]),
            ("tasks tea --older 5s", &[3, 1]),
            ("tasks tea --older 5s --waiting 6s", &[3]),
            ("tasks tea --group *tea", &[1, 2]),
            ("tasks tea --group !*tea", &[3]),
            ("tasks tea --waiting 1h", &[]),
        ] {
            assert_eq!(shown(line), (right.to_vec(), 0), "{line}");
        }
        assert_eq!(shown("tasks tea --limit 1"), (vec![3], 2));
        assert_eq!(shown("tasks tea -n 1 --state awaiting"), (vec![1], 0));
    }

    #[test]
    fn wrong_lines_are_refused() {
        for wrong in [
            "",
            "tea --state gone",
            "tea --sort name",
            "tea --older 0s",
            "tea --for 5",
            "tea --long-poll 0s",
            "tea --long-poll 5",
        ] {
            assert!(request(&format!("tasks {wrong}")).is_err(), "{wrong}");
        }
        for wrong in [
            "--tree -n 1",
            "--tree --sort for",
            "--group a{",
            "--sort cpu",
            "--long-poll 5ms --tree",
            "--long-poll 5ms --older 1s",
            "--long-poll 5ms --wake",
            "--long-poll 5ms --leaks",
            "--leaks --tree",
            "--leaks --limit 3",
        ] {
            assert!(Choice::new(&request(&format!("tasks tea {wrong}")).unwrap()).is_err(), "{wrong}");
        }
        assert_eq!(request("tasks tea --for 0s").unwrap().length, Some(Pause(Duration::ZERO)));
    }
}

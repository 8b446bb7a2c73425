//! `dormouse watch`: which code writes a variable, by debug registers and without stopping any
//! thread.
//!
//! A service with an agent watches itself: the watch belongs to the connection and ends with it, so
//! it does not matter whether this command ends by Ctrl-C, by its own limits or by SIGKILL. Any
//! other process is watched from outside, with the same report.

mod hits;
mod outside;
mod places;
mod snapshot;
mod source;
mod wanted;

use std::num::NonZero;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use dormouse_maps::AddressSpace;
use dormouse_protocol::{WatchRequest, WireAccess, WireState};

use dormouse_sys::clock::monotonic_ns;
use serde::{Deserialize, Serialize};

use crate::client::session::Subject;
use crate::exit::{Exit, Failure, Outcome};
use crate::length::Length;
use crate::live::page;
use crate::output::{Context, FAIR, is_interactive};
use crate::signals::Signals;
use crate::target::Target;
use crate::text::{clean, read_by_text};
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;
use hits::{HitDocument, ReportDocument};
use places::Places;
use snapshot::WatchSnapshot;
use source::Watched;
use wanted::Wanted;

/// Time between two snapshots: soon enough that the queue of single hits has room, and the end by
/// --max is not long in coming.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two pages of the live view.
const PAGE: Duration = Duration::from_millis(500);

/// Show who writes a variable of a process: function, line, group, thread, old and new value
///
/// No thread is stopped: a debug register of each thread traps the access, which costs the thread
/// some ten microseconds. A process with dormouse watches itself; any other is watched from
/// outside, for which the command needs root or `CAP_PERFMON`. NAME is a static as in the source,
/// `NAME+offset`, or `NAME.field`; with `-a x` a function. The lines below the table show what
/// share of the accesses was seen. Exits with code 1 if there was no hit.
#[derive(Debug, clap::Args, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Request {
    /// Watch writes (w), reads and writes (rw), or the execution of the instruction there (x)
    #[arg(short, long, value_name = "ACCESS", default_value = "w")]
    #[serde(default)]
    access: Access,
    /// Show only hits that change the value
    #[arg(long)]
    #[serde(default)]
    changed: bool,
    /// Show only hits that leave this value, in decimal (-1, too) or as 0x2a
    #[arg(long, value_name = "VALUE", allow_negative_numbers = true)]
    equals: Option<Bits>,
    /// Look only at these bits of the value
    #[arg(long, value_name = "MASK")]
    mask: Option<Bits>,
    /// Show only hits of this group
    #[arg(long)]
    group: Option<String>,
    /// Exit after this many hits
    #[arg(long, value_name = "N")]
    max: Option<NonZero<u64>>,
    /// End after this time
    #[arg(long = "for", value_name = "DURATION")]
    #[serde(rename = "for")]
    length: Option<Length>,
    /// Rest for a while when there are more hits per second than this
    #[arg(long, value_name = "N")]
    rate: Option<NonZero<u32>>,
    /// Take turns with other watches if the registers are taken
    #[arg(long)]
    #[serde(default)]
    flexible: bool,
    /// Print each hit
    #[arg(long)]
    #[serde(skip, default = "always")]
    stream: bool,
    /// Show the calls that led to each place; from outside by copies of the stack, which need no
    /// frame pointers
    #[arg(long)]
    #[serde(skip)]
    stacks: bool,
    /// Print text even on a terminal
    #[arg(long)]
    #[serde(skip)]
    plain: bool,
    /// A variable, or an address such as 0x7f00c0a01230; with :LEN, that many bytes of it
    #[arg(value_name = "NAME|ADDR[:LEN]")]
    #[serde(rename = "what")]
    wanted: Wanted,
}

/// A client elsewhere is told of each hit.
fn always() -> bool {
    true
}

/// A kind of access, as people write it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Access {
    #[default]
    W,
    Rw,
    X,
}

impl From<Access> for WireAccess {
    fn from(of: Access) -> WireAccess {
        match of {
            Access::W => WireAccess::Write,
            Access::Rw => WireAccess::ReadWrite,
            Access::X => WireAccess::Execute,
        }
    }
}

/// A value in decimal, which may be negative, or in hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bits(u64);

impl FromStr for Bits {
    type Err = String;

    fn from_str(text: &str) -> Result<Bits, String> {
        let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let parsed = match hex {
            Some(hex) => u64::from_str_radix(hex, 16),
            // The bits that a negative number has in as many bytes as the variable.
            None if text.starts_with('-') => text.parse().map(i64::cast_unsigned),
            None => text.parse(),
        };
        parsed.map(Bits).map_err(|error| format!("{error}: write 42 or 0x2a"))
    }
}

read_by_text!(Bits);

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(super) enum Document<'a> {
    Start {
        pid: u32,
        name: &'a str,
        addr: String,
        length_bytes: u64,
        access: WireAccess,
        /// Why it is watched from outside; null: it watches itself.
        outside: Option<&'a str>,
    },
    Hit(HitDocument),
    Report(ReportDocument),
}

impl Request {
    fn to_request(&self) -> WatchRequest {
        WatchRequest {
            access: self.access.into(),
            changed: self.changed,
            equals: self.equals.map(|Bits(value)| value),
            mask: self.mask.map(|Bits(mask)| mask),
            group: self.group.clone(),
            max_hits: self.max.map(NonZero::get),
            rate_per_s: self.rate.map(NonZero::get),
            flexible: self.flexible,
            stream: self.stream,
            ..WatchRequest::default()
        }
    }
}

/// A watch, and the names of those who hit it. It stays on one thread, as the reader of symbols
/// does.
struct Watcher {
    watched: Watched,
    places: Places,
    stacks: bool,
    last: Option<WatchSnapshot>,
}

impl Watcher {
    fn new(watched: Watched, stacks: bool) -> Watcher {
        let places = Places::of(&watched.process, watched.access, watched.outside.is_some());
        Watcher { watched, places, stacks, last: None }
    }

    /// Looks at the watch; false: it has ended, or its process has.
    fn snapshot(&mut self) -> Outcome<bool> {
        let Some(mut snapshot) = self.watched.snapshot()? else {
            let end = self.watched.end();
            self.last.iter_mut().for_each(|last| last.end = Some(end));
            return Ok(false);
        };
        self.places.unwind(&mut snapshot);
        self.places.learn(&snapshot);
        let goes_on = snapshot.end.is_none() && snapshot.row.state != WireState::Over;
        self.last = Some(snapshot);
        Ok(goes_on)
    }

    fn text(&mut self) -> String {
        let Watcher { places, last, stacks, .. } = self;
        last.as_ref()
            .map(|snapshot| hits::report(snapshot, places, *stacks, monotonic_ns()))
            .unwrap_or_default()
    }

    /// Prints single hits as they come until the watch ends, `end` comes or a signal.
    fn follow(&mut self, end: Option<Instant>, signals: &Signals, context: &mut Context) -> Outcome<()> {
        let (begun, mut printed, mut is_over) = (monotonic_ns(), 0, false);
        loop {
            let goes_on = self.snapshot()?;
            let Watcher { last: Some(last), places, stacks, .. } = self else { return Ok(()) };
            let hits = std::mem::take(&mut last.row.stream);
            for hit in &hits {
                if context.json {
                    context.document(&Document::Hit(HitDocument::new(hit, places)))?;
                } else {
                    context.line(hits::hit(hit, places, *stacks, begun))?;
                }
            }
            context.flush()?;
            printed += hits.len() as u64;
            last.unprinted = last.row.passed.saturating_sub(printed);
            if is_over || !goes_on && hits.is_empty() {
                return Ok(());
            }
            // After hits there may be more.
            let due = Instant::now() + if hits.is_empty() { LOOK } else { Duration::ZERO };
            let due = end.map_or(due, |end| end.min(due));
            is_over = signals.came_before(due)? || end.is_some_and(|end| Instant::now() >= end);
        }
    }
}

impl page::Writer for Watcher {
    fn page(&mut self) -> Outcome<Option<String>> {
        let goes_on = self.snapshot()?;
        let text = self.text();
        Ok(goes_on.then_some(text))
    }
}

impl Asked for Request {
    const NAME: &'static str = "watch";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::changing::<Self>());

    fn is_stream(&self) -> bool {
        true
    }

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        run(self, &subject.target, context)
    }
}

fn run(args: &Request, target: &Target, context: &mut Context) -> Outcome {
    let is_live = is_interactive() && !context.json && !args.stream && !args.plain;
    let signals = if is_live { Signals::to_leave() } else { context.cancel() }?;
    let watched = Watched::open(target, &args.wanted, args.to_request(), args.stacks, context.patience)?;
    let end = args.length.map(|Length(length)| Instant::now() + length);
    let (who, stacks) = (watched.who.clone(), args.stacks);
    let last = if is_live {
        announce(&watched, context)?;
        let begin = move || Watcher::new(watched, stacks);
        let finish = |mut watcher: Watcher| watcher.snapshot().map(|_| (watcher.text(), watcher.last));
        let title = format!("{} of {who}", args.wanted);
        let finished = page::run(title, begin, finish, (PAGE, end, context.patience), &signals)?;
        let late = || Failure::failed(format!("{who} has given no last report"));
        let (text, last) = finished.ok_or_else(late)??;
        context.text(text)?;
        last
    } else {
        // First: a process may end as soon as it is known to be watched, and its mappings with it.
        let mut watcher = Watcher::new(watched, stacks);
        announce(&watcher.watched, context)?;
        watcher.follow(end, &signals, context)?;
        if let Some(last) = watcher.last.as_mut().filter(|_| !args.stream) {
            last.unprinted = 0;
        }
        let text = watcher.text();
        let Watcher { last, places, .. } = &mut watcher;
        match last {
            Some(snapshot) if context.json => {
                context.document(&Document::Report(ReportDocument::new(snapshot, places)))?;
            }
            _ => context.text(text)?,
        }
        watcher.last
    };
    let Some(last) = last else {
        return Err(Failure::failed(format!("{who} has ended before the first look at the watch")));
    };
    Ok(if last.is_hit() { Exit::Ok } else { Exit::Failed })
}

fn announce(watched: &Watched, context: &mut Context) -> Outcome<()> {
    let Watched { process, variable, access, outside, .. } = watched;
    let is_mapped = AddressSpace::of(process.pid).and_then(|space| space.resolve_now(variable.addr));
    if let Ok(None) = is_mapped {
        context.note(format_args!("{FAIR}nothing is mapped at {:#x} now{FAIR:#}", variable.addr));
    }
    if context.json {
        context.document(&Document::Start {
            pid: process.pid,
            name: &variable.name,
            addr: format!("{:#x}", variable.addr),
            length_bytes: variable.len,
            access: *access,
            outside: outside.as_deref(),
        })?;
        return context.flush();
    }
    if let Some(why) = outside {
        context.note(format_args!("{FAIR}watched from outside:{FAIR:#} {}", clean(why)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Watch {
        #[command(flatten)]
        line: crate::verb::Line<Request>,
    }

    fn request(line: &str) -> Result<WatchRequest, clap::Error> {
        Watch::try_parse_from(line.split(' ')).map(|watch| watch.line.request.to_request())
    }

    #[test]
    fn flags_become_a_request() {
        let all = "watch tea ORDERS -a rw --changed --equals 0x2a --mask 255 --group g --max 3 --rate 9 \
                   --flexible --stream";
        let right = WatchRequest {
            access: WireAccess::ReadWrite,
            changed: true,
            equals: Some(42),
            mask: Some(255),
            group: Some("g".into()),
            max_hits: Some(3),
            rate_per_s: Some(9),
            flexible: true,
            stream: true,
            ..WatchRequest::default()
        };
        assert_eq!(request(all).unwrap(), right);
        assert_eq!(request("watch tea ORDERS").unwrap(), WatchRequest::default());
        assert_eq!(request("watch tea ORDERS --equals -1").unwrap().equals, Some(u64::MAX));
        for wrong in ["-a r", "--max 0", "--rate 0", "--equals x", "--mask -1", "--for 0s"] {
            assert!(request(&format!("watch tea ORDERS {wrong}")).is_err(), "{wrong}");
        }
    }
}

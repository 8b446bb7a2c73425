//! `dormouse profile`: which functions use the CPU, allocate, or fault, by group.
//!
//! The service samples itself and reports addresses; their names are resolved here. The profile
//! belongs to the connection and ends with it, so it does not matter how this command ends.

mod change;
mod document;
mod file;
mod take;

pub(super) use change::DiffDocument;
pub(super) use document::ProfileDocument;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use dormouse_profile::encode::{self, HtmlOptions};
use dormouse_profile::{Diff, Profile, ProfileKind, Symbols, Tasks, decode};
use dormouse_protocol::ProfileRequest;
use serde::Deserialize;

use crate::args::help;
use crate::child::code_of;
use crate::client::session::Subject;
use crate::exit::{Exit, Failure, Outcome};
use crate::length::Length;
use crate::new_file::NewFile;
use crate::output::{Context, FAIR};
use crate::render::profile::text;
use crate::target::Target;
use crate::text::{clean, count, read_by_text};
#[cfg(feature = "serve")]
use crate::verb::Offer;
use crate::verb::{Asked, Subcommand};

use document::Circumstances;
use file::{Form, Place};
use take::{Taken, of_command, of_target};

/// How long a process is profiled that was not started for it.
const LENGTH: Duration = Duration::from_secs(10);
/// The functions of a group that a table has.
const FUNCTIONS: usize = 10;

/// Show which functions use the CPU, allocate or fault, by group: a table, or a file
///
/// A process with dormouse samples itself: no thread is stopped, no privilege is needed. Any other
/// is sampled from outside, by thread instead of group, where the kernel allows it; --by task shows
/// the handlers and tasks of any program in Rust. SELF is a function's own use, TOTAL includes the
/// functions that it called; both are shares of its group, whose use is counted, not estimated. The
/// lines below the table list what the profile has not seen. Ctrl-C ends it early and shows the
/// result so far. Exits with code 1 if there was nothing to sample.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("subject").required(true)))]
pub(crate) struct Args {
    #[arg(help = help::TARGET_OR_FILE, group = "subject")]
    target: Option<Target>,
    #[command(flatten)]
    request: Request,
    /// Write to this file, in the form that its extension selects: .pb.gz (pprof), .html (flame
    /// graph), .folded, .json.gz (Firefox Profiler)
    #[arg(short, long, value_name = "FILE")]
    output: Option<Place>,
    /// Compare with this earlier profile, a pprof file: show what grew and what shrank
    #[arg(long, value_name = "OLD")]
    diff: Option<PathBuf>,
    /// Run this command and profile it to its end; its exit code is passed through
    #[arg(last = true, value_name = "COMMAND", group = "subject")]
    command: Vec<OsString>,
}

/// The kind of profile, and its length.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    /// How long; without it 10s, or until the command ends
    #[arg(long = "for", value_name = "DURATION")]
    #[serde(rename = "for")]
    length: Option<Length>,
    /// Samples per second of CPU time of each thread [default: 99]
    #[arg(long, value_name = "N")]
    hz: Option<Hertz>,
    /// Only groups that match, such as 'GET /*,!GET /health'
    #[arg(long, value_name = "GLOB")]
    group: Option<String>,
    /// CPU time (cpu), allocated bytes (alloc), page faults (faults), or the wall time of tasks:
    /// running, runnable, and awaiting at a place (wall)
    #[arg(long, value_name = "KIND", default_value = "cpu", value_parser = kinds())]
    kind: ProfileKind,
    /// By group, or by task: the handler, task, job or thread that the functions of a stack name,
    /// in any program in Rust
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    by: By,
    /// Show allocations that are still live, of those made meanwhile (with --kind alloc)
    #[arg(long)]
    live: bool,
    /// Have a service with an earlier version find callers in code without frame pointers, too;
    /// this version always does
    #[arg(long)]
    unwind: bool,
    /// Functions of each group in the table [default: 10, in JSON all]
    #[arg(short = 'n', long, value_name = "N")]
    top: Option<usize>,
}

/// The parts of a profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
enum By {
    /// Groups; in a process without dormouse threads.
    #[default]
    Group,
    Task,
}

/// Samples a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hertz(u32);

impl FromStr for Hertz {
    type Err = String;

    fn from_str(text: &str) -> Result<Hertz, String> {
        let hz = text.parse().ok().filter(|hz| ProfileRequest::HZ.contains(hz));
        hz.map(Hertz).ok_or_else(|| "it must be a whole number from 1 to 1000".to_owned())
    }
}

read_by_text!(Hertz);

fn kinds() -> impl TypedValueParser<Value = ProfileKind> {
    PossibleValuesParser::new(ProfileKind::NAMES).try_map(|kind| kind.parse::<ProfileKind>())
}

impl Request {
    fn to_request(&self, timeline: bool) -> ProfileRequest {
        let Request { hz, ref group, kind, live, unwind, .. } = *self;
        let (hz, group) = (hz.map(|Hertz(hz)| hz), group.clone());
        ProfileRequest { kind, hz, live, unwind, timeline, group, ..ProfileRequest::default() }
    }

    /// Refuses a request with impossible options.
    fn check(&self) -> Outcome<()> {
        let is_timed = matches!(self.kind, ProfileKind::Cpu | ProfileKind::Wall);
        if self.hz.is_some() && !is_timed {
            return usage("--hz is for --kind cpu and wall: others are not sampled by time");
        }
        if self.live && self.kind != ProfileKind::Alloc {
            return usage("--live is for --kind alloc: nothing else is given back");
        }
        Ok(())
    }

    /// Tells which options have no effect.
    fn note_options(&self, context: &Context) {
        if self.unwind {
            let why = "callers in code without frame pointers are always found";
            context.note(format_args!("{FAIR}--unwind has no effect:{FAIR:#} {why}"));
        }
    }

    /// The tasks of a profile, if it is wanted by task.
    fn tasks(&self, profile: &Profile, symbols: &Symbols) -> Option<Tasks> {
        (self.by == By::Task).then(|| Tasks::of(profile, symbols))
    }
}

fn usage(message: &str) -> Outcome<()> {
    Err(Failure::new(Exit::Usage, message))
}

impl Args {
    fn form(&self) -> Option<Form> {
        self.output.as_ref().map(|place| place.form)
    }

    fn to_request(&self) -> ProfileRequest {
        self.request.to_request(matches!(self.form(), Some(Form::Firefox | Form::FirefoxPlain)))
    }

    /// Refuses a command line with impossible options.
    fn check(&self) -> Outcome<()> {
        self.request.check()?;
        if self.diff.is_some() && !matches!(self.form(), None | Some(Form::Html | Form::Folded)) {
            return usage("--diff goes to .html or .folded: the other forms have no room for two profiles");
        }
        Ok(())
    }
}

impl Asked for Request {
    const NAME: &'static str = "profile";
    const TARGET: &'static str = help::TARGET_OR_FILE;
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        self.check()?;
        self.note_options(context);
        let signals = context.cancel()?;
        let length = self.length.map_or(LENGTH, |Length(length)| length);
        let taken = of_target(&subject.target, (&self.to_request(false), length), &signals, context)?;
        show(taken, (self, None, None), context)
    }
}

impl Subcommand for Args {
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Request::OFFER;

    fn run(&self, context: &mut Context) -> Outcome {
        // Before anything is sampled or run: an unreadable or unwritable file costs no time.
        self.check()?;
        self.request.note_options(context);
        let Args { target, request, output, diff, command } = self;
        let old = diff.as_deref().map(|path| earlier(path, request.kind)).transpose()?;
        // A command has its own way with signals.
        let signals = target.as_ref().map(|_| context.cancel()).transpose()?;
        let file = output.as_ref().map(Place::create).transpose()?;
        let length = request.length.map(|Length(length)| length);
        let taken = match target.as_ref().zip(signals) {
            Some((target, signals)) => {
                of_target(target, (&self.to_request(), length.unwrap_or(LENGTH)), &signals, context)?
            }
            None => of_command(command, &self.to_request(), length, context)?,
        };
        show(taken, (request, output.as_ref().zip(file), old), context)
    }
}

/// Takes a profile until its time is over or the client leaves, and writes it in some form.
#[cfg(feature = "serve")]
pub(crate) fn encoded(
    subject: &Subject,
    request: (&ProfileRequest, Duration),
    encode: fn(&Profile, &Symbols) -> Vec<u8>,
    context: &mut Context,
) -> Outcome {
    let Taken { mut profiled, failure, .. } =
        of_target(&subject.target, request, &context.cancel()?, context)?;
    let who = profiled.who.clone();
    let Some((profile, symbols)) = profiled.named() else {
        return Err(failure.unwrap_or_else(|| unread(&who)));
    };
    context.bytes(&encode(profile, &symbols)).map(|()| Exit::Ok)
}

/// A profile to show, what was asked for, the file that it goes to, and the profile from before.
type Shown<'a> = (&'a Request, Option<(&'a Place, NewFile)>, Option<(Profile, Symbols)>);

fn show(taken: Taken, (request, file, old): Shown<'_>, context: &mut Context) -> Outcome {
    let Taken { mut profiled, ended, failure, status } = taken;
    if let Some(ended) = &ended {
        context.note(format_args!("{FAIR}{ended}:{FAIR:#} its last moments are not in the profile"));
    }
    if let Some(why) = &profiled.unnamed {
        context.note(format_args!("{FAIR}functions have no names:{FAIR:#} {}", clean(why)));
    }
    let (who, unnamed) = (profiled.who.clone(), profiled.unnamed.clone());
    let Some((profile, symbols)) = profiled.named() else {
        return Err(failure.unwrap_or_else(|| unread(&who)));
    };
    // An agent of an earlier version does not return it.
    profile.live |= request.live;
    let tasks = request.tasks(profile, &symbols);
    profile.coverage.notes.extend(tasks.iter().flat_map(Tasks::notes));
    let by_task = tasks.as_ref().map(|tasks| tasks.regroup(profile));
    let parts = by_task.as_ref().unwrap_or(profile);
    let old = old.map(|(old, mut names)| {
        // The file does not contain which code is the program's own, by which tasks are named.
        names.set_own(symbols.own().clone());
        match request.tasks(&old, &names) {
            Some(tasks) => (tasks.regroup(&old), names),
            None => (old, names),
        }
    });
    let (new, old) = ((parts, &symbols), old.as_ref().map(|(old, names)| (old, names)));
    let diff = old.map(|old| between(old, new)).transpose()?;
    let place = file.as_ref().map(|(place, _)| *place);
    if let Some((place, file)) = file {
        let content = match (place.form, &tasks) {
            (Form::Pprof, Some(tasks)) => encode::pprof_with_tasks(profile, &symbols, tasks),
            (form, _) => content(form, new, old, diff.as_ref()),
        };
        file.finish(|file| file.write_all(&content))?;
    }
    let circumstances = Circumstances {
        by: tasks.as_ref().map(|_| "task"),
        unnamed_because: unnamed.as_deref(),
        ended_because: ended.as_deref(),
        file: place.map(ToString::to_string),
    };
    let (column, top) = (parts.main_column(), request.top);
    let most = top.unwrap_or(if context.json { usize::MAX } else { FUNCTIONS });
    match (&diff, place) {
        (Some(diff), _) if context.json => {
            context.document(&DiffDocument::new(diff, column, profile.pid, circumstances))?;
        }
        (None, _) if context.json => {
            context.document(&ProfileDocument::new(parts, &symbols, (column, most), circumstances))?;
        }
        (_, Some(place)) => {
            let samples = count(profile.coverage.samples, "sample");
            context.line(format_args!("{place}: {}, {samples} of {who}", place.form))?;
            context.text(text::coverage(profile))?;
        }
        (Some(diff), None) => context.text(change::report(&who, diff, profile, column, most))?,
        (None, None) => {
            context.text(text::groups(&who, parts, &symbols, column, most))?;
            context.text(text::coverage(profile))?;
        }
    }
    match (failure, status) {
        (Some(failure), _) => Err(failure),
        (None, Some(status)) => Ok(Exit::Child(code_of(status))),
        (None, None) if profile.samples.is_empty() => Ok(Exit::Failed),
        (None, None) => Ok(Exit::Ok),
    }
}

fn unread(who: &str) -> Failure {
    Failure::failed(format!("{who} has ended before the profile was read once"))
}

/// The profile in a file, which must be of that kind.
fn earlier(path: &Path, kind: ProfileKind) -> Outcome<(Profile, Symbols)> {
    let cannot = |why: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot read {}, which --diff asks for: {why}", path.display()))
    };
    let mut bytes = Vec::new();
    // One byte more than is taken for a profile: a device may have no end.
    let read = File::open(path).and_then(|file| file.take(decode::UNPACKED + 1).read_to_end(&mut bytes));
    read.map_err(|error| cannot(&error))?;
    let (old, names) = decode::pprof(&bytes)
        .map_err(|error| cannot(&error).hint("give a profile that dormouse profile -o old.pb.gz wrote"))?;
    if old.kind != kind {
        let message = format!("{} is a profile of {}", path.display(), old.kind.name());
        return Err(Failure::new(Exit::Usage, message).hint(format!("--kind {}", old.kind.name())));
    }
    Ok((old, names))
}

fn between(old: Named<'_>, new: Named<'_>) -> Outcome<Diff> {
    Diff::between(old, new).map_err(|error| Failure::failed(format!("cannot compare: {error}")))
}

/// A profile and its names.
type Named<'a> = (&'a Profile, &'a Symbols);

/// The content of a file in this form: the profile, or the changes since the old one.
fn content(form: Form, new: Named<'_>, old: Option<Named<'_>>, diff: Option<&Diff>) -> Vec<u8> {
    let (profile, symbols) = new;
    match (form, diff) {
        (Form::Folded, Some(diff)) => encode::folded_diff(diff).into_bytes(),
        (Form::Folded, None) => encode::folded(profile, symbols).into_bytes(),
        (Form::Html, _) => encode::html(profile, symbols, &HtmlOptions::default(), old).into_bytes(),
        (Form::Pprof, _) => encode::pprof(profile, symbols),
        (Form::Firefox, _) => encode::firefox(profile, symbols),
        (Form::FirefoxPlain, _) => encode::firefox_plain(profile, symbols),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Result<Args, clap::Error> {
        Line::try_parse_from(line.split(' ')).map(|line| line.args)
    }

    #[test]
    fn flags_become_a_request() {
        let all = args("profile tea --hz 19 --group GET* -o x.json.gz").unwrap();
        let right = ProfileRequest {
            hz: Some(19),
            group: Some("GET*".into()),
            timeline: true,
            ..ProfileRequest::default()
        };
        assert_eq!(all.to_request(), right);
        let live = args("profile tea --kind alloc --live").unwrap();
        assert_eq!((live.to_request().kind, live.to_request().live), (ProfileKind::Alloc, true));
        assert!(args("profile tea --unwind").unwrap().to_request().unwind);
        assert_eq!(args("profile tea --by task").unwrap().request.by, By::Task);
        assert_eq!(args("profile tea").unwrap().to_request(), ProfileRequest::default());
    }

    #[test]
    fn wrong_lines_are_refused() {
        for wrong in [
            "",
            "tea -- make",
            "tea --hz 0",
            "tea --hz 1001",
            "tea --kind waits",
            "tea --by x",
            "tea -o x.svg",
        ] {
            assert!(args(&format!("profile {wrong}")).is_err(), "{wrong}");
        }
        for wrong in ["--kind faults --hz 9", "--live", "--diff a.pb.gz -o b.pb.gz", "--diff a -o b.json"] {
            assert!(args(&format!("profile tea {wrong}")).unwrap().check().is_err(), "{wrong}");
        }
        assert!(args("profile tea --diff a -o b.html").unwrap().check().is_ok());
        assert!(args("profile tea --kind wall --unwind").unwrap().check().is_ok());
    }
}

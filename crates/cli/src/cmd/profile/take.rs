//! The time while a profile is taken: of a running process, or of a command.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::ops::RangeInclusive;
use std::os::fd::AsFd as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use dormouse_protocol::ProfileRequest;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::child::{Caught, code_of, spawn};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, FAIR, is_drawable};
use crate::sample::profiling::{Profiled, only_inside};
use crate::signals::{Signals, wait};
use crate::target::{Finder, Found, Target};
use crate::text::clean;

/// Time between two reads of the profile, at first and at most. In between it is a part of the time
/// so far: a process that ends early leaves most of its profile, too.
const LOOK: RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(1);
/// This part.
const AGE: u32 = 5;
/// A read may take this part of the time between two.
const SHARE: u32 = 20;
/// How often a command is looked for an agent: one that ends sooner is not seen.
const SEARCH: Duration = Duration::from_millis(10);
/// How often the time that is left is shown.
const TICK: Duration = Duration::from_millis(500);

/// A profile that was taken.
pub(super) struct Taken {
    pub(super) profiled: Profiled,
    /// Why it ended before its time.
    pub(super) ended: Option<String>,
    /// A failure that ended it: what there is is shown before.
    pub(super) failure: Option<Failure>,
    /// How the command ended that was run.
    pub(super) status: Option<ExitStatus>,
}

/// Reads that are not too near to one another.
struct Reads {
    begun: Instant,
    due: Instant,
}

impl Reads {
    fn new() -> Reads {
        let begun = Instant::now();
        Reads { begun, due: begun + *LOOK.start() }
    }

    /// Reads the profile if it is time; false: there is no more to come.
    fn look(&mut self, profiled: &mut Profiled) -> Outcome<bool> {
        let begin = Instant::now();
        if begin < self.due {
            return Ok(true);
        }
        let goes_on = profiled.look()?;
        let pause = (self.begun.elapsed() / AGE).clamp(*LOOK.start(), *LOOK.end());
        self.due = Instant::now() + pause.max(begin.elapsed() * SHARE);
        Ok(goes_on)
    }
}

/// Takes the profile of a running process, for the given time or until one of `signals`.
pub(super) fn of_target(
    target: &Target,
    (request, length): (&ProfileRequest, Duration),
    signals: &Signals,
    context: &Context,
) -> Outcome<Taken> {
    let mut profiled = Profiled::open(target, request, context.patience)?;
    if profiled.is_recorded() {
        return Ok(Taken { profiled, ended: None, failure: None, status: None });
    }
    if let Some(why) = &profiled.outside {
        context.note(format_args!("{FAIR}profiled from outside, by thread:{FAIR:#} {}", clean(why)));
    }
    let end = Instant::now() + length;
    let progress = Progress::new(&profiled.who, context);
    let mut reads = Reads::new();
    let last = loop {
        progress.show(end);
        let now = Instant::now();
        let until = [Some(end), Some(reads.due), Some(now + TICK), profiled.due()];
        let until = until.into_iter().flatten().min();
        let process = profiled.end().unwrap_or(signals.as_fd());
        let [signalled, _] = wait([signals.as_fd(), process], until)?;
        let is_over = signalled && signals.take() || Instant::now() >= end;
        let goes_on = profiled.pass();
        match if is_over { profiled.look() } else { reads.look(&mut profiled) } {
            Ok(true) if !is_over && goes_on && !profiled.has_ended() => {}
            result => break result,
        }
    };
    drop(progress);
    let goes_on = matches!(last, Ok(true)) && !profiled.has_ended();
    let ended = (last.is_ok() && !goes_on).then(|| format!("{} has ended", profiled.who));
    Ok(Taken { profiled, ended, failure: last.err(), status: None })
}

/// Takes the profile of a command, until it ends or for the given time; then waits for its end.
pub(super) fn of_command(
    command: &[OsString],
    request: &ProfileRequest,
    length: Option<Duration>,
    context: &Context,
) -> Outcome<Taken> {
    let caught = Caught::new()?;
    let gone = |error: io::Error| Failure::failed(format!("cannot wait for the command: {error}"));
    let watch = |pid| pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| gone(errno.into()));
    // A command that cannot be waited for is not begun.
    watch(rustix::process::getpid())?;
    let mut child = spawn(command)?;
    let pid = Pid::from_child(&child);
    let end = watch(pid)?;
    let mut until = length.map(|length| Instant::now() + length);
    let mut search = Search::of(child.id(), request);
    let (mut profiled, mut reads): (Option<Profiled>, Reads) = (None, Reads::new());
    // Until there is an agent, from outside, if that is allowed.
    let mut outside = search.outside();
    let mut last = Ok(true);
    loop {
        let goes_on = matches!(last, Ok(true));
        let is_searched = goes_on && profiled.is_none() && search.failure.is_none();
        let running = profiled.as_ref().or(outside.as_ref()).filter(|_| goes_on);
        let due = [
            running.map(|_| reads.due),
            running.and_then(Profiled::due),
            is_searched.then(|| Instant::now() + SEARCH),
            until,
        ];
        if caught.wait(&end, pid, due.into_iter().flatten().min())? {
            break;
        }
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        if is_searched
            && !is_over
            && let Some(found) = search.look(context)
        {
            until = length.map(|length| Instant::now() + length);
            (profiled, reads, outside) = (Some(found), Reads::new(), None);
        }
        if let Some(running) = profiled.as_mut().or(outside.as_mut()).filter(|_| goes_on) {
            if running.pass() || is_over {
                last = if is_over { running.look() } else { reads.look(running) };
            } else if let Some(next) = search.outside() {
                context.note("the command has executed another program: the profile begins anew");
                (outside, reads) = (Some(next), Reads::new());
            }
            // A profile from outside ends with the command alone.
            last = last.map(|goes_on| goes_on || outside.is_some());
        }
        if is_over {
            until = None;
            last = last.map(|_| false);
        }
    }
    if let Some(outside) = outside.as_mut().filter(|_| matches!(last, Ok(true))) {
        last = outside.look();
        context
            .note(format_args!("{FAIR}profiled from outside, by thread:{FAIR:#} no dormouse was seen in it"));
    }
    let profiled = profiled.or(outside);
    let status = child.wait().map_err(gone)?;
    let Some(profiled) = profiled else { return Err(search.without(&command[0], status)) };
    Ok(Taken { profiled, ended: None, failure: last.err(), status: Some(status) })
}

/// The search for the agent of a command.
struct Search<'a> {
    target: Target,
    request: &'a ProfileRequest,
    /// Why its agent takes no profile.
    failure: Option<Failure>,
}

impl Search<'_> {
    fn of(pid: u32, request: &ProfileRequest) -> Search<'_> {
        Search { target: Target::Pid(pid), request, failure: None }
    }

    fn outside(&self) -> Option<Profiled> {
        let is_seen = only_inside(self.request).is_none();
        let process = Finder::new().process(&self.target).ok().filter(|_| is_seen)?;
        Profiled::outside(&process, self.request, "it has no dormouse in it").ok()
    }

    fn look(&mut self, context: &Context) -> Option<Profiled> {
        let finder = Finder::new();
        let found = finder.look(&self.target).ok().filter(Found::has_agent)?;
        match Profiled::reach(&finder, &found, self.request, context.patience) {
            Ok(profiled) => Some(profiled),
            // It may not listen yet, or be about to end.
            Err(Failure::Said(report)) if report.has_hung_up || report.exit == Exit::NoTarget => None,
            Err(failure) => {
                context.note(format_args!("{FAIR}not profiled:{FAIR:#} {}", clean(&failure.to_string())));
                self.failure = Some(failure);
                None
            }
        }
    }

    /// Why there is no profile of a command that ended.
    fn without(self, program: &std::ffi::OsStr, status: ExitStatus) -> Failure {
        let program = clean(&program.to_string_lossy());
        let code = code_of(status);
        let none = || {
            let exit = if code == 0 { Exit::NoTarget } else { Exit::Child(code) };
            let message = format!("{program} ended with {code}, and no dormouse was seen in it");
            let hint = match only_inside(self.request) {
                Some(part) => {
                    format!("leave {part} out for CPU time by thread, or call dormouse::init() in it")
                }
                None => "call dormouse::init(), in C dormouse_init(), at its start".to_owned(),
            };
            Failure::new(exit, message).hint(hint)
        };
        self.failure.unwrap_or_else(none)
    }
}

/// The time that is left, on a terminal.
struct Progress {
    /// The name to show; `None` for no live display.
    who: Option<String>,
}

impl Progress {
    fn new(who: &str, context: &Context) -> Progress {
        let is_seen = !context.is_remote() && is_drawable(&io::stderr());
        Progress { who: is_seen.then(|| who.to_owned()) }
    }

    fn show(&self, end: Instant) {
        let Some(who) = &self.who else { return };
        let left = end.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
        // Whether anybody reads it is not this run's concern.
        let _ = write!(io::stderr(), "\r\x1b[Kprofiling {who}: {left} s left; Ctrl-C ends it");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.who.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

//! A process whose profile is being taken: by its agent, or from outside if it has none.
//!
//! The profile ends with this command, in whatever way it ends. It is read now and then, so that
//! when the process ends the profile so far is kept.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dormouse_maps::SpaceError;
use dormouse_profile::{
    NameFinder, Options, OutsideProfiling, Profile, ProfileCoverage, ProfileKind, Symbols,
};
use dormouse_protocol::ProfileRequest;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::client::Client;
use crate::client::profile::{begin, read};
use crate::exit::{Exit, Failure, Outcome};
use crate::signals::wait;
use crate::target::{Finder, Found, Process, Target, describe, near};

/// How long a process whose agent has hung up may take to be gone.
const ENDING: Duration = Duration::from_millis(500);

/// With fewer samples no share of them is a reason for advice.
const FEW: u64 = 20;

/// How often samples that the kernel records are taken out.
const PASS: Duration = Duration::from_millis(50);

/// A profile, as long as this lives. It stays on one thread, as the reader of symbols does.
pub(crate) struct Profiled {
    /// `teaparty (process 12)`, for messages.
    pub(crate) who: String,
    by: By,
    /// The reason why the process does not sample itself, if it does not.
    pub(crate) outside: Option<String>,
    /// Readable when the process has ended; absent where the kernel has none to give.
    end: Option<OwnedFd>,
    /// None where the mappings of the process are hidden.
    names: Option<NameFinder>,
    /// The reason why there are no names.
    pub(crate) unnamed: Option<String>,
    last: Option<Profile>,
}

enum By {
    Agent { client: Box<Client>, number: u32 },
    Kernel(Box<OutsideProfiling>),
}

impl Profiled {
    /// Begins a profile of the process that `target` means.
    pub(crate) fn open(target: &Target, request: &ProfileRequest, patience: Duration) -> Outcome<Profiled> {
        if let Target::File(_) = target {
            return Profiled::recorded(target, request, patience);
        }
        let finder = Finder::new();
        let found = finder.look(target)?;
        let only_inside = only_inside(request);
        if !found.has_agent() {
            let Some(part) = only_inside else {
                return Profiled::outside(&found.process, request, "it has no dormouse in it");
            };
            let message = format!("{} has no dormouse in it, which {part} needs", describe(&found.process));
            let hint = format!("leave {part} out for CPU time by thread, or call dormouse::init() in it");
            return Err(Failure::new(Exit::NoTarget, message).hint(hint));
        }
        match Profiled::reach(&finder, &found, request, patience) {
            Err(Failure::Said(report)) if report.exit == Exit::Unsupported && only_inside.is_none() => {
                Profiled::outside(&found.process, request, &report.message)
            }
            profiled => profiled,
        }
    }

    /// The one in a recorder's file.
    fn recorded(target: &Target, request: &ProfileRequest, patience: Duration) -> Outcome<Profiled> {
        let (mut client, _) = Client::open(target, patience)?;
        let profile = read(&mut client, 1)?;
        if profile.kind != request.kind || request.group.is_some() {
            let message =
                format!("the profile in {} is one of {}, of all groups", client.who, profile.kind.name());
            return Err(Failure::new(Exit::Usage, message).hint("leave out --kind and --group"));
        }
        let (names, unnamed) = split(client.names());
        let (who, last) = (client.who.clone(), Some(profile));
        let by = By::Agent { client: Box::new(client), number: 1 };
        Ok(Profiled { who, by, outside: None, end: None, names, unnamed, last })
    }

    /// Whether nothing more is to come.
    pub(crate) fn is_recorded(&self) -> bool {
        matches!(&self.by, By::Agent { client, .. } if client.file().is_some())
    }

    /// Has the agent of a process begin one.
    pub(crate) fn reach(
        finder: &Finder,
        found: &Found,
        request: &ProfileRequest,
        patience: Duration,
    ) -> Outcome<Profiled> {
        let (mut client, _) = Client::reach(finder, found, patience)?;
        let number = begin(&mut client, request).map_err(|failure| ranked(failure, request))?;
        Ok(Profiled::new(&found.process, By::Agent { client: Box::new(client), number }, None))
    }

    /// Begins one from outside, since the process does not sample itself for the reason `why`.
    pub(crate) fn outside(process: &Process, request: &ProfileRequest, why: &str) -> Outcome<Profiled> {
        let mut options = Options::default();
        options.hz = request.hz.unwrap_or(options.hz);
        options.unwind = request.unwind;
        let profiling = OutsideProfiling::start(process.pid, &options).map_err(|error| {
            let exit = match error {
                dormouse_profile::Error::Denied(_) => Exit::Denied,
                _ => Exit::Unsupported,
            };
            Failure::new(exit, format!("cannot profile {}: {error}", describe(process)))
                .after(why)
                .hint("call dormouse::init(), in C dormouse_init(), at its start, or run this as root")
        })?;
        Ok(Profiled::new(process, By::Kernel(Box::new(profiling)), Some(why.to_owned())))
    }

    fn new(process: &Process, by: By, outside: Option<String>) -> Profiled {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let (names, unnamed) = split(NameFinder::of(process.pid));
        Profiled {
            who: describe(process),
            by,
            outside,
            end: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            names,
            unnamed,
            last: None,
        }
    }

    /// The moment until which nothing has to be done, at most.
    pub(crate) fn due(&self) -> Option<Instant> {
        matches!(self.by, By::Kernel(_)).then(|| Instant::now() + PASS)
    }

    /// Takes out what the kernel has recorded; false: as of [`Profiled::look`].
    pub(crate) fn pass(&mut self) -> bool {
        match &mut self.by {
            By::Agent { .. } => true,
            By::Kernel(profiling) => profiling.pass(),
        }
    }

    /// To wait for the end of the process.
    pub(crate) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(|end| end.as_fd())
    }

    /// Reads the profile so far. Returns false if the process has ended, or has unloaded dormouse;
    /// then the last reading is the result.
    pub(crate) fn look(&mut self) -> Outcome<bool> {
        let (told, goes_on) = match &mut self.by {
            By::Agent { client, number } => (read(client, *number), true),
            By::Kernel(profiling) => {
                let goes_on = profiling.pass();
                (Ok(profiling.read()), goes_on)
            }
        };
        match told {
            Ok(profile) => {
                if let Some(names) = &mut self.names {
                    names.see(&profile);
                }
                self.last = Some(profile);
                Ok(goes_on)
            }
            Err(Failure::Said(report)) if report.has_hung_up || self.ends_before(Instant::now() + ENDING) => {
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Takes the profile for this long, or until the process ends, and reads it.
    pub(crate) fn take(&mut self, length: Duration) -> Outcome<()> {
        let end = Instant::now() + length;
        while Instant::now() < end && self.pass() && !self.has_ended() {
            let due = self.due().map_or(end, |due| due.min(end));
            match self.end() {
                Some(process) => wait([process], Some(due)).map(|_| ())?,
                None => wait([], Some(due)).map(|_| ())?,
            }
        }
        self.look().map(|_| ())
    }

    /// The profile that was read last, if any, with its names. Its notes list names that are
    /// missing.
    pub(crate) fn named(&mut self) -> Option<(&mut Profile, Symbols)> {
        let profile = self.last.as_mut()?;
        let symbols = self.names.as_mut().map(|names| names.symbols(profile)).unwrap_or_default();
        symbols.note_lacks(profile);
        note_ends(profile);
        dormouse_profile::settle_waits(profile, &symbols);
        Some((profile, symbols))
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ends_before(Instant::now())
    }

    fn ends_before(&self, due: Instant) -> bool {
        self.end().is_some_and(|end| matches!(wait([end], Some(due)), Ok([true])))
    }
}

/// Adds a note with what to do if many stacks are not whole.
fn note_ends(profile: &mut Profile) {
    let ProfileCoverage { samples, ended, ref mut notes, .. } = profile.coverage;
    // A few may be by chance.
    let is_short = profile.kind == ProfileKind::Cpu && samples >= FEW && ended < samples / 10 * 9;
    let note = format!("dormouse doctor {} shows where stacks end, and what makes them whole", profile.pid);
    if is_short && !notes.contains(&note) {
        notes.push(note);
    }
}

/// The names, or why there are none.
fn split(names: Result<NameFinder, SpaceError>) -> (Option<NameFinder>, Option<String>) {
    match names {
        Ok(names) => (Some(names), None),
        Err(error) => (None, Some(error.to_string())),
    }
}

/// The option, if there is one, that a profile from outside does not support: it has no groups, and
/// only CPU time.
pub(crate) fn only_inside(request: &ProfileRequest) -> Option<String> {
    match request.kind {
        ProfileKind::Cpu => request.group.is_some().then(|| "--group".to_owned()),
        kind => Some(format!("--kind {}", kind.name())),
    }
}

/// Keeps those groups in a refusal that are similar to the requested one, if any are.
fn ranked(mut failure: Failure, request: &ProfileRequest) -> Failure {
    if let (Failure::Said(report), Some(group)) = (&mut failure, &request.group) {
        let ranked = near(group, report.near.iter().map(String::as_str));
        if !ranked.is_empty() {
            report.near = ranked;
        }
    }
    failure
}

//! Requests, and the agent's answers.

use std::collections::HashSet;

use dormouse_keys::{Batch, BatchReport, Key, KeyUse, Lease, Listed};
use serde::{Deserialize, Serialize};

use super::chosen::{bad, chosen, names, no_match, parse, refused, time, untraced};
use super::client::Client;
use super::holders::{self, Holders};
use super::long_polls;
use super::place::Place;
use super::profiling;
use super::recording;
use super::registers;
use super::stream::Stream;
use super::triggers;
use super::watching::{self, ClientWatch};
use crate::answers::counting::{self, ClientEvents};
use crate::answers::waiting::{self, ClientWaits};
use crate::answers::{host, places, tasks};
use crate::probe::Probe;
use crate::publish::{self, Publishing};
use crate::trace::Trace;
use crate::wire::{
    BatchStat, Changed, ClockPoint, Code, CountAnswer, Doctor, Ended, Events, HeldBy, Hello, KeyInfo, Keys,
    LongPollsBegun, LongPollsPart, Op, PROTOCOL, PlacesPart, ProbeInfo, ProfileBegun, ProfilePart,
    RecordAnswer, Request, SlotsAnswer, Stat, TasksPart, Tracing, TriggersAnswer, WaitsBegun, WaitsWish,
    WatchRow, Watching, WireError, WokenTasks,
};
use crate::{lookout, memory};

/// Leases that a client may hold.
const MAX_LEASES: usize = 256;

/// The event that groups count for a client that has not asked for any.
const TASK_CLOCK: &str = "task-clock";

/// Events that a client may have counted.
const MAX_EVENTS: usize = 32;

/// The fields that every version of the protocol has: they tell another version from nonsense.
#[derive(Deserialize)]
struct Envelope {
    v: u32,
    #[serde(default)]
    id: u64,
}

/// An answer, of any operation.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Hello(Hello),
    Keys(Keys),
    Changed(Changed),
    Tracing(Tracing),
    Stat(Stat),
    Events(Events),
    Count(CountAnswer),
    Doctor(Doctor),
    Watching(Watching),
    Watch(WatchRow),
    Slots(SlotsAnswer),
    Profile(ProfileBegun),
    Part(ProfilePart),
    Tasks(TasksPart),
    Places(PlacesPart),
    Woken(WokenTasks),
    Waits(WaitsBegun),
    Triggers(TriggersAnswer),
    LongPolls(LongPollsBegun),
    LongPollReports(LongPollsPart),
    Record(RecordAnswer),
}

/// One client's request, among all clients.
struct Asked<'a> {
    clients: &'a mut [Client],
    at: usize,
}

/// Answers one line of a client. A line that is no request closes the connection.
pub(super) fn answer(clients: &mut [Client], at: usize, place: &Place, line: &[u8]) {
    let asked = read(line).and_then(|request| {
        let is_first = clients[at].greeted.is_none() && !matches!(request.op, Op::Hello { .. });
        let refused = "the first request of a connection is `hello`";
        if is_first { Err((request.id, bad(refused))) } else { Ok(request) }
    });
    match asked {
        // The answer would tell of them all.
        Ok(Request { op: Op::Stat, .. })
            if !host::has_memory_for_threads()
                || clients[at].waits.is_some() && !memory::is_there(waiting::memory()) =>
        {
            clients[at].gone = true;
        }
        Ok(Request { op: Op::Watch(_) | Op::WatchReport { .. }, .. })
            if !memory::is_there(watching::MEMORY) =>
        {
            clients[at].gone = true;
        }
        Ok(Request { op: Op::Profile(_) | Op::ProfileReport { .. }, .. })
            if !memory::is_there(profiling::memory()) =>
        {
            clients[at].gone = true;
        }
        Ok(Request { op: Op::Places { .. }, .. }) if !memory::is_there(places::MEMORY) => {
            clients[at].gone = true;
        }
        Ok(Request { op: Op::LongPollReports, .. }) if !memory::is_there(long_polls::MEMORY) => {
            clients[at].gone = true;
        }
        Ok(Request {
            op: Op::Triggers | Op::TriggerAdd { .. } | Op::TriggerRemove { .. } | Op::RecordSave,
            ..
        }) if !memory::is_there(triggers::MEMORY) => {
            clients[at].gone = true;
        }
        Ok(Request { op: Op::Tasks { .. }, .. }) if !memory::is_there(tasks::MEMORY) => {
            clients[at].gone = true;
        }
        Ok(Request { id, op, .. }) => {
            let answer = Asked { clients, at }.run(op, place);
            clients[at].answer(id, answer);
        }
        Err((id, why)) => clients[at].refuse(id, why),
    }
}

/// The request in a line, else the refusal with the request's id.
fn read(line: &[u8]) -> Result<Request, (u64, WireError)> {
    let Envelope { v, id } = serde_json::from_slice(line).map_err(|why| {
        (0, bad(format!(
            "not a request ({why}): a request is one line as {{\"v\":1,\"id\":1,\"op\":\"hello\",\"client\":\"…\"}}"
        )))
    })?;
    if v != PROTOCOL {
        let message = format!(
            "this service speaks protocol {PROTOCOL} (dormouse {}), the request is of protocol {v}: use a matching dormouse command",
            env!("CARGO_PKG_VERSION")
        );
        return Err((id, WireError::new(Code::Version, message)));
    }
    serde_json::from_slice(line).map_err(|why| (id, bad(format!("not a request: {why}"))))
}

impl Asked<'_> {
    fn run(&mut self, op: Op, place: &Place) -> Result<Answer, WireError> {
        Ok(match op {
            Op::Hello { client, notices } => {
                self.client().greet(client, notices);
                Answer::Hello(host::hello())
            }
            Op::Keys { glob } => Answer::Keys(self.list(glob.as_deref())?),
            Op::On { glob, for_ms, dwell_ms, keep } => {
                Answer::Changed(self.on(&glob, for_ms, dwell_ms, keep)?)
            }
            Op::Off { glob, dwell_ms: None, force: false, release: true } => {
                Answer::Changed(self.release(&glob)?)
            }
            Op::Off { release: true, .. } => {
                return Err(bad("`release` excludes `dwell_ms` and `force`"));
            }
            Op::Off { glob, dwell_ms, force, .. } => Answer::Changed(self.off(&glob, dwell_ms, force)?),
            Op::Reset { glob } => Answer::Changed(self.reset(&glob)?),
            Op::Trace { glob } => Answer::Tracing(self.trace(&glob)?),
            Op::Stat => {
                let Client { counting, waits, .. } = self.client();
                // A client that knows no `count` wants CPU time.
                if counting.is_none() {
                    *counting = ClientEvents::start_counting(&[TASK_CLOCK.to_owned()]).ok().map(|(c, _)| c);
                }
                Answer::Stat(host::stat(counting.as_ref(), waits.as_ref().map(ClientWaits::told)))
            }
            Op::Events => Answer::Events(Events { events: counting::available() }),
            Op::Count { events } => Answer::Count(self.count(&events)?),
            Op::Waits(wish) => Answer::Waits(self.wait(wish)?),
            Op::Doctor => {
                let settings = crate::environment::capabilities();
                Answer::Doctor(host::doctor(settings, watching::capability(), place.check()))
            }
            Op::Watch(wish) => Answer::Watching(registers::watch(self.clients, self.at, &wish)?),
            Op::WatchReport { number } => Answer::Watch(self.report(number)?),
            Op::Slots => Answer::Slots(registers::slots(self.clients)),
            Op::Profile(wish) => {
                let all = self.clients.iter().map(|client| client.profiles.len()).sum();
                Answer::Profile(profiling::begin(&mut self.client().profiles, all, &wish)?)
            }
            Op::ProfileReport { number, from } => {
                Answer::Part(profiling::report(&mut self.client().profiles, number, from)?)
            }
            Op::LongPolls(wish) => Answer::LongPolls(long_polls::begin(&mut self.client().long_polls, wish)?),
            Op::LongPollReports => {
                Answer::LongPollReports(long_polls::report(self.client().long_polls.as_ref())?)
            }
            Op::Tasks { from } => Answer::Tasks(tasks::part(from)),
            Op::Record(wish) => Answer::Record(recording::answer(&wish)?),
            Op::Places { from } => Answer::Places(places::part(from)),
            Op::Triggers => Answer::Triggers(triggers::list()?),
            Op::TriggerAdd { rules } => Answer::Triggers(triggers::add(&rules)?),
            Op::TriggerRemove { number } => Answer::Triggers(triggers::remove(number)?),
            Op::RecordSave => Answer::Triggers(triggers::save()?),
            Op::WakeTasks { from } => Answer::Woken(tasks::wake(from)),
        })
    }

    fn client(&mut self) -> &mut Client {
        &mut self.clients[self.at]
    }

    fn user(&self) -> dormouse_keys::Holder {
        dormouse_keys::Holder::User { uid: self.clients[self.at].peer.uid }
    }

    fn on(
        &mut self,
        glob: &str,
        for_ms: Option<u64>,
        dwell_ms: Option<u64>,
        keep: bool,
    ) -> Result<Changed, WireError> {
        if usize::from(for_ms.is_some()) + usize::from(dwell_ms.is_some()) + usize::from(keep) > 1 {
            return Err(bad("`for_ms`, `dwell_ms` and `keep` exclude each other"));
        }
        let (length, dwell) = (time("for_ms", for_ms)?, time("dwell_ms", dwell_ms)?);
        let selector = parse(glob)?;
        let selected = chosen(&selector)?;
        let publishes = publish::is_named(&selector, &selected);
        if publishes && (keep || length.is_some()) {
            return Err(bad(
                "groups are published as long as a client is connected: leave out `keep` and `for`, or start \
                 the service with DORMOUSE_PUBLISH=1",
            ));
        }
        let keys = || selected.iter().map(|k| k.key);
        let before = Before::of(&selected);
        if keep {
            let report = Batch::new().enable_all(keys()).apply().map_err(refused)?;
            return Ok(before.changed(report));
        }
        if let Some(length) = length {
            let report = Batch::new().hold_all(keys(), self.user(), length).apply().map_err(refused)?;
            let uid = self.client().peer.uid;
            let held = Holders::of(self.clients).of_keys(&selected);
            let mut own = held.iter().filter(|h| (h.holder.by, h.holder.uid) == (HeldBy::User, uid));
            let off_in_ms = own.find_map(|h| h.holder.left_ms);
            return Ok(Changed { off_in_ms, ..before.changed(report) });
        }
        let client = self.client();
        // Leases that `off` has emptied count for nothing.
        client.leases.retain(|lease| !lease.keys().is_empty());
        if client.leases.len() >= MAX_LEASES {
            let message = format!("{MAX_LEASES} leases are held: switch some off first");
            return Err(WireError::new(Code::Busy, message));
        }
        // Before publishing, which holds the key, too: this batch is to be the one that switches
        // it.
        let lease = Lease::of(keys()).map_err(refused)?;
        if publishes && client.publishing.is_none() {
            let publishing =
                Publishing::for_client().map_err(|why| WireError::new(Code::Keys, why.to_string()))?;
            client.publishing = Some(publishing);
        }
        // After it: were publishing refused, nothing would linger.
        let lease = lease.dwell(dwell.unwrap_or_default()).map_err(refused)?;
        let report = lease.report();
        client.leases.push(lease);
        Ok(before.changed(report))
    }

    fn off(&mut self, glob: &str, dwell_ms: Option<u64>, force: bool) -> Result<Changed, WireError> {
        let dwell = time("dwell_ms", dwell_ms)?;
        let selector = parse(glob)?;
        let selected = chosen(&selector)?;
        if publish::is_named(&selector, &selected) {
            let at = self.at;
            let whose = self.clients.iter_mut().enumerate().filter(|(other, _)| force || *other == at);
            whose.for_each(|(_, client)| client.publishing = None);
        }
        let keys = || selected.iter().map(|k| k.key);
        // A glob does not switch off features that the service starts with.
        let (named, start_on): (Vec<_>, Vec<_>) =
            keys().partition(|key| !key.initial() || selector.names(key));
        let batch = Batch::new().disable_all(named).end_all(keys(), (!force).then_some(self.user()));
        let batch = match dwell {
            Some(dwell) => batch.dwell(dwell),
            // Keys that linger from before go off with the rest.
            None => batch.end_all(keys(), Some(dormouse_keys::Holder::Nobody)),
        };
        let start_on = start_on.into_iter().filter(|key| key.baseline()).count();
        let changed = self.switch_off(&selected, batch, force)?;
        Ok(Changed { start_on, ..changed })
    }

    /// Ends what `on` has begun for this connection, and nothing else.
    fn release(&mut self, glob: &str) -> Result<Changed, WireError> {
        let selector = parse(glob)?;
        let selected = chosen(&selector)?;
        if publish::is_named(&selector, &selected) {
            self.client().publishing = None;
        }
        self.switch_off(&selected, Batch::new(), false)
    }

    fn reset(&mut self, glob: &str) -> Result<Changed, WireError> {
        let selected = chosen(&parse(glob)?)?;
        let keys = || selected.iter().map(|k| k.key);
        let batch = Batch::new()
            .reset_all(keys())
            .end_all(keys(), Some(self.user()))
            .end_all(keys(), Some(dormouse_keys::Holder::Nobody));
        self.switch_off(&selected, batch, false)
    }

    /// Carries out a batch that gives back the leases of this client on these keys, or with `force`
    /// those of all clients, which it tells.
    fn switch_off(&mut self, selected: &[KeyUse], batch: Batch, force: bool) -> Result<Changed, WireError> {
        let before = Before::of(selected);
        let held: Vec<usize> = self.clients.iter().map(Client::held).collect();
        let addresses: HashSet<*const Key> = selected.iter().map(|k| std::ptr::from_ref(k.key)).collect();
        let whose = self.clients.iter_mut().enumerate().filter(|(other, _)| force || *other == self.at);
        let mut leases: Vec<&mut Lease> = whose.flat_map(|(_, client)| client.leases_mut()).collect();
        let mut recorder = force.then(lookout::recording::lend).flatten();
        leases.extend(recorder.as_mut().and_then(|lent| lent.lease_mut()));
        let report = batch
            .apply_releasing(&mut leases, |key| addresses.contains(&std::ptr::from_ref(key)))
            .map_err(refused)?;
        drop(recorder);
        let peer = self.client().peer;
        for (other, (client, held)) in self.clients.iter_mut().zip(held).enumerate() {
            let left = client.held();
            if other != self.at && left < held {
                client.tell(Ended { keys: held - left, left, uid: peer.uid, pid: peer.pid });
            }
        }
        let held = Holders::of(self.clients).of_keys(selected);
        Ok(Changed { held, ..before.changed(report) })
    }

    fn count(&mut self, events: &[String]) -> Result<CountAnswer, WireError> {
        if events.len() > MAX_EVENTS {
            return Err(bad(format!("more than {MAX_EVENTS} events: ask for fewer")));
        }
        let (counting, answer) = ClientEvents::start_counting(events)?;
        // This ends what the client had counted before.
        self.client().counting = Some(counting);
        Ok(answer)
    }

    fn wait(&mut self, wish: WaitsWish) -> Result<WaitsBegun, WireError> {
        let (waits, answer) = ClientWaits::begin(wish).map_err(refused)?;
        // This ends what the client had taken before.
        self.client().waits = Some(waits);
        Ok(answer)
    }

    fn report(&mut self, number: u32) -> Result<WatchRow, WireError> {
        let watch = self.client().watches.iter_mut().find(|watch| watch.number() == number);
        let none = || WireError::new(Code::BadWatch, format!("this connection has no watch {number}"));
        watch.map(ClientWatch::report).ok_or_else(none)
    }

    fn list(&self, glob: Option<&str>) -> Result<Keys, WireError> {
        // Before the keys are listed: a listing cannot ask for holds.
        let holders = Holders::of(self.clients);
        let selector = glob.map(parse).transpose()?;
        let is_wanted = |key: &Key| {
            selector.as_ref().is_none_or(|selector| selector.matches_at(key.name(), key.file(), key.line()))
        };
        let info = |used: Listed<'_>| is_wanted(used.key).then(|| key_info(used, &holders));
        let keys: Vec<_> = dormouse_keys::try_list(info).map_err(refused)?.into_iter().flatten().collect();
        match glob {
            Some(glob) if keys.is_empty() => Err(no_match(glob)),
            _ => Ok(Keys { keys }),
        }
    }

    /// Starts a trace, whose frames follow the answer.
    fn trace(&mut self, glob: &str) -> Result<Tracing, WireError> {
        let trace = Trace::of(chosen(&parse(glob)?)?).map_err(untraced)?;
        let answer = Tracing {
            matched: names(trace.keys()),
            keys: trace.keys().len(),
            probes: trace.keys().iter().filter_map(ProbeInfo::of).collect(),
            batch: trace.lease().map(|lease| lease.report().into()).unwrap_or_default(),
            clock: ClockPoint::now(),
        };
        self.client().tracing = Some(Stream::new(trace));
        Ok(answer)
    }
}

/// Keys as they were before they were switched.
struct Before<'a> {
    selected: &'a [KeyUse],
    were_on: Vec<bool>,
}

impl<'a> Before<'a> {
    fn of(selected: &'a [KeyUse]) -> Self {
        Self { selected, were_on: selected.iter().map(|used| used.key.is_enabled()).collect() }
    }

    fn changed(&self, report: BatchReport) -> Changed {
        let now = self.selected.iter().zip(&self.were_on);
        let changed = now.filter(|(used, was_on)| used.key.is_enabled() != **was_on).map(|(used, _)| used);
        Changed {
            matched: names(self.selected),
            changed: report.keys,
            names: Some(names(changed)),
            off_in_ms: None,
            start_on: 0,
            batch: BatchStat::from(report),
            held: Vec::new(),
        }
    }
}

#[cfg(feature = "tracing")]
fn is_tracing(key: &dormouse_keys::Key) -> bool {
    key.attached::<crate::tracing::Callsite>().is_some()
}

#[cfg(not(feature = "tracing"))]
fn is_tracing(_: &dormouse_keys::Key) -> bool {
    false
}

fn key_info(used: Listed<'_>, holders: &Holders) -> KeyInfo {
    let key = used.key;
    let probe = key.attached::<Probe>();
    let kind = match probe {
        Some(_) => "probe",
        None if is_tracing(key) => "tracing",
        None => "key",
    };
    let held = holders.of_key(key);
    let astray = used.astray();
    KeyInfo {
        name: key.name().to_owned(),
        kind: kind.to_owned(),
        on: key.is_enabled(),
        baseline: key.baseline(),
        initial: key.initial(),
        leases: key.leases(),
        off_in_ms: holders::off_in_ms(key, &held),
        held,
        sites: used.sites,
        sites_stale: astray.stale,
        sites_foreign: astray.foreign,
        file: key.file().to_owned(),
        line: key.line(),
        object: used.object.to_string(),
        fields: probe.map(fields).unwrap_or_default(),
    }
}

fn fields(probe: &Probe) -> Vec<String> {
    probe.fields().map(str::to_owned).collect()
}

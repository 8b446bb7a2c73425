//! What the agent does for a request.

use std::collections::HashSet;
use std::time::Duration;

use dormouse_keys::{Batch, BatchReport, Key, KeyUse, Lease, Listed, Selector};
use serde::Deserialize;

use super::client::{Client, Greeted};
use super::counting::{self, Counting};
use super::holders::{self, Holders};
use super::host;
use super::server::Server;
use crate::probe::Probe;
use crate::recorder::{Trace, TraceError};
use crate::wire::{
    self, Changed, Code, Counted, Ended, Events, HeldBy, KeyInfo, Keys, LONGEST_MS, Op, PROTOCOL, ProbeInfo,
    Request, Tracing, WireError,
};

/// Leases that a client may hold.
const MAX_LEASES: usize = 256;

/// What groups count for a client that has not said what.
const TASK_CLOCK: &str = "task-clock";

/// Events that a client may have counted.
const MAX_EVENTS: usize = 32;

/// How many near names an error names.
const NEAR: usize = 5;

/// What every version of the protocol has, so that another version can be told from nonsense.
#[derive(Deserialize)]
struct Envelope {
    v: u32,
    #[serde(default)]
    id: u64,
}

fn error(code: Code, message: impl Into<String>) -> WireError {
    WireError { code, message: message.into(), near: Vec::new() }
}

impl Server {
    /// Answers one line of a client. What cannot be understood closes the connection.
    pub(super) fn request(&mut self, at: usize, line: &[u8]) {
        let envelope: Envelope = match serde_json::from_slice(line) {
            Ok(envelope) => envelope,
            Err(why) => {
                let message = format!(
                    "not a request ({why}): a request is one line as {{\"v\":1,\"id\":1,\"op\":\"hello\",\"client\":\"…\"}}"
                );
                return self.clients[at].refuse(0, Code::BadRequest, message);
            }
        };
        if envelope.v != PROTOCOL {
            let message = format!(
                "this service speaks protocol {PROTOCOL} (dormouse {}), the request is of protocol {}: use a matching dormouse command",
                env!("CARGO_PKG_VERSION"),
                envelope.v
            );
            return self.clients[at].refuse(envelope.id, Code::Version, message);
        }
        let request: Request = match serde_json::from_slice(line) {
            Ok(request) => request,
            Err(why) => {
                return self.clients[at].refuse(
                    envelope.id,
                    Code::BadRequest,
                    format!("not a request: {why}"),
                );
            }
        };
        let id = request.id;
        if self.clients[at].greeted.is_none() && !matches!(request.op, Op::Hello { .. }) {
            return self.clients[at].refuse(
                id,
                Code::BadRequest,
                "the first request of a connection is `hello`",
            );
        }
        match request.op {
            Op::Hello { notices, .. } => {
                self.clients[at].greeted = Some(Greeted { notices });
                self.clients[at].answer(id, Ok(host::hello()));
            }
            Op::Keys { glob } => {
                let answer = self.list(glob.as_deref());
                self.clients[at].answer(id, answer);
            }
            Op::On { glob, for_ms, dwell_ms, keep } => {
                let answer = self.on(at, &glob, for_ms, dwell_ms, keep);
                self.clients[at].answer(id, answer);
            }
            Op::Off { glob, dwell_ms, force } => {
                let answer = self.off(at, &glob, dwell_ms, force);
                self.clients[at].answer(id, answer);
            }
            Op::Trace { glob } => self.trace(at, id, &glob),
            Op::Stat => {
                // A client that knows no `count` wants CPU time.
                if self.clients[at].counting.is_none() {
                    self.clients[at].counting =
                        Counting::start(&[TASK_CLOCK.to_owned()]).ok().map(|(c, _)| c);
                }
                let stat = host::stat(self.clients[at].counting.as_ref());
                self.clients[at].answer(id, Ok(stat));
            }
            Op::Events => self.clients[at].answer(id, Ok(Events { events: counting::available() })),
            Op::Count { events } => {
                let answer = self.count(at, &events);
                self.clients[at].answer(id, answer);
            }
            Op::Doctor => self.clients[at].answer(id, Ok(host::doctor())),
        }
    }

    fn on(
        &mut self,
        at: usize,
        glob: &str,
        for_ms: Option<u64>,
        dwell_ms: Option<u64>,
        keep: bool,
    ) -> Result<Changed, WireError> {
        if usize::from(for_ms.is_some()) + usize::from(dwell_ms.is_some()) + usize::from(keep) > 1 {
            return Err(error(Code::BadRequest, "`for_ms`, `dwell_ms` and `keep` exclude each other"));
        }
        let (length, dwell) = (time("for_ms", for_ms)?, time("dwell_ms", dwell_ms)?);
        let selected = select(glob)?;
        let keys = || selected.iter().map(|k| k.key);
        let before = Before::of(&selected);
        if keep {
            let report = Batch::new().enable_all(keys()).apply().map_err(refused)?;
            return Ok(before.changed(report));
        }
        if let Some(length) = length {
            let uid = self.clients[at].peer.uid;
            let user = dormouse_keys::Holder::User { uid };
            let report = Batch::new().hold_all(keys(), user, length).apply().map_err(refused)?;
            let held = Holders::of(self).of_keys(&selected);
            let mut own = held.iter().filter(|h| (h.holder.by, h.holder.uid) == (HeldBy::User, uid));
            let off_in_ms = own.find_map(|h| h.holder.left_ms);
            return Ok(Changed { off_in_ms, ..before.changed(report) });
        }
        let client = &mut self.clients[at];
        // Those that `off` has emptied count for nothing.
        client.leases.retain(|lease| !lease.keys().is_empty());
        if client.leases.len() >= MAX_LEASES {
            return Err(error(Code::Busy, format!("{MAX_LEASES} leases are held: switch some off first")));
        }
        let lease = Lease::of(keys()).and_then(|lease| lease.dwell(dwell.unwrap_or_default()));
        let lease = lease.map_err(refused)?;
        let report = lease.report();
        client.leases.push(lease);
        Ok(before.changed(report))
    }

    fn off(
        &mut self,
        at: usize,
        glob: &str,
        dwell_ms: Option<u64>,
        force: bool,
    ) -> Result<Changed, WireError> {
        let dwell = time("dwell_ms", dwell_ms)?;
        let selected = select(glob)?;
        let keys = || selected.iter().map(|k| k.key);
        let user = dormouse_keys::Holder::User { uid: self.clients[at].peer.uid };
        let batch = Batch::new().disable_all(keys()).end_all(keys(), (!force).then_some(user));
        let batch = match dwell {
            Some(dwell) => batch.dwell(dwell),
            // What lingers from before goes off with the rest.
            None => batch.flush_all(keys()),
        };
        let before = Before::of(&selected);
        let held: Vec<usize> = self.clients.iter().map(Client::held).collect();
        let addresses: HashSet<*const Key> = keys().map(std::ptr::from_ref).collect();
        let whose = self.clients.iter_mut().enumerate().filter(|(other, _)| force || *other == at);
        let mut leases: Vec<&mut Lease> = whose.flat_map(|(_, client)| client.leases_mut()).collect();
        let report = batch
            .apply_releasing(&mut leases, |key| addresses.contains(&std::ptr::from_ref(key)))
            .map_err(refused)?;
        self.tell_others(at, &held);
        let held = Holders::of(self).of_keys(&selected);
        Ok(Changed { held, ..before.changed(report) })
    }

    /// Tells those who held so many keys that `at` has taken some from them.
    fn tell_others(&mut self, at: usize, held: &[usize]) {
        let peer = self.clients[at].peer;
        for (other, (client, &held)) in self.clients.iter_mut().zip(held).enumerate() {
            let left = client.held();
            if other != at && left < held {
                client.tell(Ended { keys: held - left, left, uid: peer.uid, pid: peer.pid });
            }
        }
    }

    fn count(&mut self, at: usize, events: &[String]) -> Result<Counted, WireError> {
        if events.len() > MAX_EVENTS {
            return Err(error(Code::BadRequest, format!("more than {MAX_EVENTS} events: ask for fewer")));
        }
        let (counting, counted) = Counting::start(events)?;
        // What was counted before ends with it.
        self.clients[at].counting = Some(counting);
        Ok(counted)
    }

    fn list(&self, glob: Option<&str>) -> Result<Keys, WireError> {
        // Before the keys are listed: holds cannot be asked for meanwhile.
        let holders = Holders::of(self);
        let mut keys = dormouse_keys::list(|used| key_info(used, &holders));
        if let Some(glob) = glob {
            let selector = parse(glob)?;
            keys.retain(|key| selector.matches(&key.name));
            if keys.is_empty() {
                return Err(no_match(glob));
            }
        }
        Ok(Keys { keys })
    }

    fn trace(&mut self, at: usize, id: u64, glob: &str) {
        let trace = select(glob).and_then(|keys| {
            Trace::of(keys).map_err(|why| match why {
                TraceError::Keys(why) => refused(why),
                TraceError::Elsewhere { .. } | TraceError::Leaving(_) => error(Code::Keys, why.to_string()),
                other => error(Code::BadGlob, other.to_string()),
            })
        });
        let trace = match trace {
            Ok(trace) => trace,
            Err(why) => return self.clients[at].answer::<Tracing>(id, Err(why)),
        };
        let probes = trace.keys().iter().filter_map(probe_info).collect();
        let matched = names(trace.keys());
        let batch = trace.lease().map(|l| batch(l.report())).unwrap_or_default();
        self.clients[at].answer(id, Ok(Tracing { matched, probes, batch, clock: host::clock_point() }));
        self.clients[at].start_stream(trace);
    }
}

/// A time that somebody asked for.
fn time(field: &str, ms: Option<u64>) -> Result<Option<Duration>, WireError> {
    match ms {
        None | Some(1..=LONGEST_MS) => Ok(ms.map(Duration::from_millis)),
        Some(ms) => {
            Err(error(Code::BadRequest, format!("`{field}` is {ms}, and must be from 1 to {LONGEST_MS}")))
        }
    }
}

/// Keys that are to be switched; their objects stay.
fn select(glob: &str) -> Result<Vec<KeyUse>, WireError> {
    let keys = parse(glob)?.keys();
    if keys.is_empty() { Err(no_match(glob)) } else { Ok(keys) }
}

fn parse(glob: &str) -> Result<Selector, WireError> {
    Selector::parse(glob).map_err(|why| error(Code::BadGlob, why.to_string()))
}

fn no_match(glob: &str) -> WireError {
    let near = dormouse_keys::near(glob, NEAR);
    WireError { code: Code::NoMatch, message: format!("no key matches `{glob}`"), near }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(why: dormouse_keys::Error) -> WireError {
    error(Code::Keys, format!("{why}; the keys are as they were"))
}

fn names<'a>(keys: impl IntoIterator<Item = &'a KeyUse>) -> Vec<String> {
    let mut names: Vec<String> = keys.into_iter().map(|k| k.key.name().to_owned()).collect();
    names.dedup();
    names
}

fn batch(report: BatchReport) -> wire::Batch {
    wire::Batch {
        keys: report.keys,
        sites: report.sites,
        pages: report.pages,
        barriers: report.barriers,
        traps: report.traps,
        skipped: report.skipped,
        unsealed: report.unsealed,
        elapsed_ns: report.elapsed.as_nanos() as u64,
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
            batch: batch(report),
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
    KeyInfo {
        name: key.name().to_owned(),
        kind: kind.to_owned(),
        on: key.is_enabled(),
        baseline: key.baseline(),
        leases: key.leases(),
        off_in_ms: holders::off_in_ms(key, &held),
        held,
        sites: used.sites,
        file: key.file().to_owned(),
        line: key.line(),
        object: used.object.to_string(),
        fields: probe.map(fields).unwrap_or_default(),
    }
}

fn fields(probe: &Probe) -> Vec<String> {
    probe.fields().map(str::to_owned).collect()
}

fn probe_info(used: &KeyUse) -> Option<ProbeInfo> {
    let probe = used.key.attached::<Probe>()?;
    Some(ProbeInfo {
        id: probe.id(),
        name: used.key.name().to_owned(),
        file: used.key.file().to_owned(),
        line: used.key.line(),
        object: used.object.to_string(),
        fields: fields(probe),
    })
}

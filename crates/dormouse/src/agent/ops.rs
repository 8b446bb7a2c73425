//! What the agent does for a request.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use dormouse_keys::{Batch, BatchReport, Key, KeyUse, Lease, Listed, Selector};
use serde::Deserialize;

use super::host;
use super::server::{Server, Timed};
use crate::probe::Probe;
use crate::recorder::{Trace, TraceError};
use crate::wire::{
    self, Changed, Code, Held, KeyInfo, Keys, Op, PROTOCOL, ProbeInfo, Request, Tracing, WireError,
};

/// The longest timed lease: a month. Who wants more wants `keep`.
const MAX_LEASE: Duration = Duration::from_secs(31 * 24 * 3600);

/// Leases that a client, and leases for a time that all clients together may hold.
const MAX_LEASES: usize = 256;

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
        if !self.clients[at].greeted && !matches!(request.op, Op::Hello { .. }) {
            return self.clients[at].refuse(
                id,
                Code::BadRequest,
                "the first request of a connection is `hello`",
            );
        }
        match request.op {
            Op::Hello { .. } => {
                self.clients[at].greeted = true;
                self.clients[at].answer(id, Ok(host::hello()));
            }
            Op::Keys { glob } => self.clients[at].answer(id, list(glob.as_deref())),
            Op::On { glob, for_ms, keep } => {
                let answer = self.on(at, &glob, for_ms, keep);
                self.clients[at].answer(id, answer);
            }
            Op::Off { glob, force } => {
                let answer = self.off(at, &glob, force);
                self.clients[at].answer(id, answer);
            }
            Op::Trace { glob } => self.trace(at, id, &glob),
            Op::Stat => self.clients[at].answer(id, Ok(host::stat())),
            Op::Doctor => self.clients[at].answer(id, Ok(host::doctor())),
        }
    }

    fn on(&mut self, at: usize, glob: &str, for_ms: Option<u64>, keep: bool) -> Result<Changed, WireError> {
        let duration = for_ms.map(Duration::from_millis);
        if duration.is_some() && keep {
            return Err(error(Code::BadRequest, "`for_ms` and `keep` exclude each other"));
        }
        if duration.is_some_and(|d| d.is_zero() || d > MAX_LEASE) {
            return Err(error(
                Code::BadRequest,
                "`for_ms` is not between 1 ms and 31 days; use `keep` to leave keys on",
            ));
        }
        let selected = select(glob)?;
        let keys = || selected.iter().map(|k| k.key);
        if keep {
            let report = Batch::new().enable_all(keys()).apply().map_err(refused)?;
            return Ok(changed(&selected, report));
        }
        let held = match duration {
            Some(_) => self.timed.len(),
            None => self.clients[at].leases.len(),
        };
        if held >= MAX_LEASES {
            return Err(error(Code::Busy, format!("{MAX_LEASES} leases are held: switch some off first")));
        }
        let lease = Lease::of(keys()).map_err(refused)?;
        let report = lease.report();
        let owner = self.clients[at].peer;
        match duration {
            Some(duration) => self.timed.push(Timed { lease, owner, until: Instant::now() + duration }),
            None => self.clients[at].leases.push(lease),
        }
        Ok(changed(&selected, report))
    }

    fn off(&mut self, at: usize, glob: &str, force: bool) -> Result<Changed, WireError> {
        let selected = select(glob)?;
        let addresses: HashSet<*const Key> = selected.iter().map(|k| std::ptr::from_ref(k.key)).collect();
        let uid = self.clients[at].peer.uid;
        let timed = self.timed.iter_mut().filter(|t| force || t.owner.uid == uid).map(|t| &mut t.lease);
        let live = self.clients.iter_mut().enumerate().filter(|(other, _)| force || *other == at).flat_map(
            |(_, c)| c.leases.iter_mut().chain(c.tracing.iter_mut().filter_map(|t| t.trace.lease_mut())),
        );
        let mut leases: Vec<&mut Lease> = timed.chain(live).chain(&mut self.stuck).collect();
        let batch = Batch::new().disable_all(selected.iter().map(|k| k.key));
        let report = batch
            .apply_releasing(&mut leases, |key| addresses.contains(&std::ptr::from_ref(key)))
            .map_err(refused)?;
        let mut answer = changed(&selected, report);
        answer.held = self.held(&selected);
        Ok(answer)
    }

    /// Who keeps some of these keys on.
    fn held(&self, selected: &[KeyUse]) -> Vec<Held> {
        let now = Instant::now();
        let addresses: HashSet<*const Key> = selected.iter().map(|k| std::ptr::from_ref(k.key)).collect();
        let count = |lease: &Lease| {
            lease.keys().iter().filter(|&&key| addresses.contains(&std::ptr::from_ref(key))).count()
        };
        let timed = self.timed.iter().map(|t| {
            let left = t.until.saturating_duration_since(now).as_millis() as u64;
            Held { keys: count(&t.lease), uid: t.owner.uid, pid: t.owner.pid, left_ms: Some(left) }
        });
        let live = self.clients.iter().flat_map(|c| {
            let leases = c.leases.iter().chain(c.tracing.iter().filter_map(|t| t.trace.lease()));
            leases.map(move |l| Held { keys: count(l), uid: c.peer.uid, pid: c.peer.pid, left_ms: None })
        });
        let mut held: Vec<Held> = timed.chain(live).filter(|h| h.keys > 0).collect();
        // Whatever is left is the service's own.
        let known: usize = held.iter().map(|h| h.keys).sum();
        let all: usize = selected.iter().map(|k| k.key.leases() as usize).sum();
        if all > known {
            let uid = rustix::process::geteuid().as_raw();
            held.push(Held { keys: all - known, uid, pid: 0, left_ms: None });
        }
        held
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

fn names(keys: &[KeyUse]) -> Vec<String> {
    let mut names: Vec<String> = keys.iter().map(|k| k.key.name().to_owned()).collect();
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

fn changed(selected: &[KeyUse], report: BatchReport) -> Changed {
    Changed { matched: names(selected), changed: report.keys, batch: batch(report), held: Vec::new() }
}

fn list(glob: Option<&str>) -> Result<Keys, WireError> {
    let mut keys = dormouse_keys::list(key_info);
    if let Some(glob) = glob {
        let selector = parse(glob)?;
        keys.retain(|key| selector.matches(&key.name));
        if keys.is_empty() {
            return Err(no_match(glob));
        }
    }
    Ok(Keys { keys })
}

#[cfg(feature = "tracing")]
fn is_tracing(key: &dormouse_keys::Key) -> bool {
    key.attached::<crate::tracing::Callsite>().is_some()
}

#[cfg(not(feature = "tracing"))]
fn is_tracing(_: &dormouse_keys::Key) -> bool {
    false
}

fn key_info(used: Listed<'_>) -> KeyInfo {
    let key = used.key;
    let probe = key.attached::<Probe>();
    let kind = match probe {
        Some(_) => "probe",
        None if is_tracing(key) => "tracing",
        None => "key",
    };
    KeyInfo {
        name: key.name().to_owned(),
        kind: kind.to_owned(),
        on: key.is_enabled(),
        baseline: key.baseline(),
        leases: key.leases(),
        sites: used.sites,
        file: key.file().to_owned(),
        line: key.line(),
        object: used.object.to_string(),
        fields: probe.map(fields).unwrap_or_default(),
    }
}

fn fields(probe: &Probe) -> Vec<String> {
    probe.fields().iter().map(|&f| f.to_owned()).collect()
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

//! `keys`: the keys, and their holders.

use dormouse_keys::{Key, Listed};
use dormouse_protocol::{KeyInfo, Keys, KeysRequest, WireError};

use super::holders::{self, Holders};
use crate::agent::request::{no_match, parse, wire_error};
use crate::agent::{Answered, Asked};
use crate::core::probe::Probe;

impl Answered for KeysRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Keys, WireError> {
        // Before the keys are listed: a listing cannot ask for holds.
        let holders = Holders::of(asked.clients);
        let selector = self.glob.as_deref().map(parse).transpose()?;
        let is_wanted = |key: &Key| {
            selector.as_ref().is_none_or(|selector| selector.matches_at(key.name(), key.file(), key.line()))
        };
        let info = |used: Listed<'_>| is_wanted(used.key).then(|| key_info(used, &holders));
        let keys: Vec<_> = dormouse_keys::try_list(info).map_err(wire_error)?.into_iter().flatten().collect();
        match self.glob {
            Some(glob) if keys.is_empty() => Err(no_match(&glob)),
            _ => Ok(Keys { keys }),
        }
    }
}

#[cfg(feature = "tracing")]
fn is_tracing(key: &Key) -> bool {
    key.attached::<crate::features::tracing::Callsite>().is_some()
}

#[cfg(not(feature = "tracing"))]
fn is_tracing(_: &Key) -> bool {
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
    let mismatches = used.mismatches();
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
        sites_stale: mismatches.stale,
        sites_foreign: mismatches.foreign,
        file: key.file().to_owned(),
        line: key.line(),
        object: used.object.to_string(),
        fields: probe.map(fields).unwrap_or_default(),
    }
}

fn fields(probe: &Probe) -> Vec<String> {
    probe.fields().map(str::to_owned).collect()
}

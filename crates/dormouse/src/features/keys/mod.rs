//! `on`, `off` and `reset`: switching keys for clients.

mod holders;
mod listing;

use std::collections::HashSet;

use dormouse_keys::{Batch, BatchReport, Key, KeyUse, Lease, Selector};
use dormouse_protocol::{Changed, Code, Ended, HeldBy, OffRequest, OnRequest, ResetRequest, WireError};

use self::holders::Holders;
use crate::agent::request::{bad, chosen, names, parse, time, wire_error};
use crate::agent::{Answered, Asked, Client, Companion};
use crate::core::asleep;
use crate::core::rows::batch_stat;
use crate::features::recorder;

/// Leases that a client may hold.
const MAX_LEASES: usize = 256;

impl Answered for OnRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Changed, WireError> {
        let Self { glob, for_ms, dwell_ms, keep } = self;
        if usize::from(for_ms.is_some()) + usize::from(dwell_ms.is_some()) + usize::from(keep) > 1 {
            return Err(bad("`for_ms`, `dwell_ms` and `keep` exclude each other"));
        }
        let (length, dwell) = (time("for_ms", for_ms)?, time("dwell_ms", dwell_ms)?);
        let selector = parse(&glob)?;
        let selected = chosen(&selector)?;
        let suspended = selected.iter().any(|used| used.key.is_suspended());
        if let Some(why) = asleep::limited().filter(|_| suspended) {
            return Err(WireError::new(Code::Asleep, why));
        }
        let companions = asked.companions(&selector, &selected);
        if let Some(companion) = companions.first().filter(|_| keep || length.is_some()) {
            return Err(bad(companion.is_clients));
        }
        let keys = || selected.iter().map(|k| k.key);
        let before = Before::of(&selected);
        if keep {
            let report = Batch::new().enable_all(keys()).apply().map_err(wire_error)?;
            return Ok(before.changed(report));
        }
        if let Some(length) = length {
            let report = Batch::new().hold_all(keys(), asked.user(), length).apply().map_err(wire_error)?;
            let uid = asked.client().peer.uid;
            let held = Holders::of(asked.clients).of_keys(&selected);
            let mut own = held.iter().filter(|h| (h.holder.by, h.holder.uid) == (HeldBy::User, uid));
            let off_in_ms = own.find_map(|h| h.holder.left_ms);
            return Ok(Changed { off_in_ms, ..before.changed(report) });
        }
        let client = asked.client();
        // Leases that `off` has emptied count for nothing.
        client.leases.retain(|lease| !lease.keys().is_empty());
        if client.leases.len() >= MAX_LEASES {
            let message = format!("{MAX_LEASES} leases are held: switch some off first");
            return Err(WireError::new(Code::Busy, message));
        }
        // Before companions, which may hold the key, too: this batch is to be the one that switches
        // it.
        let lease = Lease::of(keys()).map_err(wire_error)?;
        companions.iter().try_for_each(|companion| (companion.begin)(client))?;
        // After them: were one refused, nothing would linger.
        let lease = lease.dwell(dwell.unwrap_or_default()).map_err(wire_error)?;
        let report = lease.report();
        client.leases.push(lease);
        Ok(before.changed(report))
    }
}

impl Answered for OffRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Changed, WireError> {
        let Self { glob, dwell_ms, force, release } = self;
        if release {
            if dwell_ms.is_some() || force {
                return Err(bad("`release` excludes `dwell_ms` and `force`"));
            }
            return asked.release(&glob);
        }
        let dwell = time("dwell_ms", dwell_ms)?;
        let selector = parse(&glob)?;
        let selected = chosen(&selector)?;
        asked.end_companions(&selector, &selected, force);
        let keys = || selected.iter().map(|k| k.key);
        // A glob does not switch off features that the service starts with.
        let (named, start_on): (Vec<_>, Vec<_>) =
            keys().partition(|key| !key.initial() || selector.names(key));
        let batch = Batch::new().disable_all(named).end_all(keys(), (!force).then_some(asked.user()));
        let batch = match dwell {
            Some(dwell) => batch.dwell(dwell),
            // Keys that linger from before go off with the rest.
            None => batch.end_all(keys(), Some(dormouse_keys::Holder::Nobody)),
        };
        let start_on = start_on.into_iter().filter(|key| key.baseline()).count();
        let changed = asked.switch_off(&selected, batch, force)?;
        Ok(Changed { start_on, ..changed })
    }
}

impl Answered for ResetRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Changed, WireError> {
        let selected = chosen(&parse(&self.glob)?)?;
        let keys = || selected.iter().map(|k| k.key);
        let batch = Batch::new()
            .reset_all(keys())
            .end_all(keys(), Some(asked.user()))
            .end_all(keys(), Some(dormouse_keys::Holder::Nobody));
        asked.switch_off(&selected, batch, false)
    }
}

impl Asked<'_> {
    fn user(&self) -> dormouse_keys::Holder {
        dormouse_keys::Holder::User { uid: self.clients[self.at].peer.uid }
    }

    /// The companions of the keys that the selector names.
    fn companions(&self, selector: &Selector, selected: &[KeyUse]) -> Vec<&'static Companion> {
        let is_named = |companion: &&Companion| {
            selected.iter().any(|used| used.key.name() == companion.key && selector.names(used.key))
        };
        self.companions.iter().filter(is_named).collect()
    }

    /// Ends the companions of these keys for this client, or with `force` for all.
    fn end_companions(&mut self, selector: &Selector, selected: &[KeyUse], force: bool) {
        for companion in self.companions(selector, selected) {
            if force {
                self.clients.iter_mut().for_each(companion.end);
            } else {
                (companion.end)(self.client());
            }
        }
    }

    /// Ends what `on` has begun for this connection, and nothing else.
    fn release(&mut self, glob: &str) -> Result<Changed, WireError> {
        let selector = parse(glob)?;
        let selected = chosen(&selector)?;
        self.end_companions(&selector, &selected, false);
        self.switch_off(&selected, Batch::new(), false)
    }

    /// Carries out a batch that gives back the leases of this client on these keys, or with `force`
    /// those of all clients, which are notified.
    fn switch_off(&mut self, selected: &[KeyUse], batch: Batch, force: bool) -> Result<Changed, WireError> {
        let before = Before::of(selected);
        let held: Vec<usize> = self.clients.iter().map(Client::held).collect();
        let addresses: HashSet<*const Key> = selected.iter().map(|k| std::ptr::from_ref(k.key)).collect();
        let whose = self.clients.iter_mut().enumerate().filter(|(other, _)| force || *other == self.at);
        let mut leases: Vec<&mut Lease> = whose.flat_map(|(_, client)| client.leases_mut()).collect();
        let mut recorder = force.then(recorder::engine::lend).flatten();
        leases.extend(recorder.as_mut().and_then(|lent| lent.lease_mut()));
        let report = batch
            .apply_releasing(&mut leases, |key| addresses.contains(&std::ptr::from_ref(key)))
            .map_err(wire_error)?;
        drop(recorder);
        let peer = self.client().peer;
        for (other, (client, held)) in self.clients.iter_mut().zip(held).enumerate() {
            let left = client.held();
            if other != self.at && left < held {
                client.tell(Ended { keys: held - left, left, uid: peer.uid, pid: peer.pid, asleep: false });
            }
        }
        let held = Holders::of(self.clients).of_keys(selected);
        Ok(Changed { held, ..before.changed(report) })
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
            batch: batch_stat(report),
            held: Vec::new(),
        }
    }
}

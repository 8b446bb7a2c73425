//! The holders of the keys that are on.
//!
//! Leases are in four places: with the clients of this agent, with the flight recorder, in the
//! table of holds that end by time, and in the key's own count, which also has the leases of the
//! service's code. So a lease that none of the first three has is the service's.

use std::collections::HashMap;
use std::time::Duration;

use dormouse_keys::{Key, KeyUse, Lease};

use super::client::Client;
use super::descriptors::Peer;
use crate::lookout::recording;
use crate::wire::{HeldBy, HeldKeys, KeyHolder, LeaseHolder};

/// The holders of keys at one moment.
#[derive(Debug)]
pub(super) struct Holders {
    /// One holder a lease, by the key's address.
    known: HashMap<*const Key, Vec<LeaseHolder>>,
    own_uid: u32,
}

impl Holders {
    pub(super) fn of(clients: &[Client]) -> Self {
        let own_uid = rustix::process::geteuid().as_raw();
        let mut known: HashMap<_, Vec<_>> = HashMap::new();
        for client in clients {
            let Peer { uid, pid } = client.peer;
            let holder = LeaseHolder { by: HeldBy::Client, uid, pid, left_ms: None };
            for &key in client.leases().flat_map(Lease::keys) {
                known.entry(std::ptr::from_ref(key)).or_default().push(holder);
            }
        }
        let (recorded, left) = recording::held_keys();
        for key in recorded {
            let holder = LeaseHolder { by: HeldBy::Recorder, uid: own_uid, pid: 0, left_ms: left.map(in_ms) };
            known.entry(std::ptr::from_ref(key)).or_default().push(holder);
        }
        for hold in dormouse_keys::holds() {
            let (by, uid) = match hold.holder {
                dormouse_keys::Holder::User { uid } => (HeldBy::User, uid),
                dormouse_keys::Holder::Nobody => (HeldBy::Nobody, own_uid),
                _ => (HeldBy::Service, own_uid),
            };
            let left_ms = Some(in_ms(hold.left));
            let holder = LeaseHolder { by, uid, pid: 0, left_ms };
            known.entry(std::ptr::from_ref(hold.key)).or_default().push(holder);
        }
        Self { known, own_uid }
    }

    /// The holders of one key, each with its leases.
    pub(super) fn of_key(&self, key: &Key) -> Vec<KeyHolder> {
        let known = self.known.get(&std::ptr::from_ref(key)).map_or(&[][..], Vec::as_slice);
        let mut holders: Vec<KeyHolder> = Vec::new();
        for holder in known {
            match holders.iter_mut().find(|h| is_same(&h.holder, holder)) {
                Some(held) => held.leases += 1,
                None => holders.push(KeyHolder { leases: 1, holder: *holder }),
            }
        }
        let leases = key.leases().saturating_sub(known.len() as u32);
        if leases > 0 {
            let holder = LeaseHolder { by: HeldBy::Service, uid: self.own_uid, pid: 0, left_ms: None };
            holders.push(KeyHolder { leases, holder });
        }
        holders
    }

    /// The holders of some of these keys, each with their number.
    pub(super) fn of_keys(&self, selected: &[KeyUse]) -> Vec<HeldKeys> {
        let mut held: Vec<HeldKeys> = Vec::new();
        for KeyHolder { holder, .. } in selected.iter().flat_map(|used| self.of_key(used.key)) {
            // A lingering key is on its way off.
            if holder.by == HeldBy::Nobody {
                continue;
            }
            match held.iter_mut().find(|h| is_same(&h.holder, &holder)) {
                Some(held) => {
                    held.keys += 1;
                    held.holder.left_ms = held.holder.left_ms.max(holder.left_ms);
                }
                None => held.push(HeldKeys { keys: 1, holder }),
            }
        }
        held
    }
}

/// Rounded up: a hold with time left is not over.
fn in_ms(left: Duration) -> u64 {
    left.as_nanos().div_ceil(1_000_000) as u64
}

/// Whether both are one holder, with a time for both or for neither.
fn is_same(a: &LeaseHolder, b: &LeaseHolder) -> bool {
    (a.by, a.uid, a.pid, a.left_ms.is_some()) == (b.by, b.uid, b.pid, b.left_ms.is_some())
}

/// In how many milliseconds a key goes off, if nothing but time keeps it on.
pub(super) fn off_in_ms(key: &Key, held: &[KeyHolder]) -> Option<u64> {
    let left: Option<Vec<u64>> = held.iter().map(|h| h.holder.left_ms).collect();
    left?.into_iter().max().filter(|_| !key.baseline())
}

//! Who holds which keys on.
//!
//! Three know of leases: the clients of this agent, what ends by time, and the key's own count, in which are also the
//! leases that the service's code has in hand. What neither of the first two accounts for is the service's.

use std::collections::HashMap;

use dormouse_keys::{Key, KeyUse, Lease};

use super::server::Server;
use crate::wire::{Held, HeldBy, Holder, KeyHolder};

/// Who is known to hold keys at one moment.
#[derive(Debug)]
pub(super) struct Holders {
    /// One holder a lease, by the key's address.
    known: HashMap<*const Key, Vec<Holder>>,
    own_uid: u32,
}

impl Holders {
    pub(super) fn of(server: &Server) -> Self {
        let own_uid = rustix::process::geteuid().as_raw();
        let mut known: HashMap<_, Vec<_>> = HashMap::new();
        for client in &server.clients {
            let holder =
                Holder { by: HeldBy::Client, uid: client.peer.uid, pid: client.peer.pid, left_ms: None };
            for &key in client.leases().flat_map(Lease::keys) {
                known.entry(std::ptr::from_ref(key)).or_default().push(holder);
            }
        }
        for hold in dormouse_keys::holds() {
            let (by, uid) = match hold.holder {
                dormouse_keys::Holder::User { uid } => (HeldBy::User, uid),
                dormouse_keys::Holder::Nobody => (HeldBy::Nobody, own_uid),
                _ => (HeldBy::Service, own_uid),
            };
            // Rounded up: what is still held is not over.
            let left_ms = Some(hold.left.as_nanos().div_ceil(1_000_000) as u64);
            known.entry(std::ptr::from_ref(hold.key)).or_default().push(Holder { by, uid, pid: 0, left_ms });
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
            let holder = Holder { by: HeldBy::Service, uid: self.own_uid, pid: 0, left_ms: None };
            holders.push(KeyHolder { leases, holder });
        }
        holders
    }

    /// Who keeps some of these keys on, and how many.
    pub(super) fn of_keys(&self, selected: &[KeyUse]) -> Vec<Held> {
        let mut held: Vec<Held> = Vec::new();
        for KeyHolder { holder, .. } in selected.iter().flat_map(|used| self.of_key(used.key)) {
            // What lingers is on its way off.
            if holder.by == HeldBy::Nobody {
                continue;
            }
            match held.iter_mut().find(|h| is_same(&h.holder, &holder)) {
                Some(held) => {
                    held.keys += 1;
                    held.holder.left_ms = held.holder.left_ms.max(holder.left_ms);
                }
                None => held.push(Held { keys: 1, holder }),
            }
        }
        held
    }
}

/// Whether it is the same holder, and holds both for a time or neither.
fn is_same(a: &Holder, b: &Holder) -> bool {
    (a.by, a.uid, a.pid, a.left_ms.is_some()) == (b.by, b.uid, b.pid, b.left_ms.is_some())
}

/// How many milliseconds are left of a key's being on, if nothing but time keeps it on.
pub(super) fn off_in_ms(key: &Key, held: &[KeyHolder]) -> Option<u64> {
    let left: Option<Vec<u64>> = held.iter().map(|h| h.holder.left_ms).collect();
    left?.into_iter().max().filter(|_| !key.baseline())
}

//! The holders of the keys that are on.
//!
//! Leases are in four places: with the clients of this agent, with the flight recorder, in the
//! table of holds that end by time, and in the key's own count, which also includes the leases of
//! the service's code and of its triggers. So a lease that is in none of the first three belongs to
//! the service.

use std::collections::HashMap;
use std::time::Duration;

use dormouse_keys::{Key, KeyUse};
use dormouse_protocol::{HeldBy, HeldKeys, KeyHolder, LeaseHolder};

use crate::agent::{Client, Peer};
use crate::features::recorder::engine::held_keys;

/// The holders of keys at one moment.
#[derive(Debug)]
pub(super) struct Holders {
    /// By the key's address.
    known: HashMap<*const Key, Known>,
    own_uid: u32,
}

/// The holders of one key that are known.
#[derive(Debug, Default)]
struct Known {
    /// One for each lease, and for each client's part of a lease.
    holders: Vec<LeaseHolder>,
    /// The leases that one holder has alone.
    own: u32,
    /// The leases in which several clients may have a part.
    shared: u32,
}

impl Holders {
    pub(super) fn of(clients: &[Client]) -> Self {
        let own_uid = rustix::process::geteuid().as_raw();
        let mut known: HashMap<_, Known> = HashMap::new();
        for client in clients {
            let Peer { uid, pid } = client.peer;
            let holder =
                LeaseHolder { by: HeldBy::Client, uid, pid, client: client.name.clone(), left_ms: None };
            for key in client.keys() {
                known.entry(std::ptr::from_ref(key)).or_default().add(holder.clone());
            }
            for state in client.states.iter() {
                let keys = state.shared_keys();
                for (at, &key) in keys.iter().enumerate() {
                    let known = known.entry(std::ptr::from_ref(key)).or_default();
                    // Its second lease on this key may be another state's second one, too.
                    let before = keys[..at].iter().filter(|&&other| std::ptr::eq(other, key)).count();
                    known.share(holder.clone(), before as u32 + 1);
                }
            }
        }
        let own = |by, left_ms| LeaseHolder { by, uid: own_uid, left_ms, ..LeaseHolder::default() };
        let (recorded, left) = held_keys();
        for key in recorded {
            let holder = own(HeldBy::Recorder, left.map(in_ms));
            known.entry(std::ptr::from_ref(key)).or_default().add(holder);
        }
        for hold in dormouse_keys::holds() {
            let (by, uid) = match hold.holder {
                dormouse_keys::Holder::User { uid } => (HeldBy::User, uid),
                dormouse_keys::Holder::Nobody => (HeldBy::Nobody, own_uid),
                _ => (HeldBy::Service, own_uid),
            };
            let holder = LeaseHolder { uid, ..own(by, Some(in_ms(hold.left))) };
            known.entry(std::ptr::from_ref(hold.key)).or_default().add(holder);
        }
        Self { known, own_uid }
    }

    /// The holders of one key, each with its leases.
    pub(super) fn of_key(&self, key: &Key) -> Vec<KeyHolder> {
        let mut holders: Vec<KeyHolder> = Vec::new();
        let known = self.known.get(&std::ptr::from_ref(key));
        for holder in known.iter().flat_map(|known| &known.holders) {
            match holders.iter_mut().find(|h| is_same(&h.holder, holder)) {
                Some(held) => held.leases += 1,
                None => holders.push(KeyHolder { leases: 1, holder: holder.clone() }),
            }
        }
        let leases = key.leases().saturating_sub(known.map_or(0, |known| known.own + known.shared));
        if leases > 0 {
            let holder = LeaseHolder { by: HeldBy::Service, uid: self.own_uid, ..LeaseHolder::default() };
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

impl Known {
    /// Adds the holder of one lease.
    fn add(&mut self, holder: LeaseHolder) {
        self.holders.push(holder);
        self.own += 1;
    }

    /// Adds a holder with a part of the lease of that number: others have theirs in the same one.
    fn share(&mut self, holder: LeaseHolder, number: u32) {
        self.holders.push(holder);
        self.shared = self.shared.max(number);
    }
}

/// Rounded up: a hold with time left is not over.
fn in_ms(left: Duration) -> u64 {
    left.as_nanos().div_ceil(1_000_000) as u64
}

/// Whether both are one holder, with a time for both or for neither.
fn is_same(a: &LeaseHolder, b: &LeaseHolder) -> bool {
    let of = |h: &LeaseHolder| (h.by, h.uid, h.pid, h.left_ms.is_some());
    of(a) == of(b) && a.client == b.client
}

/// In how many milliseconds a key goes off, if nothing but time keeps it on.
pub(super) fn off_in_ms(key: &Key, held: &[KeyHolder]) -> Option<u64> {
    let left: Option<Vec<u64>> = held.iter().map(|h| h.holder.left_ms).collect();
    left?.into_iter().max().filter(|_| !key.baseline())
}

#[cfg(all(test, not(any(dormouse_fallback, miri))))]
mod tests {
    use super::*;

    dormouse_keys::static_key! { static KEY: "holders.key" = false; }

    #[test]
    fn a_shared_lease_hides_no_other() {
        dormouse_testkit::in_child(|| {
            let _leases = [(); 2].map(|()| KEY.acquire().unwrap());
            let mut known = Known::default();
            for pid in [7, 8] {
                known.share(LeaseHolder { by: HeldBy::Client, pid, ..LeaseHolder::default() }, 1);
            }
            let known = HashMap::from([(std::ptr::from_ref(KEY.key()), known)]);
            let held = Holders { known, own_uid: 0 }.of_key(KEY.key());
            let by: Vec<_> = held.iter().map(|held| (held.holder.by, held.holder.pid, held.leases)).collect();
            assert_eq!(by, [(HeldBy::Client, 7, 1), (HeldBy::Client, 8, 1), (HeldBy::Service, 0, 1)]);
        });
    }
}

//! `sleep` and `wake`: all that dormouse does in this process pauses, and goes on.
//!
//! | what | asleep | woken |
//! |---|---|---|
//! | clients' leases, counts, times, profiles, watches, traces | end, and the clients are told | begin anew by request |
//! | holds that users have for a time, of the service's own keys | end | |
//! | keys of probes and features, whoever holds them | suspended | as their baselines and leases are by then |
//! | countings, and times of tasks, of the environment and the service's code | nothing is counted; totals stand still | go on |
//! | the recorder, triggers | pause, with what they have | go on |
//! | files that are being written | finished at once: their profiles are shorter | |
//! | groups that are published | no thread shows one | shown again |
//!
//! The service's own keys, which are branches of its code, stay as they are, and so do keys that
//! begin on (warnings, errors). So do budgets of tasks, and the watches and profiles that the
//! service's own code has begun. A budget of a group stands still with the group's CPU time.
//!
//! The counts stop before their key is suspended, and begin after it is resumed: a span that began
//! before would charge the whole sleep to its group.

use dormouse_keys::{Batch, Holder, Key, KeyUse, Lease, Selector};
use dormouse_protocol::{Code, Ended, SleepRequest, Slept, WakeRequest, WireError, Woken};

use crate::agent::request::{bad, wire_error};
use crate::agent::{Answered, Asked, Client, Peer};
use crate::core::asleep::{self, Part, asleep, limited};
use crate::features::{profile, publish, watch};
use crate::lookout::LOOKOUT;

impl Answered for SleepRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<Slept, WireError> {
        if let Some(asleep) = asleep() {
            return Ok(Slept { asleep, ..Slept::default() });
        }
        publish::suspend(true);
        let keys = dormouse_events::suspend(true)
            .map_err(|why| WireError::new(Code::Events, why.to_string()))
            .and_then(|()| suspend_keys(asked))
            .inspect_err(|_| stay_awake())?;
        let Peer { uid, pid } = asked.client().peer;
        let mut clients = 0;
        for (client, keys) in asked.clients.iter_mut().zip(keys.of_clients) {
            clients += usize::from(keys > 0 || client.has_work());
            client.end_work(Ended { keys, left: 0, uid, pid, asleep: true });
        }
        forget_gap();
        asleep::begin(uid, pid);
        LOOKOUT.wake();
        Ok(Slept { asleep: asleep().unwrap_or_default(), keys: keys.switched, clients })
    }
}

impl Answered for WakeRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<Woken, WireError> {
        let was = asleep();
        if was.is_none() && limited().is_none() {
            return Ok(Woken::default());
        }
        let keys = resume_all()?;
        LOOKOUT.wake();
        Ok(Woken { was, keys })
    }
}

/// Suspends one part: keys whoever holds them, profiles and watches of clients.
pub(crate) fn suspend(part: Part, clients: &mut [Client]) -> Result<(), WireError> {
    match part {
        Part::Records => suspend_keys_that(|key| key.is_instrument() && !key.initial()),
        Part::Times => {
            suspend_keys_that(|key| ["dormouse.waits", "dormouse.locks"].contains(&key.name()))?;
            // The run ends with it. Otherwise a task that is woken now would be runnable for good,
            // because no poll is seen that ends it, and a lock would keep its holder.
            forget_gap();
            Ok(())
        }
        Part::Counts => {
            dormouse_events::suspend(true).map_err(|why| WireError::new(Code::Events, why.to_string()))?;
            suspend_keys_that(|key| key.name() == "dormouse.switch").inspect_err(|_| {
                // Else they would stand still for good: `wake` resumes only what is marked as
                // suspended.
                let _ = dormouse_events::suspend(false);
            })
        }
        Part::Profiles => {
            profile::verb::end_all(clients);
            Ok(())
        }
        Part::Watches => {
            watch::verb::end_all(clients);
            Ok(())
        }
    }
}

fn suspend_keys_that(is_its: impl Fn(&&Key) -> bool) -> Result<(), WireError> {
    let all = all_keys()?;
    let batch = Batch::new().suspend_all(all.iter().map(|used| used.key).filter(is_its));
    batch.apply().map(drop).map_err(wire_error)
}

/// Resumes all that is suspended, by `sleep` or by the limit; the number of keys that are on again.
pub(crate) fn resume_all() -> Result<usize, WireError> {
    let all = all_keys()?;
    forget_gap();
    let resumed = all.iter().map(|used| used.key).filter(|key| key.is_suspended());
    let report = Batch::new().resume_all(resumed).apply().map_err(wire_error)?;
    forget_gap();
    resume_counts();
    asleep::end();
    Ok(report.keys)
}

/// Has tasks and locks forget what began before.
fn forget_gap() {
    dormouse_waits::forget_gap();
    dormouse_locks::forget_gap();
}

/// Keys that went off.
struct Switched {
    switched: usize,
    /// By client, the keys that it has held.
    of_clients: Vec<usize>,
}

/// Suspends the keys of instruments, and ends all leases of clients, in one batch.
fn suspend_keys(asked: &mut Asked<'_>) -> Result<Switched, WireError> {
    let all = all_keys()?;
    let (instruments, own): (Vec<&Key>, Vec<&Key>) =
        all.iter().map(|used| used.key).partition(|key| is_instrument(key));
    let mut batch = Batch::new().suspend_all(instruments.into_iter().filter(|key| !key.initial()));
    for hold in dormouse_keys::holds() {
        let is_users = matches!(hold.holder, Holder::User { .. });
        if is_users && own.iter().any(|key| std::ptr::eq(*key, hold.key)) {
            batch = batch.end_all([hold.key], Some(hold.holder));
        }
    }
    let of_clients = asked.clients.iter().map(Client::held).collect();
    let mut leases: Vec<&mut Lease> = asked.clients.iter_mut().flat_map(Client::leases_mut).collect();
    let report = batch.apply_releasing(&mut leases, |_| true).map_err(wire_error)?;
    Ok(Switched { switched: report.keys, of_clients })
}

/// Whether the key is one of dormouse's, as opposed to a branch of the service's.
fn is_instrument(key: &Key) -> bool {
    key.is_instrument() || key.name().starts_with("dormouse.")
}

fn all_keys() -> Result<Vec<KeyUse>, WireError> {
    let all = Selector::parse("*,dormouse.*").map_err(|why| bad(why.to_string()))?;
    all.try_keys().map_err(wire_error)
}

/// `sleep` was refused: what it has stopped goes on, but not what the limit has suspended.
fn stay_awake() {
    if asleep::is_limited(Part::Counts) {
        publish::suspend(false);
    } else {
        resume_counts();
    }
}

fn resume_counts() {
    // Refused alone to a signal handler over a change, and to sets that were counted before.
    let _ = dormouse_events::suspend(false);
    publish::suspend(false);
}

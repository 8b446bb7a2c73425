//! Keys that were switched, and their holders, in words.

use std::time::{SystemTime, UNIX_EPOCH};

use dormouse_protocol::{Changed, Ended, HeldBy, HeldKeys, LeaseHolder};
use serde::Serialize;

use crate::duration::short;
use crate::exit::Outcome;
use crate::output::{Context, FAIR, GOOD, HEAD};
use crate::text::{Clean, clean, count};
use crate::user::User;

/// A change of keys: the JSON of `on`, `off` and `reset`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Switched<'a> {
    pub(crate) state: &'static str,
    /// The reason why they stay on: `foreground`, `timed`, `kept`; `dwell` where they go off later,
    /// else `now`.
    pub(crate) mode: &'static str,
    pub(crate) pid: u32,
    /// When they go off, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) off_at_unix_ms: Option<u64>,
    #[serde(flatten)]
    pub(crate) changed: &'a Changed,
    /// The user that has switched the keys for an HTTP client, which may belong to another user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<User>,
}

impl<'a> Switched<'a> {
    /// A change for the client of `context`.
    pub(crate) fn new(
        (state, mode): (&'static str, &'static str),
        pid: u32,
        off_at_unix_ms: Option<u64>,
        changed: &'a Changed,
        context: &Context,
    ) -> Switched<'a> {
        Switched { state, mode, pid, off_at_unix_ms, changed, by: context.is_remote().then(User::own) }
    }

    /// Prints the change, in the form that was asked for.
    pub(crate) fn print(&self, context: &mut Context) -> Outcome<()> {
        if context.json {
            return context.document(self);
        }
        let Changed { batch, changed, names, matched, .. } = self.changed;
        let how = match *changed as u64 {
            0 => "no key changed".to_owned(),
            n => {
                let sites = count(batch.sites as u64, "site");
                format!("{} changed, {sites} in {}", count(n, "key"), short(batch.elapsed_ns))
            }
        };
        context.line(format_args!("{HEAD}{}{HEAD:#}: {how}", self.state))?;
        // An older agent names the keys that matched, not those that changed.
        for name in names.as_ref().unwrap_or(matched) {
            context.line(format_args!("  {GOOD}{}{GOOD:#}", Clean(name)))?;
        }
        Ok(())
    }
}

/// The time that is `ms` milliseconds from now, since 1970.
pub(crate) fn unix_ms_in(ms: u64) -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(now.as_millis()).ok()?.checked_add(ms)
}

/// A number of milliseconds as text.
pub(crate) fn short_ms(ms: u64) -> String {
    short(ms.saturating_mul(1_000_000))
}

/// Notes which keys are still on, and by which holders; false if none is.
pub(crate) fn note_held(changed: &Changed, context: &Context) -> bool {
    for held in &changed.held {
        context.note(format_args!("{FAIR}still on:{FAIR:#} {}", held_text(held)));
    }
    !changed.held.is_empty()
}

/// How many keys a holder keeps on, and for how long.
fn held_text(held: &HeldKeys) -> String {
    let keys = count(held.keys as u64, "key");
    let end = match held.holder {
        LeaseHolder { left_ms: Some(_), .. } => "",
        LeaseHolder { by: HeldBy::Client, .. } => ", as long as it stays connected",
        LeaseHolder { by: HeldBy::Recorder, .. } => ", until `dormouse record TARGET --off`",
        _ => ", as long as it likes",
    };
    format!("{keys} by {}{end}", holder_text(&held.holder))
}

/// A holder, and how much longer it holds, if that is known.
pub(crate) fn holder_text(holder: &LeaseHolder) -> String {
    let name = match holder.by {
        HeldBy::Client if holder.client.is_empty() => {
            format!("process {} of user {}", holder.pid, holder.uid)
        }
        HeldBy::Client => {
            format!("process {} ({}) of user {}", holder.pid, clean(&holder.client), holder.uid)
        }
        HeldBy::User => format!("user {}", holder.uid),
        HeldBy::Recorder => "the flight recorder".into(),
        HeldBy::Service => "the service itself (its code or a trigger)".into(),
        HeldBy::Nobody => "the dwell time".into(),
        _ => "somebody".into(),
    };
    match holder.left_ms {
        Some(left) => format!("{name} for {} more", short_ms(left)),
        None => name,
    }
}

/// Notes that another client ended leases of this one.
pub(crate) fn note_ended(ended: &Ended, context: &Context) {
    let keys = count(ended.keys as u64, "key");
    let by = match ended.pid {
        0 => format!("user {}", ended.uid),
        pid => format!("process {pid} of user {}", ended.uid),
    };
    let left = match ended.left {
        0 => "nothing is held any more".to_owned(),
        n => format!("{} still held", count(n as u64, "key")),
    };
    if ended.asleep {
        context.note(format_args!(
            "{FAIR}dormouse was put to sleep by {by}:{FAIR:#} {keys} off; `dormouse wake` wakes it"
        ));
        return;
    }
    context.note(format_args!("{FAIR}switched off by force:{FAIR:#} {keys}, by {by}; {left}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(by: HeldBy, left_ms: Option<u64>) -> HeldKeys {
        HeldKeys { keys: 2, holder: LeaseHolder { by, uid: 1000, pid: 7, left_ms, client: String::new() } }
    }

    #[test]
    fn a_holder_is_named_with_its_end() {
        for (by, left_ms, expected) in [
            (HeldBy::User, Some(30_000), "2 keys by user 1000 for 30.0 s more"),
            (HeldBy::Client, None, "2 keys by process 7 of user 1000, as long as it stays connected"),
            (
                HeldBy::Service,
                None,
                "2 keys by the service itself (its code or a trigger), as long as it likes",
            ),
            (HeldBy::Recorder, None, "2 keys by the flight recorder, until `dormouse record TARGET --off`"),
            (
                HeldBy::Service,
                Some(1_500),
                "2 keys by the service itself (its code or a trigger) for 1.50 s more",
            ),
        ] {
            assert_eq!(held_text(&held(by, left_ms)), expected);
        }
        let named = LeaseHolder { client: "dormouse stat 1.0\n".into(), ..held(HeldBy::Client, None).holder };
        assert_eq!(holder_text(&named), "process 7 (dormouse stat 1.0\\n) of user 1000");
    }
}

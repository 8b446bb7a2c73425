//! The keys of an experiment: whether it may switch them, and switching them.
//!
//! Everything that it switches on is a lease of its connection. So the keys return to their state
//! when the experiment ends, in whatever way it ends.

use dormouse_protocol::{Changed, HeldBy, Hello, KeyInfo, Keys, KeysRequest, OffRequest, OnRequest};

use crate::client::Client;
use crate::exit::{Exit, Failure, Outcome};
use crate::render::leases::holder_text;
use crate::text::{clean, count, list};

/// The key that keeps experiments on one process apart: the client whose request switched it on is
/// the only one.
const EXPERIMENT: &str = "dormouse.experiment";

/// Keys that have no other holder.
#[derive(Debug)]
pub(super) struct Switch {
    glob: String,
    /// Their names, without duplicates.
    pub(super) names: Vec<String>,
    /// How many they are.
    keys: usize,
    pub(super) is_on: bool,
    /// How often they were switched, and how long that took in all.
    pub(super) times: u64,
    pub(super) took_ns: u64,
}

impl Switch {
    /// Takes the process for this experiment alone, and sees that the keys are off and will stay
    /// off while it leaves them alone.
    pub(super) fn take(client: &mut Client, hello: &Hello, glob: &str) -> Outcome<Switch> {
        if !hello.ops.iter().any(|op| op == "release") {
            let message = format!("its dormouse ({}) cannot be experimented with", hello.version);
            return Err(
                Failure::new(Exit::Unsupported, message).hint("build the service with a newer dormouse")
            );
        }
        begin_alone(client)?;
        // This ends nothing, because nothing is held yet, and returns which keys a request would
        // switch.
        let found: Changed = client.call(off(glob))?;
        let mut names = found.matched;
        names.sort_unstable();
        names.dedup();
        if names.iter().any(|name| name == EXPERIMENT) {
            let message = format!("`{EXPERIMENT}` is on while any experiment lasts");
            return Err(Failure::new(Exit::Usage, message)
                .hint("leave it out: as in 'dormouse.*,!dormouse.experiment'"));
        }
        let Keys { mut keys } = client.call(KeysRequest { glob: Some(glob.to_owned()) })?;
        keys.retain(|key| names.contains(&key.name));
        if let Some(key) = keys.iter().find(|key| key.on) {
            return Err(is_on(key, client));
        }
        Ok(Switch { glob: glob.to_owned(), names, keys: keys.len(), is_on: false, times: 0, took_ns: 0 })
    }

    /// Switches them, unless they are that way.
    pub(super) fn set(&mut self, client: &mut Client, is_on: bool) -> Outcome<()> {
        if self.is_on == is_on {
            return Ok(());
        }
        let changed = if is_on { client.call(on(&self.glob))? } else { client.call(off(&self.glob))? };
        self.is_on = is_on;
        self.times += 1;
        self.took_ns += changed.batch.elapsed_ns;
        if changed.changed == self.keys {
            return Ok(());
        }
        // The figures of an off that was no off are worth nothing.
        let state = if is_on { "on" } else { "off" };
        let who: Vec<String> = changed.held.iter().map(|held| holder_text(&held.holder)).collect();
        let by = if is_on || who.is_empty() { String::new() } else { format!(": held by {}", list(&who, 4)) };
        let message = format!(
            "{} went {state}, and not {}: another client switches them, too{by}",
            count(changed.changed as u64, "key"),
            self.keys,
        );
        Err(Failure::failed(message).hint("dormouse keys TARGET GLOB shows who holds them"))
    }

    /// Gives all back: the keys, and the process for other experiments.
    pub(super) fn end(&mut self, client: &mut Client) -> Outcome<()> {
        self.set(client, false)?;
        client.call(off(EXPERIMENT)).map(|_: Changed| ())
    }
}

fn on(glob: &str) -> OnRequest {
    OnRequest { glob: glob.to_owned(), for_ms: None, dwell_ms: None, keep: false }
}

fn off(glob: &str) -> OffRequest {
    OffRequest { glob: glob.to_owned(), dwell_ms: None, force: false, release: true }
}

/// Takes the process for this experiment alone.
fn begin_alone(client: &mut Client) -> Outcome<()> {
    let changed: Changed = client.call(on(EXPERIMENT))?;
    if changed.changed == 1 {
        return Ok(());
    }
    let Keys { keys } = client.call(KeysRequest { glob: Some(EXPERIMENT.into()) })?;
    if let Some(key) = keys.iter().find(|key| key.baseline) {
        return Err(is_on(key, client));
    }
    let own = std::process::id();
    let held = keys.iter().flat_map(|key| &key.held).map(|held| &held.holder);
    let others = held.filter(|holder| holder.by != HeldBy::Client || holder.pid != own);
    let who: Vec<String> = others.map(holder_text).collect();
    let by = if who.is_empty() { "somebody".to_owned() } else { list(&who, 4) };
    let message = format!("an experiment is running on {} already, by {by}", client.who);
    Err(Failure::failed(message).hint("two experiments at once would measure each other: wait for its end"))
}

/// Why a key that is on cannot be experimented with.
fn is_on(key: &KeyInfo, client: &Client) -> Failure {
    let name = clean(&key.name);
    let who: Vec<String> = key.held.iter().map(|held| holder_text(&held.holder)).collect();
    if key.baseline && key.initial {
        let hint =
            format!("`dormouse off {} {name}` before, and `dormouse reset {0} {name}` after", client.pid);
        return Failure::failed(format!("{name} is on: the service starts with it on")).hint(hint);
    }
    if key.baseline {
        let hint =
            format!("`dormouse off {} {name}` before, and `dormouse on {0} {name} --keep` after", client.pid);
        return Failure::failed(format!("{name} is on: it was left on for good")).hint(hint);
    }
    let message = format!("{name} is on: held by {}", list(&who, 4));
    Failure::failed(message)
        .hint("an experiment needs it off in between: wait for them, or `dormouse off --force`")
}

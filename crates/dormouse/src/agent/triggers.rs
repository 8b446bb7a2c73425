//! The triggers, for clients: they belong to the service, and stay when the client goes.

use std::time::Duration;

use dormouse_protocol::{Code, TriggersAnswer, WireError};

use crate::features::triggers::{self, TriggerError};

/// How long the agent waits for the lookout, which may be waiting for a disk.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) fn list() -> Result<TriggersAnswer, WireError> {
    triggers::list_within(PATIENCE).map_err(refusal)
}

pub(super) fn add(rules: &str) -> Result<TriggersAnswer, WireError> {
    triggers::add_for_client(rules).map_err(refusal)?;
    list()
}

pub(super) fn remove(number: u64) -> Result<TriggersAnswer, WireError> {
    triggers::remove(number).map_err(refusal)?;
    list()
}

/// Begins to write a file; the answer has that one alone.
pub(super) fn save() -> Result<TriggersAnswer, WireError> {
    let number = triggers::save().map_err(refusal)?;
    let mut answer = list()?;
    answer.triggers.retain(|row| row.number == number);
    Ok(answer)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refusal(why: TriggerError) -> WireError {
    let code = match &why {
        TriggerError::Rule(_) => Code::BadRule,
        _ => Code::NoTrigger,
    };
    let near = match &why {
        TriggerError::NoField { near, .. } => near.clone(),
        _ => Vec::new(),
    };
    WireError { near, ..WireError::new(code, why.to_string()) }
}

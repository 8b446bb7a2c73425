//! The triggers, for clients: they belong to the service, and stay when the client goes.

use std::time::Duration;

use dormouse_protocol::{
    Code, RecordSaveRequest, TriggerAddRequest, TriggerRemoveRequest, TriggersAnswer, TriggersRequest,
    WireError,
};

use super::TriggerError;
use crate::agent::{Answered, Asked};
use crate::features::triggers;

/// How long the agent waits for the lookout, which may be waiting for a disk.
const PATIENCE: Duration = Duration::from_secs(3);

impl Answered for TriggersRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<TriggersAnswer, WireError> {
        list()
    }
}

impl Answered for TriggerAddRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<TriggersAnswer, WireError> {
        triggers::add_for_client(&self.rules).map_err(wire_error)?;
        list()
    }
}

impl Answered for TriggerRemoveRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<TriggersAnswer, WireError> {
        triggers::remove(self.number).map_err(wire_error)?;
        list()
    }
}

impl Answered for RecordSaveRequest {
    /// Begins to write a file; the answer has that one alone.
    fn answer(self, _: &mut Asked<'_>) -> Result<TriggersAnswer, WireError> {
        let number = triggers::save().map_err(wire_error)?;
        let mut answer = list()?;
        answer.triggers.retain(|row| row.number == number);
        Ok(answer)
    }
}

fn list() -> Result<TriggersAnswer, WireError> {
    triggers::list_within(PATIENCE).map_err(wire_error)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn wire_error(why: TriggerError) -> WireError {
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

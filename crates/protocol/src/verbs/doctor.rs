//! `doctor`: what works in the process.

use serde::{Deserialize, Serialize};

use crate::verb::{Each, Memory, SHORT_ANSWER, Verb};

/// Checks what works in this process; [`Doctor`] answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoctorRequest {}

impl Verb for DoctorRequest {
    const NAME: &'static str = "doctor";
    const LACKS: &'static str = "checks nothing";
    const MEMORY: Memory = Memory::each(&[Each::Key]);
    const LONGEST_ANSWER: usize = SHORT_ANSWER;
    type Answer = Doctor;
}

/// Answer to `doctor`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Doctor {
    /// One for each thing that the agent looked at.
    pub checks: Vec<Check>,
}

/// One thing that works, works with a limit, or does not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Check {
    /// Its name, as `keys.write`.
    pub name: String,
    /// The verdict.
    pub state: CheckState,
    /// The observation.
    pub detail: String,
    /// The one setting to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Verdict of a [`Check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Works, with a limit that the detail names.
    Limited,
    /// Does not work here.
    Unavailable,
}

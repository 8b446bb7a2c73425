//! `doctor`: what works in the process.

use serde::{Deserialize, Serialize};

use crate::verb::{Each, Memory, SHORT_ANSWER, Verb};

/// Checks what works in this process; the answer is [`Doctor`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoctorRequest {}

impl Verb for DoctorRequest {
    const NAME: &'static str = "doctor";
    const LACKS: &'static str = "checks nothing";
    const MEMORY: Memory = Memory::each(&[Each::Key, Each::Group]);
    const LONGEST_ANSWER: usize = SHORT_ANSWER;
    const WHILE_ASLEEP: bool = true;
    type Answer = Doctor;
}

/// Answer to `doctor`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Doctor {
    /// One entry for each check.
    pub checks: Vec<Check>,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Check {
    /// The check's name, such as `keys.write`.
    pub name: String,
    /// The result.
    pub state: CheckState,
    /// The observation, in words.
    pub detail: String,
    /// The one setting to change, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// The result of a [`Check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CheckState {
    /// It works without limits.
    Ok,
    /// It works, with a limit that the detail names.
    Limited,
    /// It does not work here.
    Unavailable,
}

//! `sleep` and `wake`: everything that dormouse does in a service ends, and comes back.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::verb::{Each, Memory, SHORT_ANSWER, Verb};

/// Puts dormouse to sleep in this process: keys go off, nothing is counted or measured, triggers
/// and the recorder pause, and what the agent does for its clients ends. The answer is [`Slept`].
/// Until [`WakeRequest`] the agent refuses all requests but a few, with
/// [`Code::Asleep`](crate::Code).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SleepRequest {}

impl Verb for SleepRequest {
    const NAME: &'static str = "sleep";
    const LACKS: &'static str = "cannot be put to sleep";
    const MEMORY: Memory = Memory::each(&[Each::Key, Each::Group]);
    const LONGEST_ANSWER: usize = SHORT_ANSWER;
    const WHILE_ASLEEP: bool = true;
    type Answer = Slept;
}

/// Wakes dormouse: what was suspended goes on. The answer is [`Woken`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WakeRequest {}

impl Verb for WakeRequest {
    const NAME: &'static str = "wake";
    const LACKS: &'static str = "cannot be put to sleep";
    const MEMORY: Memory = Memory::each(&[Each::Key, Each::Group]);
    const LONGEST_ANSWER: usize = SHORT_ANSWER;
    const WHILE_ASLEEP: bool = true;
    type Answer = Woken;
}

/// The sleep of a process: for how long, and by whom.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Asleep {
    /// For how long dormouse has been asleep, in milliseconds.
    pub for_ms: u64,
    /// The user that put it to sleep.
    pub uid: u32,
    /// The process that did so, as the service sees it; 0 if it cannot see that process.
    pub pid: u32,
}

impl fmt::Display for Asleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = Duration::from_millis(self.for_ms).as_secs();
        let (number, unit) = match seconds {
            0..120 => (seconds, "s"),
            120..7200 => (seconds / 60, "min"),
            _ => (seconds / 3600, "h"),
        };
        write!(f, "asleep for {number} {unit}, by ")?;
        match self.pid {
            0 => write!(f, "user {}", self.uid),
            pid => write!(f, "process {pid} of user {}", self.uid),
        }
    }
}

/// Answer to `sleep`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Slept {
    /// The sleep, which may be an earlier one that goes on.
    pub asleep: Asleep,
    /// Keys that went off.
    pub keys: usize,
    /// Clients whose work ended.
    pub clients: usize,
}

/// Answer to `wake`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Woken {
    /// The sleep that has ended; absent if dormouse was awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<Asleep>,
    /// Keys that are on again.
    pub keys: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_names_its_length_and_its_cause() {
        let asleep = Asleep { for_ms: 184_000, uid: 1000, pid: 7 };
        assert_eq!(asleep.to_string(), "asleep for 3 min, by process 7 of user 1000");
        assert_eq!(Asleep { pid: 0, for_ms: 1, ..asleep }.to_string(), "asleep for 0 s, by user 1000");
    }
}

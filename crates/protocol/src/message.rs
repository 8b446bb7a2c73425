//! The lines: a request, its answer, and an error.

use serde::{Deserialize, Serialize};

use crate::Op;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Request {
    /// Protocol version.
    pub v: u32,
    /// A number that the client chooses; the answer repeats it.
    pub id: u64,
    /// The operation and its parameters.
    #[serde(flatten)]
    pub op: Op,
}

/// An answer: exactly one of `ok` and `error` is present.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Response<T> {
    /// Protocol version.
    pub v: u32,
    /// The id of the request; 0 if the agent could not read it.
    pub id: u64,
    /// The answer to the operation.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub ok: Option<T>,
    /// Why the request was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WireError {
    /// The kind of refusal.
    pub code: Code,
    /// The fault, its object, and what to change.
    pub message: String,
    /// Names similar to the one that matched nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
}

impl WireError {
    /// An error without similar names.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), near: Vec::new() }
    }
}

/// The kinds of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Code {
    /// Not JSON, not a request, an unknown operation, a field out of range.
    BadRequest,
    /// A glob list that does not parse.
    BadGlob,
    /// A glob list that matches no key, or, where probes are wanted, no probe.
    NoMatch,
    /// A name that is not an event's.
    NoEvent,
    /// A protocol version that this agent does not support.
    Version,
    /// A line or a frame longer than allowed.
    TooLong,
    /// Too many clients are connected.
    Busy,
    /// The client belongs to another user.
    Denied,
    /// The agent could not switch the keys; the message has the reason. The keys are as before; so
    /// is their code, unless the message counts sites that could not be restored.
    Keys,
    /// The process cannot count these events together, or not now; the message has the reason.
    Events,
    /// There is no recorder, or one runs already; the message has the reason.
    NoRecorder,
    /// A name that is not a group's, or a glob list that matches none; `near` has existing groups.
    NoGroup,
    /// The debug registers, or other resources of a watch, are taken by the holders in the message.
    NoSlot,
    /// An address, a length or a value that no watch can have.
    BadWatch,
    /// The process cannot watch itself, even if registers are free; a process with more rights can
    /// watch it from outside.
    NoWatching,
    /// The profile cannot be taken here, or this connection does not have it; the message has the
    /// reason.
    NoProfile,
    /// A rule of a trigger that is invalid; the message has the reason.
    BadRule,
    /// A trigger that cannot be armed, or does not exist; the message has the reason.
    NoTrigger,
    /// The service cannot be observed in this way; the message has the reason.
    NoLook,
    /// Somebody has put dormouse in this process to sleep; the message has the time and the user.
    Asleep,
    /// The agent has panicked in this request; it goes on.
    Fault,
    /// A code of a newer agent.
    #[serde(other)]
    Unknown,
}

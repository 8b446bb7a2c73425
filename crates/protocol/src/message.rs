//! The lines: a request, its answer, and why one is refused.

use serde::{Deserialize, Serialize};

use crate::Op;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Request {
    /// Protocol version.
    pub v: u32,
    /// Echoed in the answer.
    pub id: u64,
    /// The operation and its arguments.
    #[serde(flatten)]
    pub op: Op,
}

/// An answer: exactly one of `ok` and `error` is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Response<T> {
    /// Protocol version.
    pub v: u32,
    /// The request's id; 0 if the agent could not read it.
    pub id: u64,
    /// The answer to the operation.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub ok: Option<T>,
    /// Why there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

/// A refused request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WireError {
    /// The kind of refusal.
    pub code: Code,
    /// The fault, its object, and the change that mends it.
    pub message: String,
    /// Names near the one that matched nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
}

impl WireError {
    /// A refusal without near names.
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
    /// A glob list that matches no key, or where probes are wanted, no probe.
    NoMatch,
    /// A name that is no event.
    NoEvent,
    /// A protocol version that this agent does not speak.
    Version,
    /// A line or a frame over its bound.
    TooLong,
    /// Too many clients at once.
    Busy,
    /// A peer of another user.
    Denied,
    /// The agent could not switch the keys, as the message says. They read as before; so does their
    /// code, unless the message counts sites that could not be put back.
    Keys,
    /// The process cannot count these events together, or not now, as the message says.
    Events,
    /// There is no recorder, or one runs already, as the message says.
    NoRecorder,
    /// A name that is no group, or a glob list that matches none; `near` has those that are.
    NoGroup,
    /// The registers, or what else a watch takes, are with the holders that the message names.
    NoSlot,
    /// An address, a length or a value that no watch can have.
    BadWatch,
    /// The process cannot watch itself, whatever is free; a process with more rights can watch it
    /// from outside.
    NoWatching,
    /// A profile that nobody can take here, or that this connection does not have, as the message
    /// says.
    NoProfile,
    /// A rule of a trigger that makes no sense, as the message says.
    BadRule,
    /// A trigger that cannot be armed, or that is not there, as the message says.
    NoTrigger,
    /// The service cannot be looked at in this way, as the message says.
    NoLook,
    /// A code of a newer agent.
    #[serde(other)]
    Unknown,
}

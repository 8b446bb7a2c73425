//! Bytes of connections, frames of streams, and the messages that came by WebSockets.

use serde::{Deserialize, Serialize};

/// The bytes of the connections of one group while times of tasks were taken, as far as their
/// streams count them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CarriedRow {
    /// Bytes that were read.
    pub read: u64,
    /// Bytes that were written.
    pub written: u64,
}

impl CarriedRow {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
        }
    }
}

/// The messages that came by the WebSockets of one group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessagesRow {
    /// The number of messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl MessagesRow {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            messages: self.messages.saturating_sub(before.messages),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

/// The streams of one group, and the bodies of its requests that take long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StreamsRow {
    /// The number of frames of streams.
    pub frames: u64,
    /// The bytes of these frames.
    pub bytes: u64,
    /// The bodies of requests that are being sent now, ten seconds after the head or later.
    pub sending: u64,
}

impl StreamsRow {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            frames: self.frames.saturating_sub(before.frames),
            bytes: self.bytes.saturating_sub(before.bytes),
            sending: self.sending,
        }
    }
}

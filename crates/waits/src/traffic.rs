//! The bytes that the connections of a group read and write, and the messages that they receive.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::counts::add;

/// The bytes and messages of a group's connections while times were taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that were read from connections.
    pub read: u64,
    /// Bytes that were written to them.
    pub written: u64,
    /// Messages that came by WebSockets.
    pub messages: u64,
    /// The bytes of these messages.
    pub message_bytes: u64,
}

impl Traffic {
    /// The bytes and messages since `before`, an earlier reading.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
            messages: self.messages.saturating_sub(before.messages),
            message_bytes: self.message_bytes.saturating_sub(before.message_bytes),
        }
    }
}

/// The bytes and messages of a group that a thread has counted. Written by the thread alone.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct TrafficSums {
    read: AtomicU64,
    written: AtomicU64,
    messages: AtomicU64,
    message_bytes: AtomicU64,
}

impl TrafficSums {
    pub(crate) fn count(&self, of: Traffic) {
        let sums = [&self.read, &self.written, &self.messages, &self.message_bytes];
        for (sum, more) in sums.into_iter().zip([of.read, of.written, of.messages, of.message_bytes]) {
            add(sum, more);
        }
    }

    pub(crate) fn add_to(&self, sum: &mut Traffic) {
        sum.read += self.read.load(Ordering::Relaxed);
        sum.written += self.written.load(Ordering::Relaxed);
        sum.messages += self.messages.load(Ordering::Relaxed);
        sum.message_bytes += self.message_bytes.load(Ordering::Relaxed);
    }
}

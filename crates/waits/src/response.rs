//! The response of a task: how it has begun, and when.
//!
//! # Invariants
//!
//! 1. Only the owner of the task writes it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dormouse_clock::ticks_to_ns;

use crate::counts::add;

/// A body that is still sent at this age of its head counts as one that is being sent for long.
const LONG_NS: u64 = 10_000_000_000;

/// How a response begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// It answers the request.
    Answer,
    /// It may answer the request, or begin a stream: the frames show which.
    Unsure,
    /// A stream or another protocol begins.
    Stream,
}

/// The frames of a body that one poll has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frames {
    /// How many they are.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether they belong to a stream.
    pub is_stream: bool,
}

/// How far the response of a slot's task is. Apart from [`Response`], because a reader of groups
/// looks at it in each slot.
#[derive(Debug, Default)]
pub(crate) struct ResponseState(AtomicU8);

pub(crate) const OPEN: u8 = 0;
pub(crate) const ANSWERED: u8 = 1;
pub(crate) const UNSURE: u8 = 2;
pub(crate) const STREAM: u8 = 3;
/// The request is `ANSWERED`, and has taken the entry of an exemplar.
pub(crate) const SHOWN: u8 = 4;

impl ResponseState {
    #[inline]
    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, state: u8) {
        self.0.store(state, Ordering::Relaxed);
    }
}

/// The response of a slot's task.
#[derive(Debug, Default)]
pub(crate) struct Response {
    /// When the head was made, and the last frame, as stamps; 0: it was not, or before times were
    /// taken.
    pub(crate) head: AtomicU64,
    pub(crate) frame: AtomicU64,
}

impl Response {
    pub(crate) fn restart(&self) {
        self.head.store(0, Ordering::Relaxed);
        self.frame.store(0, Ordering::Relaxed);
    }

    /// When the head was made, as a stamp; `None`: it was not, or before times were taken.
    pub(crate) fn head(&self) -> Option<u64> {
        Some(self.head.load(Ordering::Relaxed)).filter(|head| *head != 0)
    }

    /// Whether the body of a request is sent at `now`, and has been for long, if the response is
    /// that far.
    pub(crate) fn is_long(&self, state: &ResponseState, now: u64) -> bool {
        let is_body = matches!(state.get(), ANSWERED | SHOWN | UNSURE);
        is_body && self.head().is_some_and(|head| ticks_to_ns(now.saturating_sub(head)) >= LONG_NS)
    }
}

/// The frames of streams of a group that a thread has made. Written by the thread alone.
#[derive(Debug)]
#[repr(C, align(16))]
pub(crate) struct StreamSums {
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl StreamSums {
    pub(crate) fn count(&self, of: Frames) {
        add(&self.frames, of.frames);
        add(&self.bytes, of.bytes);
    }

    pub(crate) fn add_to(&self, sum: &mut StreamFrames) {
        sum.frames += self.frames.load(Ordering::Relaxed);
        sum.bytes += self.bytes.load(Ordering::Relaxed);
    }
}

/// The frames of the streams of a group since times were first taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamFrames {
    /// The number of frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl StreamFrames {
    /// The frames since `before`, an earlier reading.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            frames: self.frames.saturating_sub(before.frames),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

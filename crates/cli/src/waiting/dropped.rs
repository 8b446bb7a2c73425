//! Where a cancelled request waited, and what dropped it.

use std::fmt::Write as _;

use dormouse_profile::drops::{DropCause, drop_cause};
use dormouse_protocol::{CancelledRow, WireWaited};

use super::place::{PlaceNames, called, name};
use super::stacks::{CUT, LOST, UNKNOWN_PLACE, UNLEARNED_PLACE};
use crate::render::frame::CodeFrame;

/// The cause of a request's drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dropper {
    /// A word for documents.
    pub(crate) by: &'static str,
    /// The function that let it go, if people look for that one.
    pub(crate) at: Option<CodeFrame>,
}

impl Dropper {
    pub(crate) fn new(of: &CancelledRow, names: &PlaceNames) -> Self {
        let Some(stack) = of.stack else { return Self { by: "answer", at: None } };
        let is_frame = |frame: &&CodeFrame| frame.function != CUT && frame.function != LOST;
        let frames: Vec<&CodeFrame> = names.frames(stack).iter().filter(is_frame).collect();
        let is_known = ![UNKNOWN_PLACE, UNLEARNED_PLACE].contains(&stack) && !frames.is_empty();
        if !is_known && !of.panicking {
            return Self { by: "unknown", at: None };
        }
        let (cause, at) = drop_cause(&called(names.frames(stack)), of.panicking);
        let outside = at.filter(|_| is_known && cause.is_at_function()).and_then(|at| frames.get(at..));
        let outside = outside.unwrap_or_default();
        // A panic may have unwound all functions of the service's own.
        let first = || outside.first().filter(|_| cause != DropCause::Panic);
        let at = outside.iter().find(|frame| frame.is_own).or_else(first);
        let by = if cause == DropCause::Function && at.is_none() { "unknown" } else { cause.word() };
        Self { by, at: at.map(|frame| (*frame).clone()) }
    }

    /// The words for people.
    pub(crate) fn text(&self) -> String {
        let at = self.at.as_ref().map(name);
        let words = match self.by {
            "connection" => "its connection: it ended, or the stream was reset",
            "select" => "select!",
            "shutdown" => "the end of its runtime",
            "panic" => "a panic beside it",
            "answer" => "no drop: its answer has the status of a cancelled request",
            "unknown" => "(stack unknown)",
            by if by == DropCause::Function.word() => return at.unwrap_or_default(),
            by => by,
        };
        at.map_or_else(|| words.to_owned(), |at| format!("{words} at {at}"))
    }
}

/// Where requests of a row waited.
pub(crate) fn waited_at(of: &CancelledRow, names: &PlaceNames) -> String {
    let mut place = of.place.and_then(|place| names.at(place)).unwrap_or_default();
    if of.more_places > 0 {
        let _ = write!(place, " and {} more", of.more_places);
    }
    match (of.waited, place.is_empty()) {
        (WireWaited::NotBegun, _) => "(not polled yet)".to_owned(),
        (WireWaited::Runnable, true) => "(woken, not polled yet)".to_owned(),
        (WireWaited::Runnable, false) => format!("{place} (woken)"),
        (_, false) => place,
        (_, true) if of.stack.is_none() => String::new(),
        (_, true) => "(not noted)".to_owned(),
    }
}

//! Memory for the answers of other users' agents.
//!
//! An agent of another user may send anything, so a server bounds what it holds of them: an answer
//! is at most [`AnswerRoom::LONGEST_ANSWER`] long, and all users share one [`AnswerBudget`]. A user
//! may hold at most as much as is left free. So one user alone gets half of the budget, two get a
//! third each, and none can use it up.
//!
//! Memory is lent while an answer is being read, and not before: an agent that is stopped holds
//! none.

#![cfg_attr(not(feature = "serve"), allow(dead_code, reason = "only a server bounds what it holds"))]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that all users share.
#[derive(Debug)]
pub(crate) struct AnswerBudget {
    bytes: usize,
    held: Mutex<HashMap<u32, usize>>,
}

/// A part of a budget, held for the answers of a user's agent.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    budget: Arc<AnswerBudget>,
    uid: u32,
    bytes: usize,
}

impl AnswerBudget {
    pub(crate) fn new(bytes: usize) -> Arc<AnswerBudget> {
        Arc::new(AnswerBudget { bytes, held: Mutex::default() })
    }

    /// A room of this user, with nothing in it yet.
    pub(crate) fn room(self: &Arc<Self>, uid: u32) -> AnswerRoom {
        AnswerRoom { budget: Arc::clone(self), uid, bytes: 0 }
    }
}

impl AnswerRoom {
    /// The longest answer, in bytes: times of a thousand groups fit in.
    pub(crate) const LONGEST_ANSWER: usize = 4 << 20;

    /// Bytes for each byte of an answer while it is read and parsed, and once it is a snapshot:
    /// rows with empty lists are several times as long in memory.
    const READ: usize = 6;
    const KEPT: usize = 3;

    /// Makes room for an answer of which that many bytes are there; false if there is none.
    pub(crate) fn fit(&mut self, answer: usize) -> bool {
        self.resize(answer.saturating_mul(Self::READ))
    }

    /// The part of the room of an answer that its snapshot keeps.
    pub(crate) fn keep(&mut self) -> AnswerRoom {
        let kept = self.bytes / Self::READ * Self::KEPT;
        let mut room = self.budget.room(self.uid);
        // They change hands.
        (room.bytes, self.bytes) = (kept, self.bytes - kept);
        self.resize(0);
        room
    }

    /// Whether the user holds more than half of what is left free, so more than half of what it may
    /// hold: then readings that are kept give way to answers that are to come.
    pub(crate) fn is_scarce(&self) -> bool {
        let held = self.budget.held.lock().unwrap_or_else(PoisonError::into_inner);
        let own = held.get(&self.uid).copied().unwrap_or_default();
        own > self.budget.bytes.saturating_sub(held.values().sum()) / 2
    }

    fn resize(&mut self, bytes: usize) -> bool {
        let mut held = self.budget.held.lock().unwrap_or_else(PoisonError::into_inner);
        let others = held.values().sum::<usize>() - self.bytes;
        let own = held.get(&self.uid).copied().unwrap_or_default() - self.bytes;
        let is_free = bytes <= self.bytes || own + bytes <= self.budget.bytes.saturating_sub(others + bytes);
        if is_free {
            held.insert(self.uid, own + bytes);
            held.retain(|_, bytes| *bytes > 0);
            self.bytes = bytes;
        }
        is_free
    }
}

impl Drop for AnswerRoom {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_room_for_another() {
        let budget = AnswerBudget::new(1200);
        let [mut first, mut second, mut other] = [1, 1, 2].map(|uid| budget.room(uid));
        assert!(first.resize(400) && !second.resize(201) && second.resize(200));
        assert!(!other.resize(301) && other.resize(300));
        assert!(!first.resize(401), "a user that has its share gets no more");
        assert!(first.resize(100) && first.resize(250));
        drop((first, second, other));
        assert!(budget.held.lock().unwrap().is_empty());
    }

    #[test]
    fn readings_leave_room_for_answers() {
        let budget = AnswerBudget::new(1200);
        let mut room = budget.room(1);
        assert!(room.resize(400) && !room.is_scarce());
        assert!(room.resize(401) && room.is_scarce() && room.resize(600), "an answer still finds room");
    }

    #[test]
    fn a_snapshot_keeps_its_part() {
        let budget = AnswerBudget::new(10_000);
        let mut room = budget.room(1);
        assert!(room.fit(100));
        let kept = room.keep();
        assert_eq!((room.bytes, kept.bytes), (0, 300));
        assert_eq!(budget.held.lock().unwrap().get(&1), Some(&300));
        drop(kept);
        assert!(budget.held.lock().unwrap().is_empty());
    }
}

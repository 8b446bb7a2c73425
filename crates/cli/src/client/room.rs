//! Memory for the answers of other users' agents.
//!
//! An agent of another user may send anything, so a server bounds what it holds of them: all its
//! connections to other users' agents share one [`AnswerBudget`], those that verbs open, too. A
//! user may hold at most as much as is left free. So one user alone gets half of the budget, two
//! get a third each, and none can use it up.
//!
//! | an answer | holds |
//! |---|---|
//! | that is being read | 2 bytes for each of its bytes: a buffer that grows |
//! | that is being parsed | 32 bytes more for each of its values |
//! | that is kept | 1 byte for each of its bytes, 16 for each of its values, and what its rows take |
//!
//! An agent that is stopped holds nothing: memory is lent as the bytes come.

#![cfg_attr(not(feature = "serve"), allow(dead_code, reason = "only a server bounds what it holds"))]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::user;

/// The budget of this process, if it is a server.
static BUDGET: OnceLock<Arc<AnswerBudget>> = OnceLock::new();

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
    /// The part of them that an answer needs which was read.
    kept: usize,
}

impl AnswerBudget {
    pub(crate) const BYTES: usize = 256 << 20;

    fn new(bytes: usize) -> Arc<AnswerBudget> {
        Arc::new(AnswerBudget { bytes, held: Mutex::default() })
    }

    /// Bounds the answers that this process holds of other users' agents, from now on.
    pub(crate) fn begin() {
        BUDGET.get_or_init(|| AnswerBudget::new(Self::BYTES));
    }

    /// A room of this user, with nothing in it yet.
    fn room(self: &Arc<Self>, uid: u32) -> AnswerRoom {
        AnswerRoom { budget: Arc::clone(self), uid, bytes: 0, kept: 0 }
    }
}

impl AnswerRoom {
    /// A room for answers of this user's agents, unless they are not bounded: the command is no
    /// server, or it is this user's or root's.
    pub(crate) fn of(uid: u32) -> Option<AnswerRoom> {
        BUDGET.get().filter(|_| user::distance(uid) > 1).map(|budget| budget.room(uid))
    }

    /// Makes room for an answer of which that many bytes are there; false if there is none.
    pub(crate) fn fit(&mut self, bytes: usize) -> bool {
        self.resize(bytes.saturating_mul(2))
    }

    /// Makes room for the parts of an answer that is there; false if there is none.
    pub(crate) fn fit_parts(&mut self, bytes: usize, values: usize) -> bool {
        self.kept = bytes + 16 * values;
        self.resize(2 * bytes + 32 * values)
    }

    /// The part of the room that an answer needs once it is parsed.
    pub(crate) fn keep(&mut self) -> AnswerRoom {
        let kept = std::mem::take(&mut self.kept).min(self.bytes);
        // They change hands.
        self.bytes -= kept;
        self.resize(0);
        AnswerRoom { budget: Arc::clone(&self.budget), uid: self.uid, bytes: kept, kept: 0 }
    }

    /// Makes room for the rows that an answer became; false if there is none.
    pub(crate) fn fit_rows(&mut self, bytes: usize) -> bool {
        self.resize(self.bytes + bytes)
    }

    /// Adds the room of an answer to those of earlier answers of the same agent.
    pub(crate) fn collect(all: &mut Option<AnswerRoom>, other: Option<AnswerRoom>) {
        match (all, other) {
            (Some(all), Some(mut other)) => all.bytes += std::mem::take(&mut other.bytes),
            (all, other) => *all = all.take().or(other),
        }
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
        assert!(room.fit(100) && room.fit_parts(100, 10));
        let mut kept = Some(room.keep());
        assert_eq!((room.bytes, kept.as_ref().map(|kept| kept.bytes)), (0, Some(260)));
        assert!(kept.as_mut().is_some_and(|kept| !kept.fit_rows(5_000) && kept.fit_rows(0)));
        assert!(room.fit_parts(50, 0));
        AnswerRoom::collect(&mut kept, Some(room.keep()));
        assert_eq!(budget.held.lock().unwrap().get(&1), Some(&310));
        drop((kept, room));
        assert!(budget.held.lock().unwrap().is_empty());
    }
}

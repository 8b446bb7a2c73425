//! A part of a task that a collection polls with a waker of its own.
//!
//! `FuturesUnordered` and the like give each of their parts a waker, which hides the places of the
//! parts. So each part gets a waker of its task around that one: a cell of its own, whose wakers
//! have their places among the task's.

use std::task::Context;

use dormouse_keys::unlikely;

use crate::places;
use crate::rows;
use crate::slot::Slot;
use crate::waiting::WAITS;
use crate::waker::{self, Lent};

/// The waker of a part around that of its collection; there is none while places are not requested.
#[derive(Debug, Default)]
pub struct PartWaits(Option<&'static Slot>);

impl PartWaits {
    /// Polls the part. In a poll of a task, while places are requested, it gets a waker whose place
    /// is counted among the task's.
    #[inline]
    pub fn poll<T>(&mut self, cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        match unlikely!(WAITS).then(|| self.lend(cx)).flatten() {
            Some(lent) => poll(&mut Context::from_waker(lent.waker())),
            None => poll(cx),
        }
    }

    #[cold]
    fn lend(&mut self, cx: &Context<'_>) -> Option<Lent> {
        let shelf = rows::own().filter(|_| places::are_asked())?;
        let outer = shelf.polled().filter(|outer| !outer.is_over())?.slot;
        // One of ours has its places already.
        (!waker::is_ours(cx.waker()))
            .then(|| waker::lend_part(&mut self.0, outer, shelf.start(), cx.waker()))?
    }
}

impl Drop for PartWaits {
    fn drop(&mut self) {
        waker::leave_part(&mut self.0);
    }
}

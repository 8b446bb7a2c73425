//! The stack of one running thread, requested by a timer of ours on its CPU clock that expires
//! once.
//!
//! Such a timer expires only while its thread uses a processor, so it interrupts no call that
//! sleeps. The handler is that of samples, but leaves its record in a separate queue, with a copy
//! of the stack.
//!
//! One thread is asked at a time: the slot, the queue and its reading belong to the thread in
//! [`ASKER`]. A thread that was killed meanwhile, or is the parent's in a child of a fork, does not
//! hold it any more.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::masks;
use dormouse_sys::process::{identity, threads};

use super::handler::{self, Copied};
use super::slots::{self, SlotId};
use super::{arm, signal, timer};
use crate::sampling::queue::Queue;
use crate::thread_stack::{NoStack, StackWay, ThreadStack};

/// The process and the thread that asks, 32 bits each; 0 if none does.
static ASKER: AtomicU64 = AtomicU64::new(0);

/// A thread that is asked, until this is dropped.
#[derive(Debug)]
pub(in crate::sampling) struct Asking {
    id: SlotId,
    queue: &'static Queue<Copied>,
    /// The last field: the next asker begins when the rest is given back.
    _turn: Turn,
}

/// The calling thread holds [`ASKER`].
#[derive(Debug)]
struct Turn;

impl Turn {
    fn take() -> Option<Self> {
        let own = u64::from(identity::pid()) << 32 | u64::from(identity::tid());
        // Acquire: pairs with the store in `drop`.
        let Err(there) = ASKER.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) else {
            return Some(Self);
        };
        let is_parents = there >> 32 != own >> 32;
        if !is_parents && threads::is_alive(there as u32) {
            return None;
        }
        ASKER.compare_exchange(there, own, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // That one has given nothing back. Timers stay with the process that made them.
        let (index, slot) = slots::asked();
        let made = slot.present(index).and_then(|id| slot.end(id));
        made.filter(|_| !is_parents).into_iter().for_each(timer::delete);
        slot.free();
        Some(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Release: pairs with the exchange in `take`.
        ASKER.store(0, Ordering::Release);
    }
}

impl Asking {
    /// Whether the signal by which threads are asked has our handler.
    pub(in crate::sampling) fn is_prepared() -> bool {
        signal::is_ours(handler::handle)
    }

    /// Takes a signal, and gives it our handler. On the keeper's thread, as the sampler does.
    pub(in crate::sampling) fn prepare() -> Result<(), NoStack> {
        signal::take(handler::handle).map_err(|error| NoStack::Refused(format!("no signal is free: {error}")))
    }

    /// Asks a thread. `own` is empty, or part of its own stack: it can be read from its stack
    /// pointer on, if that lies in it.
    pub(in crate::sampling) fn begin(tid: u32, own: &Range<usize>) -> Result<Self, NoStack> {
        if masks::is_blocking(tid, signal::number()) {
            return Err(NoStack::Blocked);
        }
        let turn = Turn::take().ok_or(NoStack::Busy)?;
        let queue = handler::begin_to_ask()
            .map_err(|error| NoStack::Refused(format!("there is no memory for its stack: {error}")))?;
        let (index, slot) = slots::asked();
        slot.begin_to_ask(tid, masks::is_filtered(tid));
        slot.set_bounds(own.start, own.end);
        let id = match arm::make_asking(index, tid) {
            Ok(id) => id,
            Err(why) => {
                slot.free();
                return Err(NoStack::Refused(why.to_string()));
            }
        };
        let asking = Self { id, queue, _turn: turn };
        // It expires at the next tick that finds the thread running.
        timer::set(slot.timer(), 1, 0).map_err(|error| NoStack::Refused(error.to_string()))?;
        Ok(asking)
    }

    /// Its answer, if it has come.
    pub(in crate::sampling) fn answer(&self) -> Option<ThreadStack> {
        let value = self.id.to_value();
        let (mut found, room) = (None, &mut Vec::new());
        while let Some(answer) = self.queue.pop(|record| {
            let is_it = record.of_kind.tick.value == value;
            let found = record.of_kind.stack.functions(room);
            let frames = if found.are_more_than(&record.frames) { &found } else { &record.frames };
            let way = if frames.is_missed { StackWay::FramePointers } else { StackWay::Tables };
            let frames = frames.stack(frames.lack()).collect();
            is_it.then_some(ThreadStack { frames, way })
        }) {
            // One that came too late for its asker is thrown away.
            found = found.or(answer);
        }
        found
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let (_, slot) = slots::asked();
        slot.end(self.id).into_iter().for_each(timer::delete);
        slot.free();
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a thread that ends in the midst")]
mod tests {
    use super::*;

    #[test]
    fn a_killed_asker_loses_its_turn() {
        dormouse_testkit::in_child(|| {
            let killed = std::thread::spawn(|| {
                let turn = Turn::take().unwrap();
                std::mem::forget(turn);
            });
            killed.join().unwrap();
            dormouse_testkit::eventually(|| Turn::take().is_some());
            let held = Turn::take().unwrap();
            let other = std::thread::spawn(|| Turn::take().is_none());
            assert!(other.join().unwrap(), "one at a time");
            let status = dormouse_testkit::fork(|| drop(Turn::take().unwrap()));
            assert!(status.success(), "{status:?}");
            drop(held);
        });
    }
}

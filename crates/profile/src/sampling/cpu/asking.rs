//! The stack of one thread that runs: it is asked by a timer of ours on its CPU clock that expires
//! once.
//!
//! Such a timer expires only while its thread uses a processor, so it interrupts no call that
//! sleeps. The handler leaves a record in a queue of its own, with a copy of the stack; else it is
//! that of samples.
//!
//! One thread is asked at a time.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::masks;
use dormouse_sys::process::identity;

use super::handler::{self, Copied};
use super::slots::{self, SlotId};
use super::{arm, signal, timer, unwinding};
use crate::sampling::queue::Queue;
use crate::tables::Tables;
use crate::thread_stack::{NoStack, StackWay, ThreadStack};

/// The process whose threads are asked: a child of a fork finds the parent's slot.
static PROCESS: AtomicU64 = AtomicU64::new(0);

/// A thread that is asked, until this is dropped.
#[derive(Debug)]
pub(in crate::sampling) struct Asking {
    id: SlotId,
    queue: &'static Queue<Copied>,
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
        let process = identity::id();
        if PROCESS.swap(process, Ordering::Relaxed) != process {
            slots::forget_asked();
        }
        let queue = handler::begin_to_ask()
            .map_err(|error| NoStack::Refused(format!("there is no memory for its stack: {error}")))?;
        let index = slots::claim_asked(tid).ok_or(NoStack::Busy)?;
        let slot = slots::at(index);
        slot.set_bounds(own.start, own.end);
        let id = match arm::make_asking(index, tid) {
            Ok(id) => id,
            Err(why) => {
                slot.free();
                return Err(NoStack::Refused(why.to_string()));
            }
        };
        let asking = Self { id, queue };
        // It expires at the next tick that finds the thread running.
        timer::set(slot.timer(), 1, 0).map_err(|error| NoStack::Refused(error.to_string()))?;
        Ok(asking)
    }

    /// Its answer, if it has come.
    pub(in crate::sampling) fn answer(&self, tables: Option<&mut Tables>) -> Option<ThreadStack> {
        let value = self.id.to_value();
        let (mut tables, mut found) = (tables, None);
        while let Some(answer) = self.queue.pop(|record| {
            let is_it = record.of_kind.tick.value == value;
            let unwound = tables.as_deref_mut().and_then(|tables| unwinding::unwound(tables, record));
            let of = |frames: &[usize]| frames.iter().map(|&frame| frame as u64).collect();
            let stack = match unwound {
                Some((frames, depth, _)) => {
                    ThreadStack { frames: of(&frames[..depth]), way: StackWay::Tables }
                }
                None => ThreadStack { frames: of(record.frames()), way: StackWay::FramePointers },
            };
            is_it.then_some(stack)
        }) {
            // One that came too late for its asker is thrown away.
            found = found.or(answer);
        }
        found
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let slot = slots::at(self.id.index);
        if let Some(made) = slot.end(self.id) {
            timer::delete(made);
            slot.free();
        }
    }
}

//! Hits on their way from handlers to readers, where they are written in place: a handler has no
//! room for a stack of its own.
//!
//! - [`SingleHit`]: each hit with its stack, for a reader who wants all.
//! - [`HitCopy`]: the stack of a hit for whose walk the handler had no room
//!   ([`dormouse_unwind::has_room`]). The reader of reports follows it.
//!
//! # Async-signal-safety
//!
//! [`SingleHit::push`] and [`HitCopy::push`].
//!
//! # Safety
//!
//! The unsafe code writes records in place.
#![allow(unsafe_code)]

use dormouse_sys::peek;
use dormouse_sys::sync::Queue;
use dormouse_unwind::CallFrame;

use super::report::WatchHit;
use super::sites::Hit;
use super::stack::{DEPTH, HitStack, Walked};

/// The most bytes of a copied stack. Builds without optimisation have long frames.
const COPY: usize = 32 * 1024;

/// A hit and its stack.
#[derive(Debug, Clone, Copy)]
pub(super) struct SingleHit {
    hit: Hit,
    /// See [`Walked::word`]; 0: the stack was not walked.
    walked: u64,
    callers: [usize; DEPTH],
}

impl SingleHit {
    /// Leaves a hit, whose callers `walk` passes to its argument. A full queue counts what it
    /// drops.
    pub(super) fn push(
        queue: &Queue<Self>,
        hit: &Hit,
        walk: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Option<Walked>,
    ) {
        let write = |record: *mut Self| {
            // SAFETY: a place for a record, in which every word of `callers` is a number.
            unsafe {
                (*record).hit = *hit;
                let callers = &mut (*record).callers;
                let mut put = |at: usize, caller: usize| {
                    if let Some(place) = callers.get_mut(at) {
                        *place = caller;
                    }
                };
                (*record).walked = walk(&mut put).map_or(0, Walked::word);
            }
        };
        // SAFETY: it writes all fields that are read, and returns.
        unsafe { queue.push(write) };
    }
}

impl From<&SingleHit> for WatchHit {
    fn from(of: &SingleHit) -> Self {
        let Hit { ip, group, tid, task, mono_ns, old, new, has_values } = of.hit;
        let [old, new] = [old, new].map(|value| has_values.then_some(value));
        let stack = Walked::of(of.walked).map(|walked| walked.stack(|at| of.callers[at]));
        let HitStack { callers: stack, inner, end } = stack.unwrap_or_default();
        Self { ip, group, tid, task, mono_ns, old, new, stack, inner, end }
    }
}

/// The stack of the first hit of a place.
#[derive(Debug, Clone, Copy)]
pub(super) struct HitCopy {
    pub(super) ip: usize,
    pub(super) group: u32,
    pub(super) registers: CallFrame,
    length: u32,
    bytes: [u8; COPY],
}

impl HitCopy {
    /// Leaves a copy, if there is room for it.
    pub(super) fn push(queue: &Queue<Self>, hit: &Hit, registers: CallFrame) {
        let write = |record: *mut Self| {
            // SAFETY: a place for a record, in which every byte is a number.
            unsafe {
                ((*record).ip, (*record).group, (*record).registers) = (hit.ip, hit.group, registers);
                let bytes = &mut (*record).bytes;
                (*record).length = peek::copy_some(registers.stack, bytes) as u32;
            }
        };
        // SAFETY: it writes all fields that are read, and returns.
        unsafe { queue.push(write) };
    }

    /// The memory from the stack pointer on.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..(self.length as usize).min(COPY)]
    }

    /// Forgets the memory.
    pub(super) fn wipe(&mut self) {
        self.bytes[..(self.length as usize).min(COPY)].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_of_its_stack() {
        let queue = Queue::map(1).unwrap();
        let words = [7_u64, 8, 9];
        let registers = CallFrame { instruction: 1, stack: words.as_ptr().addr(), frame: 2, link: 3 };
        let hit = Hit { ip: 5, group: 6, ..Hit::default() };
        HitCopy::push(&queue, &hit, registers);
        let found = queue.pop(|copy| {
            let first = copy.bytes()[..24].to_vec();
            copy.wipe();
            (copy.ip, copy.group, copy.registers, first, copy.bytes()[..24] == [0; 24])
        });
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(found, Some((5, 6, registers, bytes, true)));
    }

    #[test]
    fn a_hit_without_a_walk_has_no_stack() {
        let queue = Queue::map(2).unwrap();
        let hit = Hit { ip: 5, ..Hit::default() };
        SingleHit::push(&queue, &hit, |put| {
            put(0, 7);
            put(DEPTH, 8);
            Some(Walked { depth: 1, end: dormouse_unwind::WalkEnd::Outermost, is_missed: false })
        });
        SingleHit::push(&queue, &hit, |_| None);
        let read = || queue.pop(|hit| WatchHit::from(&*hit)).unwrap();
        let (walked, bare) = (read(), read());
        assert_eq!((&walked.stack[..], walked.inner), (&[7][..], 1));
        assert_eq!((bare.stack, bare.inner, bare.ip), (vec![], 0, 5));
    }
}

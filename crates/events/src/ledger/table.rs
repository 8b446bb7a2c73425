//! All contexts of the process, by number, and the events that a new one takes over.
//!
//! Threads that serve requests make contexts, so making one waits neither for a change of what is
//! counted nor for a reader. A new context takes a number by one addition, and puts itself into the
//! entry of that number. Entries lie in pieces that double in size and never move. Then the context
//! takes over what is counted everywhere, by a [handshake](crate::handshake) with changes.
//!
//! # Invariants
//!
//! 1. An entry is filled with a context once, and the context lives as long as the process.
//! 2. A number may be taken while its entry is still empty. Its thread will fill the entry soon, or
//!    was a thread of the parent of this fork child and never will.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use dormouse_sys::sync::{OnceBox, OnceRef};

use super::context::Context;
use crate::event_set::{EventSet, SetCell};
use crate::handshake;
use crate::span;

/// Entries of the first piece.
const FIRST: usize = 64;
/// Enough pieces for all numbers.
const PIECES: usize = 26;

type Piece = Box<[OnceRef<Context>]>;

static TABLE: [OnceBox<Piece>; PIECES] = [const { OnceBox::new() }; PIECES];
/// How many numbers have been taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// The events that are counted for every context, now and to come. `control` alone moves these.
static EVERYWHERE: SetCell = SetCell::empty();
/// Whether every task counts for itself everywhere.
static EXACT: AtomicBool = AtomicBool::new(false);
/// Whether contexts have columns for further events.
static EXTENDED: AtomicBool = AtomicBool::new(false);

impl Context {
    /// A new context. Events that are counted everywhere are counted for it, too.
    ///
    /// # Cost
    ///
    /// Uses two kilobytes that are never freed: make one for each kind of work, not for each piece
    /// of work. The call never blocks.
    pub fn new() -> &'static Self {
        let context = add();
        // The loads are in this order, and the stores of `set_everywhere` in the other: a set with
        // further events comes with columns for them. The acquires pair with the releases there.
        let look = || (EVERYWHERE.load(), EXACT.load(Ordering::Relaxed), EXTENDED.load(Ordering::Acquire));
        handshake::take_over(look, |(everywhere, exact, extended)| {
            if extended {
                context.extend();
            }
            context.set_exact(exact);
            context.set_events(everywhere);
        });
        context
    }
}

/// From now on new contexts count `set`. The caller must give the set to the contexts that are in
/// the table after this returns. `extends` means that they all need further columns.
pub(crate) fn set_everywhere(set: &'static EventSet, exact: bool, extends: bool) {
    if extends {
        EXTENDED.store(true, Ordering::Release);
    }
    EVERYWHERE.store(set);
    EXACT.store(exact, Ordering::Relaxed);
    handshake::changed();
}

/// How many contexts there are, at most (invariant 2).
pub(crate) fn count() -> usize {
    // Acquire: pairs with the addition in `add`.
    TAKEN.load(Ordering::Acquire) as usize
}

/// The context number `id`.
pub(crate) fn context(id: u32) -> Option<&'static Context> {
    let (piece, entry) = locate((id as usize).checked_sub(1)?);
    TABLE.get(piece)?.get()?[entry].get()
}

/// Makes the next context and shows it.
fn add() -> &'static Context {
    // A span has a bit beside the number. A process that takes that many numbers has filled its
    // memory long before.
    let next = |taken: u32| (taken + 2 < span::MAX_CONTEXTS).then_some(taken + 1);
    let Ok(index) = TAKEN.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) else {
        return Box::leak(Box::new(Context::with_id(span::MAX_CONTEXTS - 1)));
    };
    let context: &'static Context = Box::leak(Box::new(Context::with_id(index + 1)));
    let (piece, entry) = locate(index as usize);
    let make = || Box::new((0..FIRST << piece).map(|_| OnceRef::new()).collect());
    // Only this thread has the number, so the entry is empty.
    let _empty = TABLE[piece].get_or_init(make)[entry].get_or_init(|| context);
    context
}

/// The piece of a context, by its number less one, and the entry in that piece.
fn locate(index: usize) -> (usize, usize) {
    let piece = (index / FIRST + 1).ilog2() as usize;
    (piece, index - FIRST * ((1 << piece) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_an_entry_of_its_own() {
        let mut next = (0, 0);
        for index in 0..FIRST * 100 {
            assert_eq!(locate(index), next, "{index}");
            next = if next.1 + 1 == FIRST << next.0 { (next.0 + 1, 0) } else { (next.0, next.1 + 1) };
        }
        assert!(locate(span::MAX_CONTEXTS as usize).0 < PIECES);
    }

    #[test]
    fn a_context_is_found_by_its_number() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let new = Context::new();
                        assert!(context(new.id()).is_some_and(|found| std::ptr::eq(found, new)));
                        assert!(count() >= new.id() as usize);
                    }
                });
            }
        });
        assert!(context(0).is_none() && context(span::MAX_CONTEXTS - 2).is_none());
    }
}

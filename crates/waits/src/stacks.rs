//! The stacks at which wakers are taken, each with its number.
//!
//! A stack is walked by the unwind tables. Its hash finds its number; the stack of a new number is
//! walked a second time, into the table. So a walk takes no room of its own, however deep the stack
//! is.
//!
//! Most stacks have been walked before, by this task or another one. So a stack is first compared
//! with the one that was last found for its innermost caller and its depth ([`Stacks::again`]): a
//! comparison takes a tenth of a walk.
//!
//! # Invariants
//!
//! 1. A stack that can be compared has its callers' return addresses between its stack pointer and
//!    the end of the poll's stack.
//!
//! # Safety
//!
//! The unsafe code reads the stack of the calling thread within the bounds that it has found.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dormouse_sys::arch::stack_word;
use dormouse_sys::stack::{CallFrame, here};
use dormouse_sys::{own_stack, thread};
use dormouse_unwind::{Walk, WalkEnd, arch, claim, frames, own, walk};

use crate::cells::{cells, claim_cell, mixed};

/// The place of a waker whose stack is unknown: no rule leads to the caller of its leaf, or there
/// is no room.
pub const UNKNOWN_PLACE: u32 = 1;

/// The place of a waker whose stack has a function of which nothing has been learned yet. The next
/// waker that is taken there after [`learn`] has another place.
pub const UNLEARNED_PLACE: u32 = 2;

/// How many stacks there is room for, the first numbers included.
pub(crate) const STACKS: usize = 1 << 14;
/// The functions of all stacks that there is room for: 13 MB of address space, of which as much is
/// taken as is used.
const ALL_FRAMES: usize = STACKS * 48;
/// The most functions of a stack: of a deeper one those in the middle are left out.
const FRAMES: usize = 128;
/// How many stacks are found again without a walk.
const RECENT: usize = 1 << 12;

/// A stack, by its number.
struct Stack {
    /// 0: free.
    hash: AtomicU64,
    /// See [`Extent`]; 0: it is not whole yet.
    extent: AtomicU64,
    /// How far below the end of the poll's stack the stack pointer was; 0: the stack cannot be
    /// compared.
    below: AtomicU32,
}

/// A function of a stack, as a comparison needs it.
struct Caller {
    /// The return address.
    returns_to: AtomicUsize,
    /// How far above the stack pointer the return address lies.
    above: AtomicU32,
}

/// Where the functions of a stack are in the table, and how it ended.
#[derive(Clone, Copy)]
struct Extent {
    first: usize,
    /// How many functions it has; at most [`FRAMES`] are there.
    depth: usize,
    is_whole: bool,
}

impl Extent {
    const IS_THERE: u64 = 1;
    const IS_WHOLE: u64 = 2;
    const DEPTH: u32 = 2;
    const FIRST: u32 = 32;

    fn word(self) -> u64 {
        let whole = if self.is_whole { Self::IS_WHOLE } else { 0 };
        (self.first as u64) << Self::FIRST | (self.depth as u64) << Self::DEPTH | whole | Self::IS_THERE
    }

    fn of(word: u64) -> Option<Self> {
        let depth = (word as u32 >> Self::DEPTH) as usize;
        let of = Self { first: (word >> Self::FIRST) as usize, depth, is_whole: word & Self::IS_WHOLE != 0 };
        (word & Self::IS_THERE != 0).then_some(of)
    }

    fn callers(self, table: &Stacks) -> &[Caller] {
        &table.callers[self.first..self.first + self.depth.min(FRAMES)]
    }
}

/// All stacks. Zeros are none.
pub(crate) struct Stacks {
    /// Stacks and sums that found no room.
    pub(crate) no_room: AtomicU64,
    /// Wakers whose stack is not known.
    unknown: AtomicU64,
    /// Wakers whose stack has functions that have not been learned.
    unlearned: AtomicU64,
    /// How many of `callers` are taken.
    taken: AtomicUsize,
    /// How far above the stack pointer the function that takes wakers has its return address, and
    /// one more; 0: not known yet. It is one function, so this is the same for all wakers.
    leaf: AtomicUsize,
    /// The numbers of stacks that were found by a walk, by their innermost caller and their depth.
    recent: [AtomicU32; RECENT],
    known: [Stack; STACKS],
    callers: [Caller; ALL_FRAMES],
}

/// Whether functions are learned. If not, callers are found by frame pointers alone.
static HAS_TABLES: AtomicBool = AtomicBool::new(false);

/// Has functions be learned from now on. Without registers to begin with
/// ([`dormouse_sys::stack::here`]), every stack would be one that is yet to be learned.
pub(crate) fn begin() {
    let has_registers = here().stack != 0;
    HAS_TABLES.store(has_registers && own::begin().is_ok(), Ordering::Relaxed);
}

/// Has the functions be learned that wakers have met, by a thread of the lowest priority, and shows
/// wakers what it has read. While places are requested, a thread that may wait calls it from time
/// to time. Returns whether there is more to learn.
pub fn learn() -> bool {
    own::step()
}

/// The code that takes a waker, on the stack of a poll.
pub(crate) struct Taker {
    pub(crate) from: CallFrame,
    /// The end of the poll's stack.
    pub(crate) top: usize,
    /// The thread's own stack from the stack pointer on.
    pub(crate) own: Range<usize>,
    /// Whether all callers are wanted, up to the thread's first function: the code is in no poll.
    pub(crate) is_to_first: bool,
}

impl Taker {
    /// The code that drops a task, wherever that is.
    pub(crate) fn dropping(from: CallFrame) -> Self {
        let own = own_stack::from(from.stack);
        // On a stack that is not the thread's own the kernel reads as far as there is something.
        let top = own.end.checked_sub(1).unwrap_or(usize::MAX);
        Self { from, top, own, is_to_first: true }
    }

    /// Passes the callers to `take`, with the places of their return addresses, up to the poll.
    /// Returns whether they lead there.
    fn walk(&self, mut take: impl FnMut(usize, usize)) -> (bool, Walk) {
        let cache = thread::try_current().and_then(|block| claim(block.tid()));
        let (mut is_whole, mut count, mut called) = (false, 0, self.from);
        let each = |caller: CallFrame| {
            is_whole = count > 0 && caller.stack > self.top;
            if count > 0 && !is_whole {
                take(caller.instruction, arch::return_place(called, caller));
            }
            (called, count) = (caller, count + 1);
            !is_whole && count <= frames::MOST_FRAMES
        };
        // SAFETY: `own` can be read, as has been found out.
        let walk = unsafe { walk(cache.as_deref(), self.from, &self.own, each) };
        is_whole |= self.is_to_first && walk.end == WalkEnd::Outermost;
        // A register that is no frame pointer may point behind the poll's stack, too.
        (is_whole && !walk.is_missed, walk)
    }

    /// The word at an address of the own stack, between the stack pointer and the poll's end.
    #[inline]
    fn word(&self, at: usize) -> usize {
        debug_assert!(self.own.contains(&at) && at < self.top);
        // SAFETY: `own` can be read, as has been found out, and the address lies there (invariant
        // 1).
        unsafe { stack_word(at) }
    }

    /// Whether the stack can be read plainly up to the poll's end.
    fn is_own(&self) -> bool {
        self.own.contains(&self.from.stack) && self.own.contains(&self.top)
    }
}

impl Stacks {
    /// Whether the taker's stack is that of the place: each return address lies where it lay when
    /// the stack got its number.
    pub(crate) fn has(&self, place: u32, taker: &Taker) -> bool {
        let Some(stack) = self.known.get(place as usize).filter(|_| place > UNLEARNED_PLACE) else {
            return false;
        };
        // Acquire: pairs with the store in `fill`.
        let extent = Extent::of(stack.extent.load(Ordering::Acquire));
        let below = stack.below.load(Ordering::Relaxed) as usize;
        let Some(extent) = extent.filter(|_| below == taker.top - taker.from.stack && taker.is_own()) else {
            return false;
        };
        // No branch but the last: all of them are the same nearly always.
        let differs = extent.callers(self).iter().fold(0, |differs, caller| {
            let returns_at = taker.from.stack + caller.above.load(Ordering::Relaxed) as usize;
            differs | (taker.word(returns_at) ^ caller.returns_to.load(Ordering::Relaxed))
        });
        differs == 0
    }

    /// The place of a taker in a poll, if its stack was the last one with this innermost caller and
    /// depth that was walked.
    #[inline]
    pub(crate) fn again(&self, taker: &Taker) -> Option<u32> {
        let place = self.recent(taker)?.load(Ordering::Relaxed);
        self.has(place, taker).then_some(place)
    }

    /// Where the number of such a stack is kept; `None`: it cannot be compared.
    #[inline]
    fn recent(&self, taker: &Taker) -> Option<&AtomicU32> {
        let above = self.leaf.load(Ordering::Relaxed).checked_sub(1)?;
        let returns_at = taker.from.stack.checked_add(above).filter(|&at| at < taker.top)?;
        if !taker.is_own() {
            return None;
        }
        let (caller, depth) = (taker.word(returns_at) as u64, (taker.top - taker.from.stack) as u64);
        Some(&self.recent[(mixed(caller ^ depth << 32) >> 32) as usize % RECENT])
    }

    /// The number of the place of that stack; `None`: it is not that of the poll.
    pub(crate) fn place_of(&self, taker: &Taker) -> Option<u32> {
        if !taker.own.is_empty() && !taker.own.contains(&taker.top) {
            return None;
        }
        let (mut hash, mut depth) = (0, 0);
        let (is_whole, Walk { is_missed, .. }) = taker.walk(|address, _| {
            hash = mixed(hash ^ address as u64);
            depth += 1;
        });
        if is_missed && HAS_TABLES.load(Ordering::Relaxed) {
            self.unlearned.fetch_add(1, Ordering::Relaxed);
            return Some(UNLEARNED_PLACE);
        }
        if depth == 0 {
            self.unknown.fetch_add(1, Ordering::Relaxed);
            return Some(UNKNOWN_PLACE);
        }
        let hash = mixed(hash ^ depth as u64);
        let number = self.number(taker, (hash ^ hash >> 32).max(1), depth, is_whole);
        if !taker.is_to_first
            && let Some(recent) = self.recent(taker)
        {
            recent.store(number, Ordering::Relaxed);
        }
        Some(number)
    }

    /// The number of a stack with this hash.
    fn number(&self, taker: &Taker, hash: u64, depth: usize, is_whole: bool) -> u32 {
        for (at, stack) in cells(&self.known, hash) {
            if at as u32 <= UNLEARNED_PLACE {
                continue;
            }
            match claim_cell(&stack.hash, hash) {
                None => continue,
                Some(false) => {}
                Some(true) => self.fill(stack, taker, depth, is_whole),
            }
            return at as u32;
        }
        self.no_room.fetch_add(1, Ordering::Relaxed);
        UNKNOWN_PLACE
    }

    /// Walks the stack again, into the table.
    fn fill(&self, stack: &Stack, taker: &Taker, depth: usize, is_whole: bool) {
        let kept = depth.min(FRAMES);
        // Never more than there is: whoever took too much and gave it back would give back what
        // another thread has taken in between.
        let more = |taken: usize| Some(taken + kept).filter(|taken| *taken <= ALL_FRAMES);
        let Ok(first) = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) else {
            self.no_room.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let room = &self.callers[first..first + kept];
        let mut found = 0;
        let below = u32::try_from(taker.top - taker.from.stack).unwrap_or(0);
        let mut can_compare = is_whole && depth <= FRAMES && taker.is_own();
        taker.walk(|address, returns_at| {
            if let Some(caller) = room.get(frames::place(found, kept)).filter(|_| found < depth) {
                let above = returns_at.wrapping_sub(taker.from.stack) as u32;
                caller.returns_to.store(address.wrapping_add(1), Ordering::Relaxed);
                caller.above.store(above, Ordering::Relaxed);
            }
            // Invariant 1. A signal has no return address there.
            can_compare = can_compare
                && (taker.from.stack..taker.top).contains(&returns_at)
                && taker.word(returns_at) == address + 1;
            found += 1;
        });
        // Functions that have been learned in between may lead further.
        if found != depth {
            return;
        }
        if can_compare {
            stack.below.store(below, Ordering::Relaxed);
            if !taker.is_to_first {
                let above = room[0].above.load(Ordering::Relaxed) as usize;
                self.leaf.store(above + 1, Ordering::Relaxed);
            }
        }
        // Release: who finds the extent finds the rest.
        stack.extent.store(Extent { first, depth, is_whole }.word(), Ordering::Release);
    }

    /// The place with a number.
    pub(crate) fn get(&self, number: u32) -> Option<Place> {
        let stack = self.known.get(number as usize)?;
        // Acquire: pairs with the store in `fill`.
        let extent = Extent::of(stack.extent.load(Ordering::Acquire))?;
        let address = |caller: &Caller| caller.returns_to.load(Ordering::Relaxed).wrapping_sub(1) as u64;
        let addresses: Vec<u64> = extent.callers(self).iter().map(address).collect();
        let (inner, outer) = frames::in_order(extent.depth, &addresses);
        let end = match extent.depth {
            0..=FRAMES if extent.is_whole => WalkEnd::Outermost,
            0..=FRAMES => WalkEnd::NoRule,
            _ => WalkEnd::Enough,
        };
        let inner = inner.len();
        Some(Place { number, stack: addresses[..inner].iter().copied().chain(outer).collect(), inner, end })
    }

    /// How many places are missing so far, and why.
    pub(crate) fn coverage(&self) -> PlaceCoverage {
        let [unknown, unlearned, no_room] =
            [&self.unknown, &self.unlearned, &self.no_room].map(|count| count.load(Ordering::Relaxed));
        PlaceCoverage { unknown, unlearned, no_room }
    }
}

/// A place where tasks wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The place's number, which it keeps as long as the process lives.
    pub number: u32,
    /// The stack from the leaf (the innermost future) to the poll of its task: each return address,
    /// minus one.
    pub stack: Vec<u64>,
    /// How many of these functions lie before those that are left out, if some are.
    pub inner: usize,
    /// How the stack ended: at the poll of the task ([`WalkEnd::Outermost`]), at a function whose
    /// caller no rule finds, or with functions in the middle left out ([`WalkEnd::Enough`]).
    pub end: WalkEnd,
}

/// Why places are missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaceCoverage {
    /// The number of wakers whose stack is unknown, because no rule leads to the caller of their
    /// leaf.
    pub unknown: u64,
    /// The number of wakers whose stack had functions of which nothing had been learned yet.
    pub unlearned: u64,
    /// The number of stacks, and times, for which the tables had no room.
    pub no_room: u64,
}

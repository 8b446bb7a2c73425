//! The places where tasks wait: the stacks at which leaves have taken wakers.
//!
//! A leaf that cannot go on clones the waker that it was given, and its callers are those of the
//! wait. So the stack at that moment is where the task waits, until it takes another waker: no
//! second poll is needed. Stacks begin at the leaf, behind the waker's own functions, and end at
//! the poll of the task. Each has a number; a task keeps the numbers of the last poll that took
//! wakers.
//!
//! A leaf that finds its old waker good enough takes none, and its place stays. A task that begins
//! to wait elsewhere takes another, and its old places go, whether or not somebody asks for places
//! then. So what a task has is true; what it has not may be older than the question.
//!
//! # Times
//!
//! When a wait ends, its time is added to its group and place. If a task waited at several places
//! at once, each gets an equal part: which of them woke it is not known.
//!
//! # Invariants
//!
//! 1. A stack that has its number never changes, and stays as long as the process. A forked child
//!    has none.
//! 2. The thread that polls a task alone writes the places of its slot.
//!
//! # Cost
//!
//! While nobody asks: a load for each clone of a waker. Else a walk along the frame pointers, and a
//! look-up.
//!
//! # Async-signal-safety
//!
//! No lock, no allocation. System calls for the pages of a stack that no walk has seen before, and
//! on a stack that is not the thread's own.
//!
//! # Safety
//!
//! The unsafe code makes a reference to a mapping that stays.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_sys::own_stack;
use dormouse_sys::process::fork::{Phase, Reset};
use dormouse_sys::process::identity;
use dormouse_sys::stack::here;

use crate::memory::{self, Zeroed};
use crate::rows::GROUPS;
use crate::slot::{PLACES, Slot, at};

/// The place of a waker whose stack is not known: code without frame pointers, or no room.
pub const UNKNOWN_PLACE: u32 = 1;

/// How many stacks there is room for, the first two numbers included: 4 MB, of which as much is
/// taken as is used.
const STACKS: usize = 1 << 14;
/// How many pairs of group and place have a sum of their own.
const SUMS: usize = 1 << 14;
/// The most frames of a stack.
const FRAMES: usize = 30;
/// The bits of a count of those who ask for places.
const ASKERS: u64 = (1 << 20) - 1;
/// How far from its hash a stack or a sum may lie.
const REACH: usize = 32;

/// A stack, by its number.
#[repr(align(64))]
struct Stack {
    /// 0: free.
    hash: AtomicU64,
    /// 0: it is not whole yet.
    depth: AtomicUsize,
    frames: [AtomicUsize; FRAMES],
}

/// The time of a group at a place.
struct Sum {
    /// See [`key`]; 0: free.
    key: AtomicU64,
    ns: AtomicU64,
    waits: AtomicU64,
}

struct Table {
    /// 0: nobody asks for places. Else how many do, in the low bits ([`ASKERS`]), and since when
    /// somebody has without a gap, as a stamp without these bits.
    asked: AtomicU64,
    /// Stacks and sums that found no room.
    no_room: AtomicU64,
    /// Wakers whose stack is not known.
    unknown: AtomicU64,
    sums: [Sum; SUMS],
    stacks: [Stack; STACKS],
}

// SAFETY: atomics alone.
unsafe impl Zeroed for Table {}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

#[inline]
fn table() -> Option<&'static Table> {
    // SAFETY: null, or a mapping that stays. Acquire: pairs with the exchange in `begun`.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

fn begun() -> io::Result<&'static Table> {
    if let Some(table) = table() {
        return Ok(table);
    }
    if !FORGET.join() {
        return Err(io::Error::other("called in the middle of a fork"));
    }
    // Another thread's may be there already.
    memory::put(&TABLE, memory::map::<Table>(1).ok_or(io::ErrorKind::OutOfMemory)?);
    Ok(table().ok_or(io::ErrorKind::OutOfMemory)?)
}

/// A forked child has no places.
static FORGET: Reset = Reset::new(Phase::Places, forget);

fn forget() {
    TABLE.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Has places taken as long as it lives, where times are ([`crate::Waiting`]). Several count.
///
/// In a forked child it has nothing taken.
#[derive(Debug)]
#[must_use = "places are taken as long as it lives"]
pub struct Placing {
    process: u64,
}

impl Placing {
    /// Begins.
    ///
    /// # Errors
    ///
    /// The kernel has no memory for the table of stacks.
    pub fn start() -> io::Result<Self> {
        own_stack::learn();
        // Rounded up to a stamp that has not come yet: never longer than it is.
        let first = (stamp() | ASKERS) + 2;
        let more = |asked: u64| Some(if asked == 0 { first } else { asked + 1 });
        let _before = begun()?.asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        Ok(Self { process: identity::id() })
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        // A child begins with none.
        if let Some(table) = table().filter(|_| self.process == identity::id()) {
            let fewer = |asked: u64| Some(if asked & ASKERS == 1 { 0 } else { asked - 1 });
            let _before = table.asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        }
    }
}

/// Whether somebody asks for places.
pub(crate) fn are_asked() -> bool {
    table().is_some_and(|table| table.asked.load(Ordering::Relaxed) > 0)
}

/// For how long places have been noted; `None` while nobody asks for them. A waker that a leaf has
/// taken before has no place.
pub fn noted_for() -> Option<Duration> {
    let asked = table()?.asked.load(Ordering::Relaxed);
    let ticks = || stamp().saturating_sub(asked & !ASKERS);
    (asked != 0).then(|| Duration::from_nanos(ticks_to_ns(ticks())))
}

/// A leaf of the slot's task takes a waker, on this thread, if that polls the task. Its stack is
/// that of the caller's caller, into which this is inlined.
#[inline(always)]
pub(crate) fn take(slot: &Slot, is_polled_here: impl FnOnce(&Slot) -> bool) {
    if let Some(table) = table()
        && (table.asked.load(Ordering::Relaxed) > 0 || slot.places[0].load(Ordering::Relaxed) != 0)
        // A clone of a clone, elsewhere, is nobody's wait.
        && is_polled_here(at(&slot.cell).unwrap_or(slot))
    {
        table.note(slot, here());
    }
}

/// A wait of the slot's task has ended, after so many ticks.
#[inline]
pub(crate) fn ended(slot: &Slot, ticks: u64) {
    if slot.places[0].load(Ordering::Relaxed) != 0
        && let Some(table) = table()
        && table.asked.load(Ordering::Relaxed) > 0
    {
        table.ended(slot, ticks_to_ns(ticks));
    }
}

/// The place in the upper half, the group in the lower.
fn key(group: u32, place: u32) -> u64 {
    let group = if (group as usize) < GROUPS { group } else { 0 };
    u64::from(place) << 32 | u64::from(group)
}

/// The time of a wait, by group and place.
pub(crate) fn parts(
    group: u32,
    places: impl Iterator<Item = u32> + Clone,
    ns: u64,
) -> impl Iterator<Item = (u64, u64)> {
    let places = places.filter(|place| *place != 0);
    let count = places.clone().count().max(1) as u64;
    places.enumerate().map(move |(n, place)| {
        let rest = if n == 0 { ns % count } else { 0 };
        (key(group, place), ns / count + rest)
    })
}

/// The cells in which what has this hash may be.
fn cells<T>(of: &[T], hash: u64) -> impl Iterator<Item = (usize, &T)> {
    let first = hash as usize % of.len();
    (first..first + REACH).map(move |at| (at % of.len(), &of[at % of.len()]))
}

/// Whether the cell is the one of `key` now, and whether it was free.
fn claim(cell: &AtomicU64, key: u64) -> Option<bool> {
    let found = match cell.load(Ordering::Relaxed) {
        0 => cell.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed).err(),
        other => Some(other),
    };
    match found {
        None => Some(true),
        Some(found) => (found == key).then_some(false),
    }
}

impl Table {
    #[inline(never)]
    fn note(&self, slot: &Slot, (frame, stack): (usize, usize)) {
        let mut frames = [0; FRAMES];
        let top = slot.top.load(Ordering::Relaxed);
        // So is one that a handler makes beside the poll.
        if slot.polling.load(Ordering::Relaxed) == 0 || top <= stack {
            return;
        }
        let Some(depth) = own_stack::own_callers(frame, stack, top, &mut frames) else { return };
        let place = if self.asked.load(Ordering::Relaxed) > 0 { self.number(&frames[..depth]) } else { 0 };
        let taken = usize::from(slot.taken.load(Ordering::Relaxed));
        let is_known = || slot.places[..taken].iter().any(|known| known.load(Ordering::Relaxed) == place);
        if taken == 0 {
            for (n, to) in slot.places.iter().enumerate() {
                to.store(if n == 0 { place } else { 0 }, Ordering::Relaxed);
            }
        } else if taken < PLACES && !is_known() {
            slot.places[taken].store(place, Ordering::Relaxed);
        } else {
            return;
        }
        slot.taken.store(taken as u8 + u8::from(place != 0), Ordering::Relaxed);
    }

    /// The number of a stack.
    fn number(&self, frames: &[usize]) -> u32 {
        if frames.is_empty() {
            self.unknown.fetch_add(1, Ordering::Relaxed);
            return UNKNOWN_PLACE;
        }
        let hash = frames.iter().fold(frames.len() as u64, |hash, frame| mixed(hash ^ *frame as u64));
        let hash = (hash ^ hash >> 32).max(1);
        for (at, stack) in cells(&self.stacks, hash) {
            if at as u32 <= UNKNOWN_PLACE {
                continue;
            }
            match claim(&stack.hash, hash) {
                None => continue,
                Some(false) => {}
                Some(true) => {
                    for (to, frame) in stack.frames.iter().zip(frames) {
                        to.store(*frame, Ordering::Relaxed);
                    }
                    // Release: who finds the depth finds the frames.
                    stack.depth.store(frames.len(), Ordering::Release);
                }
            }
            return at as u32;
        }
        self.no_room.fetch_add(1, Ordering::Relaxed);
        UNKNOWN_PLACE
    }

    #[inline(never)]
    fn ended(&self, slot: &Slot, ns: u64) {
        let places = slot.places.each_ref().map(|place| place.load(Ordering::Relaxed));
        for (key, ns) in parts(slot.group.load(Ordering::Relaxed), places.into_iter(), ns) {
            self.add(key, ns);
        }
    }

    fn add(&self, key: u64, ns: u64) {
        let found = cells(&self.sums, mixed(key) >> 32).find(|(_, sum)| claim(&sum.key, key).is_some());
        match found {
            Some((_, sum)) => {
                sum.ns.fetch_add(ns, Ordering::Relaxed);
                sum.waits.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                self.no_room.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn stack(&self, number: u32) -> Option<Place> {
        let stack = self.stacks.get(number as usize)?;
        // Acquire: pairs with the store in `number`.
        let depth = stack.depth.load(Ordering::Acquire);
        let frames = stack.frames.iter().take(depth).map(|frame| frame.load(Ordering::Relaxed) as u64);
        (depth > 0).then(|| Place { number, stack: frames.collect() })
    }
}

fn mixed(word: u64) -> u64 {
    word.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

/// A place where tasks wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its number, which it keeps as long as the process.
    pub number: u32,
    /// The stack, from the leaf to the poll of its task: one less than each return address.
    pub stack: Vec<u64>,
}

/// The place of a number; `None` if it has none, as [`UNKNOWN_PLACE`].
pub fn place(number: u32) -> Option<Place> {
    table()?.stack(number)
}

/// All places from this number on, in order of their numbers.
pub fn places(from: u32) -> impl Iterator<Item = Place> {
    (from..STACKS as u32).filter_map(place)
}

/// The sums so far: key, nanoseconds, and how many waits that is.
pub(crate) fn sums() -> impl Iterator<Item = (u64, [u64; 2])> {
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let sums = table().map(|table| &table.sums[..]).unwrap_or_default();
    sums.iter().map(move |sum| (load(&sum.key), [load(&sum.ns), load(&sum.waits)])).filter(|sum| sum.0 != 0)
}

/// Why places are missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaceCoverage {
    /// Wakers whose stack is not known: their leaf's code has no frame pointers.
    pub unknown: u64,
    /// Stacks, and times, for which there was no room in the tables.
    pub no_room: u64,
}

/// How many places are missing so far, and why.
pub fn place_coverage() -> PlaceCoverage {
    let count = |of: fn(&Table) -> &AtomicU64| table().map_or(0, |table| of(table).load(Ordering::Relaxed));
    PlaceCoverage { unknown: count(|table| &table.unknown), no_room: count(|table| &table.no_room) }
}

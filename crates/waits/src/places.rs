//! The places where tasks wait: the stacks at which leaves have taken wakers.
//!
//! A leaf that cannot go on clones the waker that it was given, and its callers at that moment are
//! the place of the wait. So that stack is where the task waits, as long as that waker exists: no
//! second poll is needed. Stacks begin at the leaf, without the waker's own functions, and end at
//! the poll of the task. Each has a number.
//!
//! Each poll lends a waker with another tag than the one before, so a leaf that is polled takes one
//! again even if it compares wakers. A leaf that has taken a waker and then finds that it need not
//! wait drops it, and when the last waker goes so does its place. So the places of a task are those
//! of its last poll's wakers that still exist. If there is none, they are those of the latest poll
//! of which some exist, together with how long ago that was.
//!
//! # Times
//!
//! When a wait ends, its time is added to its group and to the place whose waker was the first to
//! wake, on the shelf of the thread that polls. While it lasts, and where no wake was seen, each
//! place gets an equal part.
//!
//! # Invariants
//!
//! 1. A stack that has a number never changes, and stays as long as the process. A forked child has
//!    none.
//! 2. Only the thread that polls a task writes the places of its slot.
//!
//! # Cost
//!
//! While places are not requested: two loads of a word for each poll, and one for each clone of a
//! waker. Otherwise a comparison of the return addresses with those of a place that was met before,
//! by any task. For another place a walk by the unwind tables, and a look-up. A stack that has no
//! number yet is walked twice.
//!
//! # Async-signal-safety
//!
//! No lock, no allocation. System calls for the pages of a stack that no walk has seen before, and
//! on a stack that is not the thread's own. Page faults for the table, and for the memory of a
//! thread that walks for the first time.
//!
//! # Safety
//!
//! The unsafe code makes a reference to a mapping that stays.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread::panicking;
use std::time::Duration;

use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_sys::own_stack;
use dormouse_sys::process::fork::{Phase, Reset};
use dormouse_sys::process::identity;
use dormouse_sys::stack::{CallFrame, here};

use crate::cancelled::{Cancellation, Cancelled, CancelledFor, CancelledRequest, DroppedTask};
use crate::cells::KeyedSums;
use crate::known::{Known, woken_by};
use crate::memory::{self, Zeroed};
use crate::registration::{PART, Registration, turn};
use crate::rows::{GROUPS, Shelf, shelves};
use crate::slot::{Slot, at};
use crate::stacks::{self, STACKS, Stacks, Taker};
pub use crate::stacks::{Place, PlaceCoverage, UNKNOWN_PLACE, UNLEARNED_PLACE, learn};
pub use dormouse_unwind::WalkEnd;

/// How many pairs of group and place have a sum of their own, beside those on shelves.
const SUMS: usize = 1 << 14;
/// The bits of a count of those who ask for places.
const ASKERS: u64 = (1 << 10) - 1;
/// How many wakers of a part have places.
const KEPT_OF_PART: u64 = 6;

struct Table {
    stacks: Stacks,
    cancelled: Cancelled,
    /// By [`key`], for what finds no room on the shelf of its thread.
    sums: KeyedSums<SUMS>,
}

// SAFETY: atomics alone.
unsafe impl Zeroed for Table {}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

/// 0 if places are not requested. Otherwise the number of requests, in the low bits ([`ASKERS`]),
/// and since when there has been one without a gap, as a stamp without these bits. There is a table
/// while there is a request.
static ASKED: AtomicU64 = AtomicU64::new(0);

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
    ASKED.store(0, Ordering::Relaxed);
    TABLE.store(ptr::null_mut(), Ordering::Relaxed);
}

/// As long as this lives, places are recorded, provided that times are taken ([`crate::Waiting`]).
/// Several may exist at once.
///
/// In a forked child, one that the parent made has no effect.
#[derive(Debug)]
#[must_use = "places are taken as long as it lives"]
pub struct Placing {
    process: u64,
}

impl Placing {
    /// Begins to record places.
    ///
    /// # Errors
    ///
    /// If the kernel has no memory for the table of stacks, or there are a thousand requests.
    pub fn start() -> io::Result<Self> {
        own_stack::learn();
        stacks::begin();
        // Rounded up to a stamp that has not come yet: never longer than it is.
        let first = (stamp() | ASKERS) + 2;
        let more = |asked: u64| match asked & ASKERS {
            0 => Some(first),
            ASKERS => None,
            _ => Some(asked + 1),
        };
        let table = begun()?;
        if !are_asked() {
            // If another thread does the same at this moment, the first requests of one are lost.
            table.cancelled.begin();
        }
        let asked = ASKED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        asked.map_err(|_| io::Error::other("too many requests for places"))?;
        Ok(Self { process: identity::id() })
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        // A child begins with none.
        if self.process == identity::id() {
            let fewer = |asked: u64| Some(if asked & ASKERS == 1 { 0 } else { asked - 1 });
            let _before = ASKED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        }
    }
}

/// Whether places are requested, by a [`Placing`] of this process.
#[inline]
pub fn are_asked() -> bool {
    ASKED.load(Ordering::Relaxed) > 0
}

/// For how long places have been recorded; `None` while they are not. A waker that a leaf has taken
/// before has no place.
pub fn noted_for() -> Option<Duration> {
    let asked = ASKED.load(Ordering::Relaxed);
    let ticks = || stamp().saturating_sub(asked & !ASKERS);
    (asked != 0).then(|| Duration::from_nanos(ticks_to_ns(ticks())))
}

/// The number of the poll that goes on, from 1 on.
#[inline]
fn poll(slot: &Slot) -> u32 {
    (slot.polls.load(Ordering::Relaxed) as u32).wrapping_add(1)
}

/// The turn of the poll that begins; 0 while places are not requested.
#[inline]
pub(crate) fn turn_of_poll(slot: &Slot) -> usize {
    if are_asked() { turn(poll(slot)) } else { 0 }
}

/// A leaf takes a waker of the slot, on this thread, if that polls the slot's task: the number of
/// the registration, and the turn. Its stack is that of the caller's caller, into which this is
/// inlined.
#[inline(always)]
pub(crate) fn take(slot: &Slot, is_polled_here: impl FnOnce(&Slot) -> bool) -> Option<(usize, usize)> {
    if !are_asked() {
        return None;
    }
    let main = slot.main();
    // A clone of a clone, elsewhere, is at the other's place.
    if !is_polled_here(at(&main.cell).unwrap_or(main)) {
        return None;
    }
    // Of a part that keeps each of its wakers, the next is the one that it was lent.
    let is_part = slot.is_part.load(Ordering::Relaxed);
    if is_part && slot.share.wakers() >= KEPT_OF_PART {
        return None;
    }
    table()?.note(main, is_part, here())
}

/// Adds a wait of the slot's task that has ended after `ticks`, to the calling thread's shelf.
/// `woken`: the value in the slot.
#[inline]
pub(crate) fn ended(shelf: &Shelf, slot: &Slot, ticks: u64, woken: u64) {
    if are_asked()
        && let Some(table) = table()
    {
        table.ended(shelf, slot, ticks_to_ns(ticks), woken);
    }
}

/// The slot's task is dropped before its end, on this thread: stores where it waits, while its
/// leaves still have their wakers, and the stack that drops it.
#[cold]
#[inline(never)]
pub(crate) fn drops(slot: &Slot) {
    let taker = Taker::dropping(here());
    if let Some(table) = table() {
        let stack = table.stacks.place_of(&taker).unwrap_or(UNKNOWN_PLACE);
        slot.dropped.store(DroppedTask::now(slot, stack, panicking()).word(), Ordering::Relaxed);
    }
}

/// A request has ended, and was cancelled.
#[cold]
#[inline(never)]
pub(crate) fn cancelled(request: CancelledRequest) {
    if are_asked()
        && let Some(table) = table()
    {
        table.cancelled.add(request);
    }
}

/// The requests that were cancelled in the last five to ten minutes, while places were requested,
/// by group, place and the stack that dropped them. A row may come in two parts. `None` while
/// places are not requested.
///
/// # Cost
///
/// Reads some hundred rows.
pub fn read_cancelled(each: impl FnMut(&Cancellation)) -> Option<CancelledFor> {
    table().filter(|_| are_asked()).map(|table| table.cancelled.read(each))
}

/// Forgets cancelled requests that are old. While places are requested, one thread calls it from
/// time to time.
pub fn forget_old_cancelled() {
    if let Some(table) = table() {
        table.cancelled.turn();
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
    let (each, rest) = match places.clone().count() as u64 {
        // Mostly: no division.
        0 | 1 => (ns, 0),
        count => (ns / count, ns % count),
    };
    places.enumerate().map(move |(n, place)| (key(group, place), if n == 0 { each + rest } else { each }))
}

impl Table {
    /// The registration of a waker that is taken by a function with these registers, and the turn.
    /// `None`: the caller is no leaf, or there is no registration for it.
    #[inline(never)]
    fn note(&self, slot: &Slot, is_part: bool, from: CallFrame) -> Option<(usize, usize)> {
        let top = slot.top.load(Ordering::Relaxed);
        // So is one that a handler makes beside the poll.
        if slot.polling.load(Ordering::Relaxed) == 0 || top <= from.stack {
            return None;
        }
        let taker = Taker { from, top, own: own_stack::from(from.stack), is_to_first: false };
        let poll = poll(slot);
        let has = |registration: &&Registration| self.stacks.has(registration.place(), &taker);
        let mut registrations = slot.registrations.iter();
        // Most tasks wait at one place, and were there before.
        let known = registrations.next().filter(has).map(Registration::place);
        let known = known.or_else(|| self.stacks.again(&taker));
        let known = known.or_else(|| registrations.find(has).map(Registration::place));
        let place = known.or_else(|| self.stacks.place_of(&taker))?;
        let (n, place) = Self::registration(slot, poll, place)?;
        let of = if is_part { PART } else { poll };
        slot.registrations[n].take(place, of).then_some((n + 1, turn(poll)))
    }

    /// A registration for the place. A registration whose wakers are gone is free, unless one of
    /// them has woken the task in this poll.
    fn registration(slot: &Slot, poll: u32, place: u32) -> Option<(usize, u32)> {
        let by = woken_by(slot.woken.load(Ordering::Relaxed));
        let is_free = |(n, registration): (usize, &Registration)| registration.is_free() && by != Some(n);
        let registrations = || slot.registrations.iter();
        let n = registrations()
            .position(|registration| registration.place() == place)
            .or_else(|| registrations().enumerate().position(is_free));
        if n.is_none() {
            slot.crowded.store(poll, Ordering::Relaxed);
        }
        Some((n?, place))
    }

    #[inline(never)]
    fn ended(&self, shelf: &Shelf, slot: &Slot, ns: u64, woken: u64) {
        let known = if woken == 0 { Known::of(slot) } else { Known::woken(slot, woken) };
        for (key, ns) in parts(slot.group.load(Ordering::Relaxed), known.charged(), ns) {
            if !shelf.places.add_own(key, ns) && !self.sums.add(key, ns) {
                self.stacks.no_room.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The place with a number; `None` if there is none, as for [`UNKNOWN_PLACE`] and
/// [`UNLEARNED_PLACE`].
pub fn place(number: u32) -> Option<Place> {
    table()?.stacks.get(number)
}

/// All places from this number on, in order of their numbers.
pub fn places(from: u32) -> impl Iterator<Item = Place> {
    (from..STACKS as u32).filter_map(place)
}

/// The sums so far: key, nanoseconds, and how many waits that is. A key may come several times.
pub(crate) fn sums() -> impl Iterator<Item = (u64, [u64; 2])> {
    let shared = table().into_iter().flat_map(|table| table.sums.read());
    shelves().flat_map(|(_, shelf)| shelf.places.read()).chain(shared)
}

/// How many places are missing so far, and why.
pub fn place_coverage() -> PlaceCoverage {
    table().map(|table| table.stacks.coverage()).unwrap_or_default()
}

//! The waker around the runtime's, which records wakes.
//!
//! A poll is given a waker of ours, whose data is the task's slot. It costs nothing until a leaf
//! clones it: that clones the runtime's waker into the slot, and later clones only count. When the
//! last one is dropped, the runtime's is dropped, too. So the runtime sees wakers for as long as
//! leaves hold them, and no longer; a runtime that drops a task with its last waker still does.
//!
//! A leaf that compares wakers ([`Waker::will_wake`]) finds ours the same from poll to poll as long
//! as the runtime's is, because the slot is. If a runtime's waker changes while leaves hold another
//! one, the new one gets a slot of its own (a *cell*), which belongs to the task's.
//!
//! While places are requested, the data have a tag besides: in the lent waker's the *turn* of the
//! poll, in that of a waker that a leaf takes also the number of the registration. So each leaf
//! that is polled takes a waker, each wake records its place, and when the last waker of a place
//! goes the place is empty.
//!
//! # The two kinds of wakers
//!
//! The *lent* waker is on the stack of the poll, and is not counted; those of leaves are. They
//! compare equal, and so cannot be distinguished by their data. Other state distinguishes them
//! where needed:
//!
//! | poller | wakers counted | the caller's waker is | so |
//! |---|---|---|---|
//! | none | 1 or more | a leaf's | it counts: the runtime's in the slot is there |
//! | this thread | any | either | the poll goes on below on the stack: `lent` is there |
//! | another | 1 or more | either | one more counts first |
//! | another | 0 | the lent one | the poll goes on until the caller is done: `lent` is there |
//!
//! The poller is a thread's start number, which no other thread has, and which a fork changes: a
//! task that another thread polled in the parent is not mistaken for one that is polled here.
//!
//! If the runtime's clone panics, nothing has changed, because it is called first.
//!
//! # Safety
//!
//! The unsafe code is the vtable, wakers of the runtime by the invariants of
//! [`share`](crate::share), and `lent` by the table above. A [`Lent`] does not leave the function
//! that polls, so it ends with the poll.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::Ordering;
use std::task::{RawWaker, RawWakerVTable, Waker};

use dormouse_clock::overhead::TASKS;
use dormouse_clock::stamp;
use dormouse_sys::thread;

use crate::registration::Registration;
use crate::share::{CELL, Last, More, Raw, TASK};
use crate::sites;
use crate::slab;
use crate::slot::{self, PLACES, STAMP_BITS, Slot, at};

/// The low bits of a waker's data, in which a slot's address has zeros: the number of the
/// registration where it counts, and the turn of the poll that has given it out (`registration`).
const PLACE: usize = 0b111;
const TURN: u32 = 3;
const TAG: usize = 0b1_1111;
const _: () = assert!(TAG < align_of::<Slot>() && PLACES <= PLACE && PLACE as u64 == u64::MAX >> STAMP_BITS);

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

/// A poll with a waker of ours.
#[derive(Debug)]
pub(crate) struct Lent {
    cell: &'static Slot,
    waker: ManuallyDrop<Waker>,
}

impl Drop for Lent {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the load in `is_left_alone`.
        self.cell.poller.store(0, Ordering::Release);
    }
}

/// The slot whose waker is lent: the task's, or one of its cells.
#[inline]
fn cell_of(main: &'static Slot) -> &'static Slot {
    at(&main.cell).unwrap_or(main)
}

/// The waker for a poll on the thread with that start number: that of `main`'s task around
/// `runtime`'s. `None`: there is no slot for another cell.
#[inline]
pub(crate) fn lend(main: &'static Slot, start: u64, runtime: &Waker) -> Option<Lent> {
    let cell = cell_of(main);
    let is_anothers = cell.share.has_wakers() && cell.share.raw() != raw(runtime);
    let cell = if is_anothers { other_cell(main)? } else { cell };
    Some(lend_of(cell, main, start, runtime))
}

#[inline(always)]
fn lend_of(cell: &'static Slot, main: &Slot, start: u64, runtime: &Waker) -> Lent {
    cell.lent.store(ptr::from_ref(runtime).cast_mut(), Ordering::Relaxed);
    // Release: a handler of this thread that finds itself in the poll finds the poll's waker.
    cell.poller.store(start, Ordering::Release);
    let tag = crate::places::turn_of_poll(main) << TURN;
    let data = ptr::from_ref(cell).cast::<()>().map_addr(|slot| slot | tag);
    // SAFETY: the vtable is of slots, and the waker is not dropped.
    let waker = ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(data, &VTABLE)) });
    Lent { cell, waker }
}

/// The waker for a poll of a part of `main`'s task, around `runtime`, which a collection has given
/// it. `cell`: the part's, from now on.
pub(crate) fn lend_part(
    cell: &mut Option<&'static Slot>,
    main: &'static Slot,
    start: u64,
    runtime: &Waker,
) -> Option<Lent> {
    let fits = |cell: &&Slot| {
        ptr::eq(cell.main(), main) && (!cell.share.has_wakers() || cell.share.raw() == raw(runtime))
    };
    if cell.as_ref().is_none_or(|cell| !fits(cell)) {
        leave_part(cell);
        let new = new_cell(main)?;
        new.is_part.store(true, Ordering::Relaxed);
        new.share.hold();
        *cell = Some(new);
    }
    Some(lend_of((*cell)?, main, start, runtime))
}

/// Whether a waker is one of these.
pub(crate) fn is_ours(waker: &Waker) -> bool {
    ptr::eq(waker.vtable(), &raw const VTABLE)
}

/// The part holds its cell no longer.
pub(crate) fn leave_part(cell: &mut Option<&'static Slot>) {
    if let Some(cell) = cell.take() {
        leave(cell, TASK);
    }
}

impl Lent {
    /// The waker that the future is to be given.
    #[inline]
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }
}

#[inline]
fn raw(waker: &Waker) -> Raw {
    Raw::new(waker.data(), waker.vtable())
}

/// Another cell for the task, from now on; leaves have wakers of the one before.
#[cold]
fn other_cell(main: &Slot) -> Option<&'static Slot> {
    let cell = new_cell(main)?;
    cell.share.hold();
    if let Some(before) = at(&main.cell) {
        leave(before, TASK);
    }
    // Release: pairs with the load in `at`.
    main.cell.store(ptr::from_ref(cell).cast_mut(), Ordering::Release);
    Some(cell)
}

/// A slot that wakes the task of `main`, for the thread that polls.
fn new_cell(main: &Slot) -> Option<&'static Slot> {
    let cell = slab::take(main.home.load(Ordering::Relaxed) as usize)?;
    // Release: pairs with the load in `at`.
    cell.of.store(ptr::from_ref(main).cast_mut(), Ordering::Release);
    main.share.add_cell();
    Some(cell)
}

fn leave(slot: &Slot, what: u64) {
    if slot.share.leave(what) {
        free(slot);
    }
}

/// Gives back a slot that is in no use, and with the last cell its task's.
fn free(slot: &Slot) {
    let main = at(&slot.of);
    slot.of.store(ptr::null_mut(), Ordering::Relaxed);
    debug_assert!(
        slot.registrations.iter().all(Registration::is_free),
        "a waker that was counted has gone uncounted"
    );
    slot.is_part.store(false, Ordering::Relaxed);
    slab::give_back(slot);
    if let Some(main) = main {
        leave(main, CELL);
    }
}

/// The task ends: it holds its slots no longer.
pub(crate) fn end(main: &Slot) {
    if let Some(cell) = at(&main.cell) {
        main.cell.store(ptr::null_mut(), Ordering::Relaxed);
        leave(cell, TASK);
    }
    leave(main, TASK);
}

/// Whether a leaf has a waker of the task: without one, nothing can wake it, unless it is entered
/// by hand.
pub(crate) fn is_awaited(main: &'static Slot) -> bool {
    let cell = cell_of(main);
    // Cells that the task has left are there for their wakers.
    let others = main.share.cells().saturating_sub(u64::from(!ptr::eq(cell, main)));
    cell.share.has_wakers() || main.share.has_wakers() || others > 0
}

/// Whether no leaf has a waker of the task, and no thread polls it. A reader believes it if the
/// task's stamps are the same before and after: see [`crate::living`].
pub(crate) fn is_left_alone(main: &'static Slot) -> bool {
    // Acquire: pairs with the stores in `lend` and in the drop of a `Lent`.
    !is_awaited(main) && cell_of(main).poller.load(Ordering::Acquire) == 0
}

/// Wakes the task of a slot, or the one that has it by now, if a leaf has a waker: whether that is
/// so. A spurious wake; at the poll that follows, while places are asked for, leaves find a waker
/// that is not theirs, and take it.
pub(crate) fn wake_task(main: &'static Slot) -> bool {
    let cell = cell_of(main);
    let has_waker = cell.share.more() == More::Counted;
    if has_waker {
        woken(main, ptr::null());
        // Dropped also if the runtime's waker panics.
        let _counted = Counted(cell);
        // SAFETY: counted.
        unsafe { runtimes(cell) }.wake_by_ref();
    }
    has_waker
}

/// A waker that counts until its drop.
struct Counted(&'static Slot);

impl Drop for Counted {
    fn drop(&mut self) {
        drop_counted(self.0);
    }
}

unsafe fn of<'a>(data: *const ()) -> &'a Slot {
    // SAFETY: our wakers' data are slots, which stay, and tags.
    unsafe { &*data.map_addr(|data| data & !TAG).cast::<Slot>() }
}

/// The registration of a waker that counts there, and its turn.
#[inline]
fn registration(slot: &Slot, data: *const ()) -> Option<(&Registration, usize)> {
    let number = (data.addr() & PLACE).checked_sub(1)?;
    Some((&slot.main().registrations[number], (data.addr() & TAG) >> TURN))
}

/// The runtime's waker of the slot.
///
/// # Safety
///
/// The caller counts, and uses it only as long as that is so.
#[inline]
unsafe fn runtimes(slot: &Slot) -> ManuallyDrop<Waker> {
    // SAFETY: there by the invariants of `share`, which owns it.
    ManuallyDrop::new(unsafe { Waker::from_raw(slot.share.raw().into_raw_waker()) })
}

/// The runtime's waker of the poll that goes on.
///
/// # Safety
///
/// The poll does not end before the caller is done.
#[inline]
unsafe fn lent(slot: &Slot) -> &Waker {
    // SAFETY: set for this poll, during which it stays.
    unsafe { &*slot.lent.load(Ordering::Relaxed) }
}

/// Whether the calling thread polls with the slot's waker.
#[inline]
fn is_polled_here(slot: &Slot) -> bool {
    // Acquire: pairs with the store in `lend`.
    let poller = slot.poller.load(Ordering::Acquire);
    poller != 0 && thread::try_current().is_some_and(|block| block.start() == poller)
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: our wakers' data.
    let slot = unsafe { of(data) };
    let data = match crate::places::take(slot, is_polled_here) {
        Some((registration, turn)) => data.map_addr(|data| data & !TAG | turn << TURN | registration),
        None => data,
    };
    match slot.share.more() {
        More::Counted => return placed(slot, data),
        More::Full => {
            sites::escapes(slot.main());
            // SAFETY: the caller's waker is counted, or the count is at its limit and cannot reach
            // 0 meanwhile.
            let runtimes = unsafe { runtimes(slot) };
            return to_raw(Waker::clone(&runtimes));
        }
        More::Empty => {}
    }
    // SAFETY: none counts, so the caller's is the lent one.
    let own = unsafe { lent(slot) }.clone();
    if !is_polled_here(slot) {
        // Another thread clones the lent waker, within the poll: it gets the runtime's.
        sites::escapes(slot.main());
        return to_raw(own);
    }
    if slot.share.fill(raw(&own)) {
        std::mem::forget(own);
    }
    placed(slot, data)
}

/// A waker that counts, also at its place.
#[inline]
fn placed(slot: &Slot, data: *const ()) -> RawWaker {
    if let Some((registration, turn)) = registration(slot, data) {
        registration.add(turn);
    }
    RawWaker::new(data, &VTABLE)
}

/// A leaf's waker is about to count no longer.
#[inline]
fn unplaced(slot: &Slot, data: *const ()) {
    if let Some((registration, turn)) = registration(slot, data) {
        registration.remove(turn, is_polled_here(slot));
    }
}

fn to_raw(waker: Waker) -> RawWaker {
    let waker = ManuallyDrop::new(waker);
    RawWaker::new(waker.data(), waker.vtable())
}

/// The first wake since the last poll began makes the task runnable.
#[inline]
fn woken(main: &Slot, data: *const ()) {
    // Of two that are the first at the same time one is as good as the other.
    if main.woken.load(Ordering::Relaxed) == 0 {
        let by = (data.addr() & PLACE) as u64;
        main.woken.store(slot::wake(stamp(), by), Ordering::Relaxed);
    }
}

unsafe fn wake(data: *const ()) {
    // SAFETY: our wakers' data.
    let slot = unsafe { of(data) };
    let timed = TASKS.begin();
    woken(slot.main(), data);
    unplaced(slot, data);
    let last = slot.share.release_last();
    drop(timed);
    if let Some(last) = last {
        return take(slot, last).wake();
    }
    // SAFETY: a leaf's waker, which counts until it is dropped.
    unsafe { runtimes(slot) }.wake_by_ref();
    drop_counted(slot);
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: our wakers' data.
    let slot = unsafe { of(data) };
    let timed = TASKS.begin();
    woken(slot.main(), data);
    drop(timed);
    if slot.poller.load(Ordering::Relaxed) == 0 {
        // SAFETY: no other code has a lent waker, so this one is a leaf's, and is counted.
        return unsafe { runtimes(slot) }.wake_by_ref();
    }
    match slot.share.more() {
        // SAFETY: no leaf has a waker, so this is the lent one.
        More::Empty => unsafe { lent(slot) }.wake_by_ref(),
        More::Counted => {
            // SAFETY: counted just now.
            unsafe { runtimes(slot) }.wake_by_ref();
            drop_counted(slot);
        }
        // SAFETY: the count is at its limit, so not all of these wakers go meanwhile.
        More::Full => unsafe { runtimes(slot) }.wake_by_ref(),
    }
}

unsafe fn drop_waker(data: *const ()) {
    // SAFETY: our wakers' data; the lent waker is not dropped.
    let slot = unsafe { of(data) };
    unplaced(slot, data);
    drop_counted(slot);
}

/// A waker counts no longer.
#[inline]
fn drop_counted(slot: &Slot) {
    if let Some(last) = slot.share.release() {
        drop(take(slot, last));
    }
}

/// The runtime's waker, which the last of ours takes with it, out of the slot.
fn take(slot: &Slot, last: Last) -> Waker {
    if last.is_free {
        free(slot);
    }
    // SAFETY: the caller's now, by the invariants of `share`.
    unsafe { Waker::from_raw(last.raw.into_raw_waker()) }
}

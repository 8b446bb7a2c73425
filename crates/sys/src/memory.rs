//! Reserving memory before a step of a thread of dormouse, or before a call from C.
//!
//! If an allocation of Rust's fails, the process ends, and no step is worth that. So before a step
//! a thread checks whether the most memory that the step may take is available, and skips the step
//! if not.
//!
//! The check alone leaves a gap: another thread may take the memory before the step does. Where
//! [`Reserving`] is the global allocator, as in the C library, a [`Step`] closes the gap: the
//! memory that was found is kept until the step's end, and an allocation that the system refuses is
//! served from it. (Two things are not covered, because Rust's standard library allocates them past
//! the global allocator: the handle of a thread that begins, and that of a thread that waits in a
//! channel.) Where the host has another allocator, the memory is freed at once, and the gap
//! remains: a host that takes the last memory would fail at its own next allocation anyway.
//!
//! # The reserves
//!
//! | a reserve is | event | next |
//! |---|---|---|
//! | free | a thread in a step asks for memory | held, with a block of it |
//! | held | an allocation of its thread that the system refuses | the same, with one more user |
//! | held | the step ends | left, or free if nobody uses it |
//! | left | the last allocation from it is given back | free |
//!
//! A reserve is a block of memory for one thread's step. A fork child has the reserves of the
//! parent's other threads, but not these threads. It frees reserves without users by forgetting
//! their blocks, because a handler in the child may not free memory. If a reserve has users, their
//! allocations belong to the child as any other memory does, and the reserve is kept until the last
//! of them is freed.
//!
//! # Invariants
//!
//! 1. Only the thread that holds a reserve allocates from it.
//! 2. A reserve has as many users as there are allocations from it, and one for its step. The block
//!    goes back to the system with the last of them, after its range was removed from the reserve:
//!    so the range of no reserve contains memory that was given to somebody else.
//!
//! # Safety
//!
//! The unsafe code is the allocator: it passes requests on to the system's allocator, and serves
//! those that it refuses from a block of its own.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::process::fork::{Phase, Reset};

/// The most blocks at once. Beyond them memory is looked for, and not kept.
const RESERVES: usize = 64;

/// The unit of ranges. Blocks begin at a multiple of it, so that a range fits into a word.
const UNIT: usize = 4096;
const LENGTH_BITS: u32 = 28;

static TABLE: [Reserve; RESERVES] = [const { Reserve::new() }; RESERVES];
/// Allocations that lie in blocks.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// Whether the process allocates by [`Reserving`], and [`IN_CHILD`] has joined.
static IS_RESERVING: AtomicBool = AtomicBool::new(false);
static IN_CHILD: Reset = Reset::new(Phase::Reserves, begin_in_child);

thread_local! {
    /// Whether the thread is in a step. Its address stands for the thread.
    static IS_STEPPING: Cell<bool> = const { Cell::new(false) };
}

/// Whether `bytes` bytes of memory are available. Inside of a [`Step`] they are reserved for it.
pub fn is_there(bytes: usize) -> bool {
    if IS_STEPPING.get() && IS_RESERVING.load(Ordering::Relaxed) {
        return take_reserve(bytes);
    }
    could_be_had(bytes)
}

/// Whether the allocator can give `bytes` bytes, which are freed at once.
fn could_be_had(bytes: usize) -> bool {
    let mut asked = Vec::<u8>::new();
    let is_there = asked.try_reserve_exact(bytes).is_ok();
    // Seen from outside, so that it is really asked for.
    std::hint::black_box(&mut asked);
    is_there
}

/// The work of a thread that calls [`is_there`] before it allocates. A step inside of another one
/// is a part of it.
#[derive(Debug)]
#[must_use = "the step ends with it"]
pub struct Step {
    is_outermost: bool,
    /// It belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl Step {
    /// Begins a step.
    #[inline]
    pub fn begin() -> Self {
        Self { is_outermost: !IS_STEPPING.replace(true), not_send: PhantomData }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if self.is_outermost {
            IS_STEPPING.set(false);
            let thread = thread();
            // Relaxed: the thread's own stores.
            let own = TABLE.iter().filter(|reserve| reserve.thread.load(Ordering::Relaxed) == thread);
            own.for_each(Reserve::leave);
        }
    }
}

/// The system's allocator; allocations that it refuses are served from what a [`Step`] has
/// reserved.
///
/// # Cost
///
/// A comparison for each allocation, and a load for each free.
#[derive(Debug, Default, Clone, Copy)]
pub struct Reserving;

impl Reserving {
    /// Begins a step in a process whose global allocator this is.
    #[inline]
    pub fn step(self) -> Step {
        if !IS_RESERVING.load(Ordering::Relaxed) && IN_CHILD.join() {
            IS_RESERVING.store(true, Ordering::Relaxed);
        }
        Step::begin()
    }
}

/// The table in a child: its thread goes on with its step, and the other threads' steps are over.
/// (A fork in the midst of another thread's `leave` loses that reserve.)
fn begin_in_child() {
    let own = thread();
    for reserve in &TABLE {
        let thread = reserve.thread.load(Ordering::Relaxed);
        // In the middle of `take_reserve` and `unuse` a reserve is `LEFT`, and has no users.
        let users = reserve.users.load(Ordering::Relaxed);
        match thread {
            0 => {}
            LEFT if users > 0 => {}
            LEFT => reserve.forget(),
            _ if thread == own => {}
            _ if users > 1 => {
                reserve.thread.store(LEFT, Ordering::Relaxed);
                reserve.users.store(users - 1, Ordering::Relaxed);
            }
            _ => reserve.forget(),
        }
    }
}

// SAFETY: each result comes from the system, or is a part of a block that nothing else uses.
unsafe impl GlobalAlloc for Reserving {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let place = unsafe { System.alloc(layout) };
        if place.is_null() { from_reserve(layout) } else { place }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let place = unsafe { System.alloc_zeroed(layout) };
        if !place.is_null() {
            return place;
        }
        let place = from_reserve(layout);
        if !place.is_null() {
            // SAFETY: the place has `layout.size()` bytes.
            unsafe { place.write_bytes(0, layout.size()) };
        }
        place
    }

    #[inline]
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // Relaxed: who has been given a place has been given what was before that, too.
        if INSIDE.load(Ordering::Relaxed) == 0 || !give_back(place) {
            // SAFETY: the caller's promise, and no block has it.
            unsafe { System.dealloc(place, layout) };
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: the size is allowed with this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let is_inside = INSIDE.load(Ordering::Relaxed) != 0 && reserve_of(place).is_some();
        let moved = if is_inside {
            // SAFETY: the caller's promise.
            unsafe { self.alloc(wanted) }
        } else {
            // SAFETY: as above, and no block has it.
            let moved = unsafe { System.realloc(place, layout, size) };
            if !moved.is_null() {
                return moved;
            }
            from_reserve(wanted)
        };
        if !moved.is_null() {
            // SAFETY: both are there, and apart. The old one is the caller's to give back.
            unsafe {
                ptr::copy_nonoverlapping(place, moved, layout.size().min(size));
                self.dealloc(place, layout);
            }
        }
        moved
    }
}

/// A block of memory, and the thread that holds it.
#[derive(Debug)]
struct Reserve {
    /// The thread whose step holds it, or 0. See [`LEFT`].
    thread: AtomicUsize,
    /// The block as the system returned it.
    block: AtomicPtr<u8>,
    /// Its first unit and the number of units, in one word; 0 if there is no block.
    range: AtomicU64,
    /// The first address that is free.
    next: AtomicUsize,
    users: AtomicUsize,
}

/// Standard handles of threads, and the C library, take such from the system, past the allocator: a
/// thread that begins or waits. So a little must be left beside the block.
const SMALL: Layout = Layout::new::<[u64; 16]>();

/// No thread, but the reserve is not free.
const LEFT: usize = 1;

/// The address of a thread-local: no other living thread has it.
fn thread() -> usize {
    IS_STEPPING.with(|own| ptr::from_ref(own).addr())
}

/// The layout of a block with room for `bytes` bytes, and how many of its units are used.
fn block_of(bytes: usize) -> Option<(Layout, usize)> {
    let units = bytes.div_ceil(UNIT).max(1);
    // One more, since the system gives it any alignment.
    let size = units.checked_add(1)?.checked_mul(UNIT)?;
    (units < 1 << LENGTH_BITS).then_some((Layout::from_size_align(size, 16).ok()?, units))
}

fn take_reserve(bytes: usize) -> bool {
    let Some((layout, units)) = block_of(bytes) else { return false };
    // Acquire: pairs with the stores of the thread that has freed it.
    let free = TABLE.iter().find(|reserve| {
        reserve.thread.compare_exchange(0, LEFT, Ordering::Acquire, Ordering::Relaxed).is_ok()
    });
    // Memory is not missing because all reserves are taken: it is only not kept then.
    let Some(reserve) = free else { return could_be_had(bytes) };
    // SAFETY: they have sizes.
    let [place, small] = [layout, SMALL].map(|layout| unsafe { System.alloc(layout) });
    // SAFETY: as they were given.
    let give_back = |place: *mut u8, layout| unsafe { System.dealloc(place, layout) };
    if !small.is_null() {
        give_back(small, SMALL);
    }
    if place.is_null() || small.is_null() {
        if !place.is_null() {
            give_back(place, layout);
        }
        reserve.thread.store(0, Ordering::Release);
        return false;
    }
    let first = place.addr().div_ceil(UNIT);
    reserve.block.store(place, Ordering::Relaxed);
    reserve.next.store(first * UNIT, Ordering::Relaxed);
    reserve.range.store((first as u64) << LENGTH_BITS | units as u64, Ordering::Relaxed);
    reserve.thread.store(thread(), Ordering::Relaxed);
    // Last: a child of a fork frees a reserve that has no users.
    reserve.users.store(1, Ordering::Relaxed);
    true
}

/// A part of a block of the thread's, or null.
#[cold]
fn from_reserve(layout: Layout) -> *mut u8 {
    let thread = thread();
    let mut own = TABLE.iter().filter(|reserve| reserve.thread.load(Ordering::Relaxed) == thread);
    own.find_map(|reserve| reserve.cut(layout)).unwrap_or(ptr::null_mut())
}

/// The reserve that has this place in its block.
#[cold]
fn reserve_of(place: *mut u8) -> Option<&'static Reserve> {
    // Relaxed: the thread has been given the place after the range was there, and that stays until
    // the place is given back.
    TABLE.iter().find(|reserve| reserve.range().contains(&place.addr()))
}

/// Gives back a place in a block; false: it is in none.
#[cold]
fn give_back(place: *mut u8) -> bool {
    let Some(reserve) = reserve_of(place) else { return false };
    INSIDE.fetch_sub(1, Ordering::Relaxed);
    reserve.unuse();
    true
}

impl Reserve {
    const fn new() -> Self {
        Self {
            thread: AtomicUsize::new(0),
            block: AtomicPtr::new(ptr::null_mut()),
            range: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            users: AtomicUsize::new(0),
        }
    }

    fn range(&self) -> std::ops::Range<usize> {
        let word = self.range.load(Ordering::Relaxed);
        let first = (word >> LENGTH_BITS) as usize * UNIT;
        first..first + (word as usize & ((1 << LENGTH_BITS) - 1)) * UNIT
    }

    /// Called only by the thread that holds the reserve.
    fn cut(&self, layout: Layout) -> Option<*mut u8> {
        let start = self.next.load(Ordering::Relaxed).checked_next_multiple_of(layout.align())?;
        let end = start.checked_add(layout.size()).filter(|end| *end <= self.range().end)?;
        self.next.store(end, Ordering::Relaxed);
        self.users.fetch_add(1, Ordering::Relaxed);
        INSIDE.fetch_add(1, Ordering::Relaxed);
        Some(self.block.load(Ordering::Relaxed).with_addr(start))
    }

    /// Frees it in a child, whose block stays unused.
    fn forget(&self) {
        self.users.store(0, Ordering::Relaxed);
        self.range.store(0, Ordering::Relaxed);
        self.thread.store(0, Ordering::Relaxed);
    }

    /// The step of its thread ends.
    fn leave(&self) {
        self.thread.store(LEFT, Ordering::Relaxed);
        self.unuse();
    }

    /// One user less.
    fn unuse(&self) {
        // AcqRel: the last one is behind what all others did with their memory.
        if self.users.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let range = self.range();
        self.range.store(0, Ordering::Relaxed);
        let block = self.block.load(Ordering::Relaxed);
        if let Some((layout, _)) = block_of(range.len()) {
            // SAFETY: `take_reserve` has it by this layout, and invariant 2.
            unsafe { System.dealloc(block, layout) };
        }
        // Release: pairs with the exchange in `take_reserve`.
        self.thread.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_there_within_reason() {
        assert!(is_there(4096));
        assert!(!is_there(usize::MAX / 4));
    }

    /// One test of the whole table: others would hold reserves meanwhile.
    #[test]
    fn a_step_allocates_from_what_it_found() {
        let layout = Layout::from_size_align(24, 8).unwrap();
        let free = || TABLE.iter().filter(|reserve| reserve.thread.load(Ordering::Relaxed) == 0).count();
        assert!(from_reserve(layout).is_null(), "outside of a step");
        let step = Reserving.step();
        assert!(from_reserve(layout).is_null(), "before it has asked");
        assert!(is_there(10_000) && is_there(1));
        drop(Step::begin());
        assert_eq!(free(), RESERVES - 2, "a step inside of it ends nothing");
        let big = from_reserve(Layout::from_size_align(10_000, 4096).unwrap());
        assert!(!big.is_null() && big.addr().is_multiple_of(4096));
        let all: Vec<_> =
            (0..400).map(|_| from_reserve(layout)).take_while(|place| !place.is_null()).collect();
        assert_eq!(all.len(), (3 * 4096 - 10_000) / 24 + 4096 / 24);
        let elsewhere = std::thread::spawn(move || from_reserve(layout).is_null());
        assert!(elsewhere.join().unwrap(), "another thread's");
        drop(step);
        assert_eq!(free(), RESERVES - 2, "they are used");
        // SAFETY: memory of these sizes, in no other use.
        unsafe {
            all[0].write_bytes(7, 24);
            let moved = Reserving.realloc(all[0], layout, 48);
            assert!(reserve_of(moved).is_none() && std::slice::from_raw_parts(moved, 24) == [7; 24]);
            Reserving.dealloc(moved, Layout::from_size_align(48, 8).unwrap());
            all[1..].iter().for_each(|place| Reserving.dealloc(*place, layout));
            Reserving.dealloc(big, Layout::from_size_align(10_000, 4096).unwrap());
        }
        assert_eq!((free(), INSIDE.load(Ordering::Relaxed)), (RESERVES, 0));
        // As many as there are are kept; memory without a reserve is there all the same.
        let step = Reserving.step();
        assert_eq!((0..100).filter(|_| is_there(1)).count(), 100);
        assert_eq!(free(), 0);
        drop(step);
        assert_eq!(free(), RESERVES);
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_child_has_the_seats_of_others() {
        use std::sync::Barrier;

        dormouse_testkit::in_child(|| {
            let layout = Layout::from_size_align(24, 8).unwrap();
            let free = || TABLE.iter().filter(|reserve| reserve.thread.load(Ordering::Relaxed) == 0).count();
            let (begun, ends) = (Barrier::new(2), Barrier::new(2));
            let used = AtomicPtr::new(ptr::null_mut());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _step = Reserving.step();
                    assert!(is_there(1));
                    used.store(from_reserve(layout), Ordering::Relaxed);
                    // The others are beside it, without allocations.
                    assert!((1..RESERVES).all(|_| is_there(1)) && free() == 0);
                    begun.wait();
                    ends.wait();
                });
                begun.wait();
                let child = dormouse_testkit::fork(|| {
                    assert_eq!(free(), RESERVES - 1, "one is used");
                    // SAFETY: memory of this size, in no other use in this process.
                    unsafe { Reserving.dealloc(used.load(Ordering::Relaxed), layout) };
                    assert_eq!(free(), RESERVES);
                    let step = Reserving.step();
                    assert!(is_there(1) && !from_reserve(layout).is_null());
                    drop(step);
                });
                ends.wait();
                assert!(child.success(), "{child}");
            });
        });
    }
}

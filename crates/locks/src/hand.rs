//! The locks that each thread holds itself, in cells that no other thread writes.
//!
//! Most guards stay on their thread. Their holder needs no place for which threads compete: plain
//! stores note it in the thread's own *hand*, and no two threads share a line of the cache. A
//! thread that looks for the holder of a lock reads the marks of all hands, one line for each
//! thread, unless a hint leads to the holder.
//!
//! A mark is the address of the lock, mixed with the run.
//!
//! | a cell is | event | next | its mark |
//! |---|---|---|---|
//! | free, or of an earlier run | the thread is about to take a lock | free, prepared | the lock's |
//! | free, prepared | it has the lock | held | the same |
//! | free, prepared | it did not get the lock | free | none |
//! | held | it leaves; then the lock is free | free | the same |
//! | held | the thread ends before its guard | left | the same |
//! | left | the guard is dropped, on any thread; then the lock is free | free | the same |
//! | held, of an earlier run | the thread ends | free | the same |
//!
//! So each lock that a thread takes, holds, or has just left is among its marks. The first mark is
//! that of a lock for which there is no cell here; the table of holders has it.
//!
//! A guard outlives its thread if it was forgotten, if another thread has got it by unsafe code, or
//! if a destructor drops it that the C library calls after ours. Its hold stays where it is, so no
//! reader ever misses it: one store passes it on from the thread to the guard.
//!
//! # Invariants
//!
//! 1. Only the thread with the block writes a hand, and its successor in the block. A cell that is
//!    left is written only by the thread that drops the guard.
//! 2. A cell that is held contains the address of its mark.

use std::sync::atomic::{AtomicBool, AtomicUsize as Plain, Ordering};

use dormouse_sys::array_of;
use dormouse_sys::thread::MAX_THREADS;

use crate::cell::{Cell, Entry};
use crate::primitive::{AtomicU32, AtomicUsize};

/// The locks that a thread can have in its hand.
pub(crate) const CELLS: usize = if cfg!(loom) { 1 } else { 7 };
const MARKS: usize = CELLS + 1;
/// Places are below this.
pub(crate) const PLACES: u32 = (MAX_THREADS * MARKS) as u32;

/// See the module.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Hand {
    marks: [AtomicUsize; MARKS],
    cells: [Cell; CELLS],
}

/// By the index of the thread's block: 2 MB, of which a thread uses half a kilobyte.
#[cfg(not(all(test, loom)))]
static HANDS: [Hand; MAX_THREADS] = [const { Hand::new() }; MAX_THREADS];
#[cfg(all(test, loom))]
static HANDS: std::sync::LazyLock<[Hand; 1]> = std::sync::LazyLock::new(|| [Hand::new()]);

/// The places in which locks that are waited for were taken last, by their addresses: a thread that
/// waits looks there before it looks at all hands. Locks may share a hint, and a place may have
/// another lock by now, so only the entry there decides.
#[derive(Debug)]
struct Hints<const N: usize>([AtomicU32; N]);

#[cfg(not(all(test, loom)))]
static HINTS: Hints<1024> = Hints::new();
#[cfg(all(test, loom))]
static HINTS: std::sync::LazyLock<Hints<1>> = std::sync::LazyLock::new(Hints::new);

impl<const N: usize> Hints<N> {
    dormouse_sys::const_unless_loom! {
        const fn new() -> Self {
            Self(array_of![AtomicU32::new(0); N])
        }
    }

    fn of(&self, address: usize) -> &AtomicU32 {
        let hash = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        &self.0[hash as usize % N]
    }

    /// The lock is about to be held in the cell of this place.
    fn put(&self, address: usize, place: u32) {
        self.of(address).store(place, Ordering::Relaxed);
    }

    /// The holder of a lock in this run, if the last hint leads to it.
    fn holder(&self, hands: &[Hand], address: usize, run: u32) -> Option<Entry> {
        let (entry, _) = cell_of(hands, self.of(address).load(Ordering::Relaxed))?.read()?;
        // One that is left may be of another lock, which was at this address before.
        ((entry.address, entry.run) == (address, run) && !entry.is_left()).then_some(entry)
    }
}

/// The hands from here on were never used.
static USED: Plain = Plain::new(0);

/// Whether a thread has ever left a hold behind.
static HAS_LEFT: AtomicBool = AtomicBool::new(false);

/// The mark of a lock in this run.
#[inline]
pub(crate) fn mark(address: usize, run: u32) -> usize {
    address ^ (run as usize).rotate_right(16)
}

impl Hand {
    dormouse_sys::const_unless_loom! {
        const fn new() -> Self {
            Self { marks: array_of![AtomicUsize::new(0); MARKS], cells: array_of![Cell::new(); CELLS] }
        }
    }

    /// The thread is about to take a lock: the number of the cell for it, from 1 on; 0: there is
    /// none. As soon as it has the lock, it shows the cell.
    #[inline]
    pub(crate) fn begin(&self, mark: usize, entry: &Entry) -> usize {
        let is_free = |cell: &Cell| cell.is_free() || cell.run() != entry.run && !cell.is_left();
        let free = self.cells.iter().position(is_free);
        if let Some(at) = free {
            self.cells[at].prepare(entry);
        }
        let nth = free.map_or(0, |at| at + 1);
        self.touch(nth, mark);
        nth
    }

    /// Marks a lock that the thread takes or leaves now.
    #[inline]
    pub(crate) fn touch(&self, nth: usize, mark: usize) {
        // Release: before the lock is taken, or its entry in the table goes.
        self.marks[nth].store(mark, Ordering::Release);
    }

    /// A cell in which the thread holds that lock.
    #[cfg(any(feature = "parking-lot", test))]
    #[inline]
    pub(crate) fn held(&self, mark: usize) -> Option<&Cell> {
        let mut marked = self.marks[1..].iter().zip(&self.cells);
        let its = |(there, cell): &(&AtomicUsize, &Cell)| {
            there.load(Ordering::Relaxed) == mark && !cell.is_free() && !cell.is_left()
        };
        marked.find(its).map(|(_, cell)| cell)
    }

    /// The thread ends, in this run: whether it still holds locks.
    fn leave_behind(&self, run: Option<u32>) -> bool {
        let mut has_left = false;
        for cell in self.cells.iter().filter(|cell| !cell.is_free()) {
            if Some(cell.run()) == run {
                cell.leave_behind();
                has_left = true;
            } else {
                cell.free();
            }
        }
        has_left
    }

    /// The next thread with this block begins: what the last one has left stays.
    pub(crate) fn begin_thread(&self) {
        self.marks[0].store(0, Ordering::Relaxed);
        for (mark, _) in self.marks[1..].iter().zip(&self.cells).filter(|(_, cell)| cell.is_free()) {
            mark.store(0, Ordering::Relaxed);
        }
    }

    /// Frees all cells, in a forked child.
    fn clear(&self) {
        for cell in self.cells.iter().filter(|cell| !cell.is_free()) {
            cell.free();
        }
        for mark in &self.marks {
            mark.store(0, Ordering::Relaxed);
        }
    }

    /// The entries of the cells with wanted marks, each of one moment, with their numbers.
    fn read(&self, is_wanted: impl Fn(usize) -> bool) -> impl Iterator<Item = (usize, Entry, u32)> {
        let marked = self.marks[1..].iter().zip(&self.cells).enumerate();
        // Acquire: pairs with the store in `touch`, before which the cell was free.
        let wanted = marked.filter(move |(_, (mark, _))| is_wanted(mark.load(Ordering::Acquire)));
        wanted.filter_map(|(at, (_, cell))| cell.read().map(|(entry, version)| (at + 1, entry, version)))
    }
}

/// The hand of the thread with the block of this index.
pub(crate) fn hand(index: usize) -> &'static Hand {
    USED.fetch_max(index + 1, Ordering::Relaxed);
    &HANDS[index]
}

fn used() -> &'static [Hand] {
    &HANDS[..USED.load(Ordering::Relaxed)]
}

/// The number of a cell among all; `nth` 0: of none in that hand.
#[inline]
pub(crate) fn place(index: usize, nth: usize) -> u32 {
    (index * MARKS + nth) as u32
}

/// The cell of a place.
#[inline]
pub(crate) fn cell(place: u32) -> Option<&'static Cell> {
    cell_of(HANDS.as_slice(), place)
}

#[inline]
fn cell_of(hands: &[Hand], place: u32) -> Option<&Cell> {
    let nth = place as usize % MARKS;
    hands.get(place as usize / MARKS)?.cells.get(nth.checked_sub(1)?)
}

/// The thread of a place did not get the lock.
pub(crate) fn give_up(place: u32) {
    if let Some(hand) = HANDS.get(place as usize / MARKS) {
        hand.touch(place as usize % MARKS, 0);
    }
}

/// The entries in all hands, each of one moment, with a number that no other one has.
fn read(is_wanted: impl Fn(usize) -> bool + Copy) -> impl Iterator<Item = (u64, Entry)> {
    used().iter().enumerate().flat_map(move |(index, hand)| {
        let number = move |nth, version| u64::from(place(index, nth)) << 32 | u64::from(version);
        hand.read(is_wanted).map(move |(nth, entry, version)| (number(nth, version), entry))
    })
}

// How often the thread has read all hands for the holders of a lock.
#[cfg(all(test, not(loom)))]
thread_local! {
    pub(crate) static SCANS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// The holders of one lock in this run.
pub(crate) fn find(address: usize, run: u32) -> impl Iterator<Item = (u64, Entry)> {
    #[cfg(all(test, not(loom)))]
    SCANS.set(SCANS.get() + 1);
    let wanted = mark(address, run);
    read(move |mark| mark == wanted).filter(move |(_, entry)| (entry.address, entry.run) == (address, run))
}

/// The thread with this hand ends, in this run.
pub(crate) fn leave_behind(hand: &Hand, run: Option<u32>) {
    if hand.leave_behind(run) {
        HAS_LEFT.store(true, Ordering::Relaxed);
    }
}

/// A hold of that lock in this run which a thread has left behind, and which `is_own` tells from
/// those of others: its cell.
#[cfg(feature = "parking-lot")]
pub(crate) fn left(address: usize, run: u32, is_own: impl Fn(&Entry) -> bool) -> Option<&'static Cell> {
    // No hand has to be read otherwise.
    let mut found = HAS_LEFT.load(Ordering::Relaxed).then(|| find(address, run)).into_iter().flatten();
    let (number, _) = found.find(|(_, entry)| entry.is_left() && is_own(entry))?;
    cell((number >> 32) as u32)
}

/// The holders of all locks.
pub(crate) fn all() -> impl Iterator<Item = (u64, Entry)> {
    read(|mark| mark != 0)
}

/// The lock was taken, and its holder is in the cell of this place. For locks that are waited for:
/// all threads share what is written here.
pub(crate) fn hint(address: usize, place: u32) {
    HINTS.put(address, place);
}

/// The holder of a lock in this run, if the last hint leads to it.
pub(crate) fn hinted(address: usize, run: u32) -> Option<Entry> {
    HINTS.holder(HANDS.as_slice(), address, run)
}

/// Whether a thread other than that of the place takes the lock, holds it, or has just left it.
pub(crate) fn have_others_touched(own: u32, mark: usize) -> bool {
    let others = used().iter().enumerate().filter(|(index, _)| *index != own as usize / MARKS);
    others.flat_map(|(_, hand)| &hand.marks).any(|there| there.load(Ordering::Relaxed) == mark)
}

/// In a forked child: no lock is held.
pub(crate) fn forget() {
    used().iter().for_each(Hand::clear);
    USED.store(0, Ordering::Relaxed);
    HAS_LEFT.store(false, Ordering::Relaxed);
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn entry(address: usize, run: u32) -> Entry {
        Entry { address, run, ..Entry::default() }
    }

    /// The addresses of the locks in a hand.
    fn held(hand: &Hand) -> Vec<usize> {
        hand.read(|mark| mark != 0).map(|(_, entry, _)| entry.address).collect()
    }

    fn take(hand: &Hand, address: usize, run: u32) -> usize {
        let nth = hand.begin(mark(address, run), &entry(address, run));
        if let Some(at) = nth.checked_sub(1) {
            hand.cells[at].show(1);
        }
        nth
    }

    #[test]
    fn a_full_hand_refuses_until_one_leaves() {
        let hand = Hand::new();
        assert!((1..=CELLS).all(|at| take(&hand, at * 64, 1) == at));
        assert_eq!(take(&hand, 1_000, 1), 0, "the table may have it");
        hand.held(mark(192, 1)).unwrap().free();
        assert!(hand.held(mark(192, 1)).is_none());
        assert_eq!((take(&hand, 1_000, 1), held(&hand).len()), (3, CELLS));
    }

    #[test]
    fn holds_of_an_earlier_run_make_room() {
        let hand = Hand::new();
        assert_eq!((take(&hand, 64, 1), take(&hand, 128, 1)), (1, 2));
        assert_eq!((take(&hand, 192, 2), hand.held(mark(128, 2)).is_some()), (1, false));
        assert_eq!(held(&hand), [192, 128], "readers look at the run");
    }

    #[test]
    fn a_mark_stays_when_the_lock_is_left() {
        let (hand, other) = (Hand::new(), Hand::new());
        let nth = take(&hand, 64, 1);
        hand.cells[nth - 1].free();
        let touched = |of: &Hand| of.marks.iter().any(|there| there.load(Ordering::Relaxed) == mark(64, 1));
        assert!(touched(&hand) && !touched(&other));
        hand.begin_thread();
        assert!(!touched(&hand) && held(&hand).is_empty());
    }

    #[test]
    fn the_next_thread_leaves_left_holds_alone() {
        let hand = Hand::new();
        assert_eq!((take(&hand, 64, 1), take(&hand, 128, 1)), (1, 2));
        hand.cells[0].free();
        assert!(hand.leave_behind(Some(1)));
        hand.begin_thread();
        assert_eq!((held(&hand), hand.held(mark(128, 1)).is_some()), (vec![128], false));
        // The same lock, which is free again: readers may hold it side by side.
        assert_eq!((take(&hand, 128, 1), take(&hand, 192, 1), held(&hand)), (1, 3, vec![128, 128, 192]));
        hand.held(mark(128, 1)).unwrap().free();
        assert_eq!(held(&hand), [128, 192], "the one that is left stays");
        // Another run: its own hold makes room, and the one that is left does not.
        assert_eq!((take(&hand, 256, 2), take(&hand, 320, 2)), (1, 3));
        assert_eq!((hand.cells[1].free_left().address, take(&hand, 384, 2)), (128, 2));
        assert!(!hand.leave_behind(Some(3)) && held(&hand).is_empty(), "nobody believes older ones");
        assert_eq!((take(&hand, 64, 3), hand.leave_behind(None)), (1, false));
    }
}

//! Counts that a thread keeps in its own storage, and that other threads can read.
//!
//! A thread counts by an addition to a thread-local, with nothing to set up, also in the allocator.
//! A signal handler may interrupt an addition and add itself: neither is lost. When a thread enters
//! its first task, or when its counts are first read, it stores the address of its counts in the
//! row of a static table that belongs to its block. At its end it clears the row.
//!
//! # Invariants
//!
//! 1. Only its own thread writes a cell, and counts only grow.
//! 2. A row that is not null points to the cells of a thread that has not ended: before the thread
//!    goes on to its end, it clears the row and waits for the row's readers. They stay for
//!    nanoseconds. A reader that is not back after ten seconds has left by `siglongjmp`, and reads
//!    no more.
//!
//! # Safety
//!
//! The unsafe code follows a row's pointer between [`of`] and [`take_back`], the two halves of
//! invariant 2.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use dormouse_sys::arch;
use dormouse_sys::process::fork::{Phase, Reset};
use dormouse_sys::thread::{self, MAX_THREADS, ThreadBlock};

use super::patience;

/// How many counters the program itself can have. Counts of further ones are lost, and
/// [`Counter::event`](crate::Counter::event) returns an error for them.
pub const MAX_USER_COUNTERS: usize = 64;
/// How many breakpoints can be counted at once.
pub const MAX_BREAKPOINTS: usize = 16;
pub(super) const ALLOC_EVENTS: usize = 4;
/// How many events tests have.
#[cfg(any(test, feature = "counting"))]
pub(super) const COUNTING_EVENTS: usize = 16;

/// One count.
#[derive(Debug)]
pub(super) struct Count(AtomicU64);

impl Count {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts `n` more.
    #[inline]
    pub(super) fn add(&self, n: u64) {
        arch::add_here(&self.0, n);
    }

    #[inline]
    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts that one thread keeps by itself.
#[derive(Debug)]
pub(super) struct Cells {
    pub(super) user: [Count; MAX_USER_COUNTERS],
    pub(super) alloc: [Count; ALLOC_EVENTS],
    /// How many live bytes the thread is below its high-water mark. No count: it goes up and down.
    pub(super) below_peak: AtomicU64,
    /// The beginning of counting to which that belongs.
    pub(super) below_peak_since: AtomicU64,
    pub(super) hits: [Count; MAX_BREAKPOINTS],
    /// Moves to another processor that reads have noticed.
    pub(super) moves: Count,
    #[cfg(any(test, feature = "counting"))]
    pub(super) counting: [Count; COUNTING_EVENTS],
}

/// The counts of these numbers; of numbers that there are not, nothing.
#[inline]
pub(super) fn gather(counts: &[Count], events: &[u32], values: &mut [u64]) {
    for (&event, value) in events.iter().zip(values) {
        *value = counts.get(event as usize).map_or(0, Count::value);
    }
}

/// The two reads of a [`Pmu`](super::Pmu) whose counts are these cells.
macro_rules! reads_cells {
    ($cells:ident) => {
        #[inline]
        fn read(&self, events: &[u32], values: &mut [u64]) {
            cells::shown(|cells| cells::gather(&cells.$cells, events, values));
        }

        fn read_of(&self, thread: &ThreadBlock, events: &[u32], values: &mut [u64]) -> bool {
            cells::of(thread, |cells| cells::gather(&cells.$cells, events, values)).is_some()
        }
    };
}

pub(super) use reads_cells;

struct Row {
    cells: AtomicPtr<Cells>,
    /// How many are looking at them.
    readers: AtomicU32,
}

static FORGET: Reset = Reset::new(Phase::Cells, forget);

static ROWS: [Row; MAX_THREADS] =
    [const { Row { cells: AtomicPtr::new(ptr::null_mut()), readers: AtomicU32::new(0) } }; MAX_THREADS];

thread_local! {
    static CELLS: Cells = const {
        Cells {
            user: [const { Count::new() }; MAX_USER_COUNTERS],
            alloc: [const { Count::new() }; ALLOC_EVENTS],
            below_peak: AtomicU64::new(0),
            below_peak_since: AtomicU64::new(0),
            hits: [const { Count::new() }; MAX_BREAKPOINTS],
            moves: Count::new(),
            #[cfg(any(test, feature = "counting"))]
            counting: [const { Count::new() }; COUNTING_EVENTS],
        }
    };
    /// The row that shows the cells.
    static SHOWN_IN: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The calling thread's cells. (Constant and without a destructor, so they are there as long as the
/// thread.)
#[inline]
pub(super) fn own<R>(look: impl FnOnce(&Cells) -> R) -> R {
    CELLS.with(look)
}

/// The calling thread's cells, which from now on others find, too.
#[inline]
pub(super) fn shown<R>(look: impl FnOnce(&Cells) -> R) -> R {
    CELLS.with(|cells| {
        if SHOWN_IN.get().is_none() {
            show(cells);
        }
        look(cells)
    })
}

/// The cells of another thread; none if it does not show them.
pub(super) fn of<R>(thread: &ThreadBlock, look: impl FnOnce(&Cells) -> R) -> Option<R> {
    let row = &ROWS[thread.index()];
    // Sequentially consistent, as in `take_back`: either it sees us, or we see the empty row.
    row.readers.fetch_add(1, Ordering::SeqCst);
    let cells = row.cells.load(Ordering::SeqCst);
    // SAFETY: null, or the cells of a thread that waits for us before it ends (invariant 2).
    let result = unsafe { cells.as_ref() }.map(look);
    // Pairs with the load in `take_back`: the cells are read before they go.
    row.readers.fetch_sub(1, Ordering::Release);
    result
}

#[cold]
fn show(cells: &Cells) {
    // Without a block no reader would find the thread, and without the hooks the row would never be
    // cleared.
    let Some(block) = thread::current() else { return };
    if !thread::on_thread_exit(take_back) || !FORGET.join() {
        return;
    }
    let index = block.index();
    SHOWN_IN.set(Some(index));
    // Pairs with the load in `of`.
    ROWS[index].cells.store(ptr::from_ref(cells).cast_mut(), Ordering::Release);
}

/// The calling thread ends.
fn take_back() {
    let Some(row) = SHOWN_IN.take().map(|index| &ROWS[index]) else { return };
    row.cells.store(ptr::null_mut(), Ordering::SeqCst);
    if !patience::until(&row.readers, patience::LONG, |readers| readers == 0) {
        // For the next thread in the row.
        row.readers.store(0, Ordering::Relaxed);
    }
}

/// A fork child has one thread, and no reader.
fn forget() {
    let own = SHOWN_IN.get();
    for (index, row) in ROWS.iter().enumerate() {
        // Read first, because most rows lie in pages that were never written.
        if own != Some(index) && !row.cells.load(Ordering::Relaxed).is_null() {
            row.cells.store(ptr::null_mut(), Ordering::Relaxed);
        }
        if row.readers.load(Ordering::Relaxed) != 0 {
            row.readers.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_is_seen_until_its_end() {
        let (send, receive) = channel();
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::spawn(move || {
            own(|cells| cells.moves.add(41));
            let block = thread::current().unwrap();
            assert!(of(block, |_| ()).is_none(), "nobody has read them yet");
            shown(|cells| cells.moves.add(1));
            send.send(block).unwrap();
            stopped.recv().unwrap_err();
        });
        let block = receive.recv().unwrap();
        assert_eq!(of(block, |cells| cells.moves.value()), Some(42));
        drop(stop);
        thread.join().unwrap();
        // Another test's thread may have the block by now, but not with these cells.
        assert_ne!(of(block, |cells| cells.moves.value()), Some(42));
    }

    #[test]
    fn threads_end_while_others_read_them() {
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for block in thread::live() {
                        of(block, |cells| assert_ne!(cells.moves.value(), u64::MAX));
                    }
                }
            });
            for _ in 0..if cfg!(miri) { 5 } else { 500 } {
                scope.spawn(|| shown(|cells| cells.moves.add(1))).join().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

//! A place for a holder of a lock, or for a wait: words of one moment for those who read it.
//!
//! A version is odd while the cell is free or being written. A version never returns, but after
//! 2^31 entries of one cell.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::atomic::Ordering;

use dormouse_sys::thread::TasksAround;

use crate::primitive::{AtomicU32, AtomicU64, AtomicUsize, fence};

/// How often a reader looks at a cell that is being written.
const PATIENCE: usize = if cfg!(loom) { 2 } else { 8 };

const AROUND: usize = size_of::<TasksAround>() / size_of::<u64>();

/// In `Entry::since` of a hold, its lowest bit: its time is counted when it ends.
pub(crate) const COUNTED: u64 = 1;
/// In `Entry::flags`: a wait that ends by time.
pub(crate) const TIMED: u32 = 1 << 8;
/// In `Entry::flags`: a hold whose thread has ended. (See `hand`.)
const LEFT: u32 = 1 << 9;

/// The version that follows the last one.
const FIRST: NonZeroU32 = NonZeroU32::new(2).unwrap();

/// A holder of a lock, or a wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    pub(crate) address: usize,
    /// The row of the line and the group.
    pub(crate) row: u32,
    pub(crate) tid: u32,
    /// When it began, as a stamp; 0: that was not noted. Of a hold, with [`COUNTED`] or without.
    pub(crate) since: u64,
    pub(crate) task: u64,
    /// The tasks around that one. Entries in a hand have none: such a hold is its thread's.
    pub(crate) around: TasksAround,
    /// The run in which it began.
    pub(crate) run: u32,
    pub(crate) flags: u32,
}

impl Entry {
    /// Whether it is a wait that ends by time.
    pub(crate) fn is_timed(&self) -> bool {
        self.flags & TIMED != 0
    }

    /// Whether its thread has ended and has left it behind.
    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        self.flags & LEFT != 0
    }
}

/// See the module.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Cell {
    version: AtomicU32,
    address: AtomicUsize,
    since: AtomicU64,
    task: AtomicU64,
    /// The row and the thread, and the run and the flags: half as many stores.
    row_tid: AtomicU64,
    run_flags: AtomicU64,
    around: [AtomicU64; AROUND],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Cell>() == 64, "one line of the cache");

/// An entry of the caller's: its place and version, in one word. Two words, which guards are stored
/// with and then moved as one, would not be forwarded from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(NonZeroU64);

impl Token {
    #[inline]
    pub(crate) fn new(place: u32, version: NonZeroU32) -> Self {
        Self(NonZeroU64::from(version) | packed(place, 0))
    }

    #[inline]
    pub(crate) fn place(self) -> u32 {
        unpacked(self.0.get()).0
    }

    #[inline]
    pub(crate) fn version(self) -> u32 {
        unpacked(self.0.get()).1
    }

    /// This token with these bits of its place inverted.
    #[inline]
    pub(crate) fn moved(self, bits: u32) -> Self {
        NonZeroU64::new(self.0.get() ^ packed(bits, 0)).map_or(self, Self)
    }
}

#[inline]
fn packed(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[inline]
fn unpacked(both: u64) -> (u32, u32) {
    ((both >> 32) as u32, both as u32)
}

impl Cell {
    dormouse_sys::const_unless_loom! {
        pub(crate) const fn new() -> Self {
            Self {
                version: AtomicU32::new(0),
                address: AtomicUsize::new(0),
                since: AtomicU64::new(0),
                task: AtomicU64::new(0),
                row_tid: AtomicU64::new(0),
                run_flags: AtomicU64::new(0),
                around: [AtomicU64::new(0), AtomicU64::new(0)],
            }
        }
    }

    /// Writes the cell, and returns its version. Only one thread at a time may do so.
    #[inline]
    pub(crate) fn write(&self, entry: &Entry) -> NonZeroU32 {
        self.prepare(entry);
        for (word, task) in self.around.iter().zip(entry.around) {
            word.store(task, Ordering::Relaxed);
        }
        self.show(entry.since)
    }

    /// Writes what readers do not see yet, without the tasks around. Only one thread at a time may
    /// do so.
    #[inline]
    pub(crate) fn prepare(&self, entry: &Entry) {
        let odd = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(odd, Ordering::Relaxed);
        // Pairs with the fence in `read`: who sees one of the words sees the odd version, too.
        fence(Ordering::Release);
        self.address.store(entry.address, Ordering::Relaxed);
        self.task.store(entry.task, Ordering::Relaxed);
        self.row_tid.store(packed(entry.row, entry.tid), Ordering::Relaxed);
        self.run_flags.store(packed(entry.run, entry.flags), Ordering::Relaxed);
    }

    /// Shows what has been prepared, and returns its version.
    #[inline]
    pub(crate) fn show(&self, since: u64) -> NonZeroU32 {
        self.since.store(since, Ordering::Relaxed);
        let odd = self.version.load(Ordering::Relaxed);
        // 0 would be a cell that was never written.
        let even = NonZeroU32::new(odd.wrapping_add(1)).unwrap_or(FIRST);
        // Pairs with the load in `read`: who sees the even version sees all words.
        self.version.store(even.get(), Ordering::Release);
        even
    }

    /// Frees the cell, as the thread that has written it.
    #[inline]
    pub(crate) fn free(&self) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version | 1, Ordering::Relaxed);
    }

    /// The thread that has written the cell ends. From now on nobody writes it before the entry's
    /// guard is dropped, which calls [`Cell::free_left`].
    pub(crate) fn leave_behind(&self) {
        let (run, flags) = unpacked(self.run_flags.load(Ordering::Relaxed));
        self.run_flags.store(packed(run, flags | LEFT), Ordering::Relaxed);
    }

    /// Whether the thread of the last entry has ended.
    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        unpacked(self.run_flags.load(Ordering::Relaxed)).1 & LEFT != 0
    }

    /// Frees a cell that was left behind, and returns its entry.
    pub(crate) fn free_left(&self) -> Entry {
        let entry = self.words();
        // Release: pairs with the load in `version`, after which the cell's next thread writes it.
        self.version.store(self.version.load(Ordering::Relaxed) | 1, Ordering::Release);
        entry
    }

    /// Whether no entry is there.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.version().is_none()
    }

    /// The version of the entry that is there; `None`: the cell is free.
    #[inline]
    pub(crate) fn version(&self) -> Option<NonZeroU32> {
        // Acquire: pairs with the store in `free_left`.
        NonZeroU32::new(self.version.load(Ordering::Acquire))
            .filter(|version| version.get().is_multiple_of(2))
    }

    /// Whether the entry of this token is there.
    #[inline]
    pub(crate) fn has(&self, token: Token) -> bool {
        self.version.load(Ordering::Relaxed) == token.version()
    }

    /// The lock of the last entry, or of the one that is prepared.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.address.load(Ordering::Relaxed)
    }

    /// The run of the last entry.
    #[inline]
    pub(crate) fn run(&self) -> u32 {
        unpacked(self.run_flags.load(Ordering::Relaxed)).0
    }

    /// The row of the last entry.
    #[inline]
    pub(crate) fn row(&self) -> u32 {
        unpacked(self.row_tid.load(Ordering::Relaxed)).0
    }

    /// When the last entry began, as `Entry::since` has it.
    #[inline]
    pub(crate) fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    /// The last entry, for a thread that nobody disturbs.
    #[inline]
    pub(crate) fn words(&self) -> Entry {
        let (row, tid) = unpacked(self.row_tid.load(Ordering::Relaxed));
        let (run, flags) = unpacked(self.run_flags.load(Ordering::Relaxed));
        Entry {
            address: self.address.load(Ordering::Relaxed),
            row,
            tid,
            since: self.since.load(Ordering::Relaxed),
            task: self.task.load(Ordering::Relaxed),
            around: std::array::from_fn(|nth| self.around[nth].load(Ordering::Relaxed)),
            run,
            flags,
        }
    }

    /// The cell's entry, with its version; `None` if it is free, or being written.
    pub(crate) fn read(&self) -> Option<(Entry, u32)> {
        for _ in 0..PATIENCE {
            // Acquire: pairs with the last store in `write`.
            let before = self.version.load(Ordering::Acquire);
            if before == 0 || !before.is_multiple_of(2) {
                return None;
            }
            let seen = self.words();
            // Acquire: pairs with the fence in `write`.
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == before {
                return Some((seen, before));
            }
        }
        None
    }
}

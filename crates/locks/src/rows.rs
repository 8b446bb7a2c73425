//! The rows of each thread: one for each line that takes locks, each type of locks, and each group.
//!
//! A thread writes only rows of its own. The next thread in its block goes on with them, so nothing
//! is lost when threads end.
//!
//! # Memory
//!
//! A row takes 3 KB, and there are [`MOST`] at most. A thread maps as many at once as a page has
//! room for. Lines, groups and threads beyond are not noted; that is counted.
//!
//! # Invariants
//!
//! 1. A row's line is written before the row is published, and never changes.
//! 2. Only the thread that has a shelf's block writes the shelf and the numbers of its rows.
//! 3. Rows and shelves stay where they are. A forked child has none.
//!
//! # Async-signal-safety
//!
//! A handler must not take locks that are noted.
//!
//! # Safety
//!
//! The unsafe code makes references to mappings that stay, and writes to one that no other code has
//! seen.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use dormouse_sys::process::identity;
use dormouse_sys::thread::{self, Current, MAX_THREADS, ThreadBlock};
use dormouse_sys::zeroed::{self, Zeroed};

use crate::hand::{Hand, hand, leave_behind};
use crate::kind::{LockKind, LockType};
use crate::row::Row;
use crate::run::run;

/// The rows of a process: 32 MB, and with larger pages 24, and a page for each thread.
pub(crate) const MOST: usize = 8192;

/// The rows of a thread, each of a line, a type and a group.
const OWN: usize = 256;

/// How far from its hash a row may lie.
const REACH: usize = 16;

// SAFETY: atomics and numbers, for which zeros are values.
unsafe impl Zeroed for Row {}

/// The rows of one thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Shelf {
    index: AtomicUsize,
    tid: AtomicUsize,
    /// Mapped and not used yet, and how many.
    unused: AtomicPtr<Row>,
    count: AtomicUsize,
    rows: [AtomicPtr<Row>; OWN],
}

// SAFETY: atomics alone.
unsafe impl Zeroed for Shelf {}

static SHELVES: [AtomicPtr<Shelf>; MAX_THREADS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_THREADS];
static ROWS: [AtomicPtr<Row>; MOST] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST];
static MADE: AtomicUsize = AtomicUsize::new(0);
/// The kernel has refused memory once: threads do not ask it again and again.
static HAS_NO_MEMORY: AtomicBool = AtomicBool::new(false);

/// Each in a cell of its own: a value of three words would be copied by way of memory.
struct HereCells {
    shelf: Cell<Option<&'static Shelf>>,
    hand: Cell<Option<&'static Hand>>,
    block: Cell<Option<&'static ThreadBlock>>,
}

thread_local! {
    static HERE: HereCells =
        const { HereCells { shelf: Cell::new(None), hand: Cell::new(None), block: Cell::new(None) } };
}

/// The calling thread, as far as locks are concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Here {
    pub(crate) shelf: &'static Shelf,
    pub(crate) hand: &'static Hand,
    block: &'static ThreadBlock,
}

impl Here {
    /// `None` where there is no memory, or no block for the thread.
    #[inline]
    pub(crate) fn current() -> Option<Self> {
        Self::known().or_else(arrive)
    }

    /// `None` before the thread's first lock, too.
    #[inline]
    pub(crate) fn known() -> Option<Self> {
        HERE.with(|here| {
            let (shelf, hand, block) = (here.shelf.get()?, here.hand.get()?, here.block.get()?);
            Some(Self { shelf, hand, block })
        })
    }

    /// The task that the thread is in, and its group.
    #[inline]
    pub(crate) fn task(self) -> Current {
        self.block.own_current()
    }
}

fn remember(here: Option<Here>) {
    HERE.with(|cells| {
        cells.shelf.set(here.map(|here| here.shelf));
        cells.hand.set(here.map(|here| here.hand));
        cells.block.set(here.map(|here| here.block));
    });
}

#[cold]
fn arrive() -> Option<Here> {
    let block = thread::current().filter(|_| thread::on_thread_exit(depart))?;
    let place = &SHELVES[block.index()];
    if place.load(Ordering::Acquire).is_null() {
        zeroed::put(place, map::<Shelf>(1)?);
    }
    let shelf = at(place)?;
    shelf.index.store(block.index(), Ordering::Relaxed);
    shelf.tid.store(identity::tid() as usize, Ordering::Relaxed);
    let hand = hand(block.index());
    hand.begin_thread();
    let here = Here { shelf, hand, block };
    remember(Some(here));
    Some(here)
}

/// The thread ends. Guards that are still there are dropped later, on other threads or by
/// destructors of pthread keys, or never.
fn depart() {
    if let Some(here) = Here::known() {
        leave_behind(here.hand, run());
    }
    remember(None);
}

/// In a forked child: no thread has a shelf.
pub(crate) fn forget() {
    remember(None);
    // Looked at first: what is written to is copied.
    for place in SHELVES.iter().filter(|place| !place.load(Ordering::Relaxed).is_null()) {
        place.store(ptr::null_mut(), Ordering::Relaxed);
    }
    for place in ROWS.iter().filter(|place| !place.load(Ordering::Relaxed).is_null()) {
        place.store(ptr::null_mut(), Ordering::Relaxed);
    }
    MADE.store(0, Ordering::Relaxed);
    HAS_NO_MEMORY.store(false, Ordering::Relaxed);
}

#[inline]
fn at<T: Zeroed>(place: &AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: null, or a mapping that stays (invariant 3). Acquire: pairs with the exchange in
    // `put`, and with the stores in `make`.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

fn map<T: Zeroed>(count: usize) -> Option<ptr::NonNull<[T]>> {
    if HAS_NO_MEMORY.load(Ordering::Relaxed) {
        return None;
    }
    let made = zeroed::map(count);
    if made.is_none() {
        HAS_NO_MEMORY.store(true, Ordering::Relaxed);
    }
    made
}

/// The row with this number.
#[inline]
pub(crate) fn row(number: u32) -> Option<&'static Row> {
    ROWS.get(number as usize).and_then(at)
}

/// The row of this thread that is like another, perhaps of another thread.
pub(crate) fn own_row(of: &'static Row) -> Option<&'static Row> {
    Here::current()?.shelf.row_like(of)
}

/// All rows.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS[..made()].iter().filter_map(at)
}

/// How many rows there are.
pub(crate) fn made() -> usize {
    MADE.load(Ordering::Relaxed).min(MOST)
}

#[inline]
fn key_of(line: u32, group: u32) -> u64 {
    u64::from(line) << 32 | u64::from(group)
}

impl Shelf {
    #[inline]
    pub(crate) fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed) as u32
    }

    #[inline]
    pub(crate) fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed)
    }

    /// The thread's row of a line, a type of locks and a group; `None`: it has none yet.
    #[inline]
    pub(crate) fn row(
        &self,
        site: &'static Location<'static>,
        of: &'static LockType,
        group: u32,
    ) -> Option<&'static Row> {
        self.find(site_of(site, of), key_of(site.line(), group))
    }

    /// The thread's row of a line and a group, made if there is none; `None`: there is no room for
    /// it.
    pub(crate) fn new_row(
        &self,
        site: &'static Location<'static>,
        group: u32,
        of: &'static LockType,
    ) -> Option<&'static Row> {
        let made = || self.make(Site::Here(site, of), key_of(site.line(), group), of.kind, of.name.text());
        self.row(site, of, group).or_else(made)
    }

    /// The thread's row of the same line and group as another one, which may be another thread's.
    pub(crate) fn row_like(&self, row: &'static Row) -> Option<&'static Row> {
        if row.shelf() == self.index() {
            return Some(row);
        }
        let (site, key) = row.identity();
        let found = self.find(site, key);
        found.or_else(|| self.make(Site::Of(row), key, row.kind(), ""))
    }

    #[inline]
    fn find(&self, site: usize, key: u64) -> Option<&'static Row> {
        let first = hash(site, key);
        for nth in 0..REACH {
            let row = at(&self.rows[(first + nth) % OWN])?;
            if row.is(site, key) {
                return Some(row);
            }
        }
        None
    }

    #[cold]
    fn make(&self, site: Site, key: u64, kind: LockKind, name: &'static str) -> Option<&'static Row> {
        let first = hash(site.word(), key);
        let places = (0..REACH).map(|nth| &self.rows[(first + nth) % OWN]);
        let place = places.into_iter().find(|place| place.load(Ordering::Relaxed).is_null())?;
        // A number without a row would be lost.
        if self.count.load(Ordering::Relaxed) == 0 && HAS_NO_MEMORY.load(Ordering::Relaxed) {
            return None;
        }
        let more = |made: usize| (made < MOST).then_some(made + 1);
        let number = MADE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let made = self.take_unused()?;
        // SAFETY: the place of one row, which no other code has seen (invariant 1).
        let row = unsafe { &mut *made };
        row.begin((site.word(), key), kind, self.index(), number as u32);
        match site {
            Site::Here(site, _) => row.copy_site(site, name),
            Site::Of(of) => row.copy_row(of),
        }
        // Pairs with the loads in `at`.
        ROWS[number].store(made, Ordering::Release);
        place.store(made, Ordering::Release);
        at(place)
    }

    fn take_unused(&self) -> Option<*mut Row> {
        let left = match self.count.load(Ordering::Relaxed) {
            0 => {
                let made = map::<Row>(zeroed::in_a_page::<Row>())?;
                self.unused.store(made.cast().as_ptr(), Ordering::Relaxed);
                made.len()
            }
            left => left,
        };
        self.count.store(left - 1, Ordering::Relaxed);
        let made = self.unused.load(Ordering::Relaxed);
        // SAFETY: `left` rows of a mapping lie from there on.
        self.unused.store(unsafe { made.add(1) }, Ordering::Relaxed);
        Some(made)
    }
}

#[derive(Clone, Copy)]
enum Site {
    Here(&'static Location<'static>, &'static LockType),
    Of(&'static Row),
}

impl Site {
    #[inline]
    fn word(self) -> usize {
        match self {
            Self::Here(site, of) => site_of(site, of),
            Self::Of(row) => row.identity().0,
        }
    }
}

/// A line and a type of locks, in one word. The functions of a generic line are one line, and may
/// take locks of many types.
#[inline]
fn site_of(site: &'static Location<'static>, of: &'static LockType) -> usize {
    // Both lie in one object, so the lower halves of their addresses tell them from others.
    ptr::from_ref(site).addr() ^ ptr::from_ref(of).addr().rotate_left(32)
}

#[inline]
fn hash(site: usize, key: u64) -> usize {
    (((site as u64) ^ key.rotate_left(20)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize
}

//! The times that each thread has added up for each group.
//!
//! A thread writes only its own shelf, so to add is a load and a store. The next thread in the
//! block goes on with the shelf, so nothing is lost when threads end, and a sum over all rows never
//! decreases.
//!
//! # Waits that last
//!
//! A wait is in no sum before it ends. So a row has the number of its open waits, and the sum of
//! their beginnings: at any moment they have lasted for `number * now - beginnings`. A wait may end
//! in another thread's row, whose numbers then are negative, and the sum over all rows is right. If
//! a reader meets a wait in neither row, or in both, the error is less than the time that its
//! reading took, however long the wait was.
//!
//! # Memory
//!
//! A shelf has room for all rows: 175 KB, of which only the written pages take memory. The
//! histograms of a row are mapped at its first use, within a budget ([`counts`](crate::counts)).
//!
//! # Invariants
//!
//! 1. Only the thread that has a shelf's block writes it.
//! 2. A shelf and its histograms stay where they are. A forked child has none.
//! 3. `open`, `beginnings` and `polling` are of one run.
//! 4. At most one row has a `polling`: the shelf's `charged`.
//!
//! # Async-signal-safety
//!
//! Times that a handler adds while it interrupts an addition of its thread may be lost.
//!
//! # Safety
//!
//! The unsafe code makes references from pointers that are null or into mappings that stay.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use dormouse_clock::stamp;
use dormouse_sys::Capability;
use dormouse_sys::sync::Sequence;
use dormouse_sys::thread::{self, MAX_THREADS};

use crate::arrival::QueueSums;
use crate::cells::KeyedSums;
use crate::counts::{Counts, Time, add, most};
use crate::memory::{self, Zeroed};
use crate::response::StreamSums;
use crate::run::run;
use crate::slot::{CpuTime, Slot, at};
use crate::traffic::TrafficSums;
use crate::unanswered::UnansweredSums;
use crate::wait::Wait;

/// The groups that have rows of their own, by number. Further ones share the first row.
pub(crate) const GROUPS: usize = 1025;

/// The pairs of group and place that have a sum on a thread's shelf. A service mostly has some ten
/// groups, each with a few places.
const OWN_PLACES: usize = 128;

/// The sums of one thread for one group.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Row {
    sequence: Sequence,
    /// Ticks of finished intervals by state: polls, runnable, awaiting. Poll ticks exclude polls of
    /// other tasks nested inside.
    ticks: [AtomicU64; 3],
    /// The waits that last: how many, and the sum of their beginnings.
    open: AtomicU64,
    beginnings: AtomicU64,
    /// Since when the thread polls a task of the group, and no other inside; 0: it does not.
    polling: AtomicU64,
    /// The run of these.
    run: AtomicU64,
}

/// The sums of a row, of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sums {
    pub(crate) ticks: [u64; 3],
    pub(crate) open: u64,
    pub(crate) beginnings: u64,
    pub(crate) polling: u64,
}

/// A stretch that goes on: the slot of its task, and when it began, as a stamp. One that is over
/// has another beginning in its slot, or none, whoever has the slot by then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Going {
    pub(crate) slot: &'static Slot,
    pub(crate) begins: u64,
}

impl Going {
    #[inline]
    pub(crate) fn is_over(self) -> bool {
        self.slot.polling.load(Ordering::Relaxed) != self.begins
    }

    /// Whether the thread's innermost stretch is that one. A handler may take its beginning away.
    #[inline]
    pub(crate) fn is(self, other: Self) -> bool {
        ptr::eq(self.slot, other.slot) && (self.begins == other.begins || self.begins == 0)
    }

    /// The stretch outside of it; `None` also if the slot's task was polled again since.
    #[inline]
    pub(crate) fn outer(self) -> Option<Self> {
        let slot = at(&self.slot.outer)?;
        let is_its = self.slot.outer_of.load(Ordering::Relaxed) == self.begins;
        is_its.then(|| Self { slot, begins: self.slot.outer_begins.load(Ordering::Relaxed) })
    }

    /// Says which one is outside of it. The thread's.
    #[inline]
    pub(crate) fn set_outer(self, outer: Option<Self>) {
        match outer {
            None => self.slot.outer.store(ptr::null_mut(), Ordering::Relaxed),
            Some(outer) => {
                self.slot.outer_of.store(self.begins, Ordering::Relaxed);
                self.slot.outer_begins.store(outer.begins, Ordering::Relaxed);
                // Release: a reader that finds it finds the beginnings.
                self.slot.outer.store(ptr::from_ref(outer.slot).cast_mut(), Ordering::Release);
            }
        }
    }
}

/// The rows of one thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Shelf {
    /// The start number of the thread that has the shelf, and the index of its block.
    start: AtomicU64,
    index: AtomicUsize,
    /// The innermost task that the thread polls, and since when.
    polled: crate::primitive::AtomicPtr<Slot>,
    begins: AtomicU64,
    /// The row that is charged with that; null: none is.
    charged: AtomicPtr<Row>,
    /// The thread's clock when the innermost task last changed, while CPU times are requested.
    pub(crate) cpu: CpuTime,
    /// The wake of the innermost task's poll, as a stamp. 0: it was not seen, or another task was
    /// run inside since.
    pub(crate) woken: AtomicU64,
    /// By row: null, if it was never used.
    counts: [AtomicPtr<Counts>; GROUPS],
    rows: [Row; GROUPS],
    queues: [QueueSums; GROUPS],
    unanswered: [UnansweredSums; GROUPS],
    pub(crate) streams: [StreamSums; GROUPS],
    pub(crate) traffic: [TrafficSums; GROUPS],
    /// The thread's waits by group and place, while places are requested.
    pub(crate) places: KeyedSums<OWN_PLACES>,
}

/// A row, and where its histograms are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account {
    pub(crate) row: &'static Row,
    pub(crate) counts: &'static Counts,
}

// SAFETY: atomics alone.
unsafe impl Zeroed for Counts {}
// SAFETY: as above.
unsafe impl Zeroed for Shelf {}

static SHELVES: [AtomicPtr<Shelf>; MAX_THREADS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_THREADS];

/// Histograms of other rows than row 0.
static MADE: AtomicU64 = AtomicU64::new(0);

/// The rows that some thread has used, and how many.
static USED: [AtomicBool; GROUPS] = [const { AtomicBool::new(false) }; GROUPS];
static GROUPS_USED: AtomicUsize = AtomicUsize::new(0);

/// Rows without histograms of their own.
static CROWDED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HERE: Cell<Option<&'static Shelf>> = const { Cell::new(None) };
}

/// The calling thread's shelf; `None` where there is no memory, or no block for the
/// thread.
#[inline]
pub(crate) fn own() -> Option<&'static Shelf> {
    match HERE.get() {
        None => arrive(),
        here => here,
    }
}

#[cold]
fn arrive() -> Option<&'static Shelf> {
    let block = thread::current().filter(|_| thread::on_thread_exit(depart))?;
    let place = &SHELVES[block.index()];
    // Acquire: pairs with the exchange in `put`.
    if place.load(Ordering::Acquire).is_null() {
        memory::put(place, memory::map::<Shelf>(1)?);
    }
    // SAFETY: a mapping that stays.
    let shelf = unsafe { place.load(Ordering::Acquire).as_ref() }?;
    // The thread before may have been ended from outside, in the midst of a poll.
    shelf.polls(None, None);
    shelf.woken.store(0, Ordering::Relaxed);
    shelf.start.store(block.start(), Ordering::Relaxed);
    shelf.index.store(block.index(), Ordering::Relaxed);
    HERE.set(Some(shelf));
    Some(shelf)
}

/// The calling thread ends. Stretches that it has left behind end with it, as far as it is charged
/// with them.
fn depart() {
    if let Some(shelf) = HERE.take() {
        shelf.stop(stamp());
        shelf.polls(None, None);
    }
}

/// In a forked child: no thread has a shelf.
pub(crate) fn forget() {
    HERE.set(None);
    // Looked at first: what is written to is copied.
    for place in SHELVES.iter().filter(|place| !place.load(Ordering::Relaxed).is_null()) {
        place.store(ptr::null_mut(), Ordering::Relaxed);
    }
    for used in USED.iter().filter(|used| used.load(Ordering::Relaxed)) {
        used.store(false, Ordering::Relaxed);
    }
    GROUPS_USED.store(0, Ordering::Relaxed);
    MADE.store(0, Ordering::Relaxed);
    CROWDED.store(0, Ordering::Relaxed);
}

/// All shelves, with the numbers of their blocks.
pub(crate) fn shelves() -> impl Iterator<Item = (usize, &'static Shelf)> {
    SHELVES.iter().enumerate().filter_map(|(block, place)| {
        // SAFETY: null, or a mapping that stays. Acquire: pairs with the exchange in `put`.
        unsafe { place.load(Ordering::Acquire).as_ref() }.map(|shelf| (block, shelf))
    })
}

/// The shelf of the block with that number.
pub(crate) fn shelf(block: usize) -> Option<&'static Shelf> {
    // SAFETY: as above.
    unsafe { SHELVES.get(block)?.load(Ordering::Acquire).as_ref() }
}

/// How many groups have times; those that share row 0 count as one.
pub fn groups() -> usize {
    GROUPS_USED.load(Ordering::Relaxed)
}

/// The number of the row in which a group's times are.
#[inline]
pub(crate) fn row_of(group: u32) -> usize {
    if (group as usize) < GROUPS { group as usize } else { 0 }
}

/// A line of `dormouse doctor` if something is wrong, otherwise `None`.
pub fn capability() -> Option<Capability> {
    let (crowded, refused) = (CROWDED.load(Ordering::Relaxed), crate::slab::refused());
    let detail = format!(
        "{crowded} times a thread found no room for a group's percentiles, which are in those of group 0; \
         {refused} tasks found no room, and have no times"
    );
    (crowded + refused > 0).then(|| Capability::limited("waits.room", detail))
}

impl Shelf {
    /// The start number of the thread that has it.
    #[inline]
    pub(crate) fn start(&self) -> u64 {
        self.start.load(Ordering::Relaxed)
    }

    /// The index of the thread's block.
    pub(crate) fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed)
    }

    /// The account of a group, for the shelf's own thread.
    #[inline]
    pub(crate) fn account(&'static self, group: u32) -> Option<Account> {
        let number = row_of(group);
        // SAFETY: null, or in a mapping that stays.
        let counts = match unsafe { self.counts[number].load(Ordering::Relaxed).as_ref() } {
            Some(counts) => counts,
            None => self.begin(number)?,
        };
        Some(Account { row: &self.rows[number], counts })
    }

    /// The time that requests of a group waited before their tasks began.
    #[inline]
    pub(crate) fn queue(&self, group: u32) -> &QueueSums {
        &self.queues[row_of(group)]
    }

    /// The requests of a group that ended without an answer.
    pub(crate) fn unanswered(&self, group: u32) -> &UnansweredSums {
        &self.unanswered[row_of(group)]
    }

    /// A row's first use.
    #[cold]
    fn begin(&self, number: usize) -> Option<&'static Counts> {
        let place = &self.counts[number];
        let is_allowed = number == 0 || MADE.load(Ordering::Relaxed) < most();
        if let Some(made) = is_allowed.then(|| memory::map::<Counts>(1)).flatten() {
            if memory::put(place, made) && number != 0 {
                MADE.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            if number == 0 {
                return None;
            }
            CROWDED.fetch_add(1, Ordering::Relaxed);
            self.account_of_all()?;
            // Release: as in `put`. A handler of the thread may have been quicker.
            let shared = self.counts[0].load(Ordering::Relaxed);
            let _there =
                place.compare_exchange(ptr::null_mut(), shared, Ordering::Release, Ordering::Relaxed);
        }
        if !USED[number].swap(true, Ordering::Relaxed) {
            GROUPS_USED.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: a mapping that stays.
        unsafe { place.load(Ordering::Relaxed).as_ref() }
    }

    /// Has row 0 begin.
    fn account_of_all(&self) -> Option<()> {
        if self.counts[0].load(Ordering::Relaxed).is_null() {
            self.begin(0)?;
        }
        Some(())
    }

    /// The row with that number, if the thread has used it, for others; and its histograms, if it
    /// has some of its own.
    pub(crate) fn peek(&self, number: usize) -> Option<(&Row, Option<&'static Counts>)> {
        // Acquire: pairs with the exchange in `put`.
        let counts = self.counts[number].load(Ordering::Acquire);
        let is_own = number == 0 || counts != self.counts[0].load(Ordering::Relaxed);
        // SAFETY: null, or in a mapping that stays.
        let counts = unsafe { counts.as_ref() }?;
        Some((&self.rows[number], is_own.then_some(counts)))
    }

    /// The innermost task that the thread polls.
    #[inline]
    pub(crate) fn polled(&self) -> Option<Going> {
        let slot = at(&self.polled)?;
        Some(Going { slot, begins: self.begins.load(Ordering::Relaxed) })
    }

    /// Says which one that is from now on, and which row is charged with it. The thread's.
    #[inline]
    pub(crate) fn polls(&self, going: Option<Going>, charged: Option<&'static Row>) {
        let (slot, begins) =
            going.map_or((ptr::null(), 0), |going| (ptr::from_ref(going.slot), going.begins));
        self.begins.store(begins, Ordering::Relaxed);
        // Release: a reader that finds the slot finds the beginning.
        self.polled.store(slot.cast_mut(), Ordering::Release);
        self.charged
            .store(charged.map_or(ptr::null_mut(), |row| ptr::from_ref(row).cast_mut()), Ordering::Relaxed);
    }

    /// The row that is charged, and its number, for others.
    pub(crate) fn charged_row(&self) -> Option<(usize, &Row)> {
        let charged = self.charged.load(Ordering::Relaxed).addr();
        let number = charged.checked_sub(self.rows.as_ptr().addr())? / size_of::<Row>();
        Some((number, self.rows.get(number)?))
    }

    /// The row that is charged is so no longer. The thread's.
    #[inline]
    pub(crate) fn stop(&self, now: u64) {
        // SAFETY: null, or in a mapping that stays.
        if let Some(row) = unsafe { self.charged.load(Ordering::Relaxed).as_ref() } {
            row.sequence.write(|| row.stop(now));
        }
    }
}

impl Row {
    #[cold]
    fn begin_run(&self, run: u64) {
        for word in [&self.open, &self.beginnings, &self.polling] {
            word.store(0, Ordering::Relaxed);
        }
        self.run.store(run, Ordering::Relaxed);
    }

    /// Writes sums, of a run, which is not older than the last one's. The thread's.
    #[inline]
    pub(crate) fn write(&self, run: u64, write: impl FnOnce()) {
        self.sequence.write(|| {
            if self.run.load(Ordering::Relaxed) != run {
                self.begin_run(run);
            }
            write();
        });
    }

    /// A wait begins.
    #[inline]
    fn open(&self, since: u64) {
        add(&self.beginnings, since);
        add(&self.open, 1);
    }

    /// A wait ends.
    #[inline]
    fn close(&self, wait: Wait) {
        add(&self.open, 1_u64.wrapping_neg());
        add(&self.beginnings, wait.since.wrapping_neg());
        add(&self.ticks[Time::Await as usize], wait.awaited());
        add(&self.ticks[Time::Runnable as usize], wait.runnable());
    }

    #[inline]
    fn stop(&self, now: u64) {
        let polling = self.polling.load(Ordering::Relaxed);
        if polling != 0 {
            self.polling.store(0, Ordering::Relaxed);
            // A new run has forgotten when it began.
            if self.run.load(Ordering::Relaxed) == run() {
                add(&self.ticks[Time::Poll as usize], now.saturating_sub(polling));
            }
        }
    }

    /// A task begins, and waits.
    #[inline]
    pub(crate) fn task_begins(&self, run: u64, since: u64) {
        self.write(run, || self.open(since));
    }

    /// A task ends in the midst of a wait.
    #[inline]
    pub(crate) fn task_ends(&self, run: u64, wait: Wait) {
        self.write(run, || self.close(wait));
    }

    /// A wait ends with a poll.
    #[inline]
    pub(crate) fn poll_begins(&self, run: u64, wait: Wait) {
        self.write(run, || {
            self.close(wait);
            self.polling.store(wait.ends, Ordering::Relaxed);
        });
    }

    /// A poll ends, and a wait begins: of a task with times of that run. `is_charged`: the row was
    /// charged with the poll up to now.
    #[inline]
    pub(crate) fn poll_ends(&self, run: u64, now: u64, is_charged: bool) {
        self.sequence.write(|| {
            if is_charged {
                self.stop(now);
            }
            if self.run.load(Ordering::Relaxed) == run {
                self.open(now);
            }
        });
    }

    /// The poll of another task has ended inside of one that goes on.
    #[inline]
    pub(crate) fn goes_on(&self, now: u64) {
        self.sequence.write(|| self.polling.store(now, Ordering::Relaxed));
    }

    /// The row is charged with what no task of its group does.
    pub(crate) fn charge_from(&self, run: u64, now: u64) {
        self.write(run, || self.polling.store(now, Ordering::Relaxed));
    }

    /// The sums, and present intervals if they belong to run `run`.
    pub(crate) fn sums(&self, run: u64) -> Sums {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let read = || {
            let ticks = self.ticks.each_ref().map(load);
            if load(&self.run) != run {
                return Sums { ticks, ..Sums::default() };
            }
            let (open, beginnings) = (load(&self.open), load(&self.beginnings));
            Sums { ticks, open, beginnings, polling: load(&self.polling) }
        };
        self.sequence.read(read).0
    }
}

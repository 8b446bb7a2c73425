//! The sums of one thread for one line that takes locks, and one group.
//!
//! To add is a load and a store, because only the row's thread does. A row has what is known of its
//! line: the file's name is copied, because the object with the line may be unloaded.

use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dormouse_clock::ticks_to_ns;
use dormouse_statistics::buckets::{self, Histogram};
use dormouse_sys::sync::Sequence;

use crate::kind::LockKind;

/// The groups that held locks for which a row has waited, one by one.
const BLAMED: usize = 8;

/// Buckets are counted at this scale: they are 19 % wide.
const SCALE: i32 = buckets::EXPORTED_SCALE;
const WIDER: usize = 1 << (buckets::SCALE - SCALE);
const BUCKETS: usize = 1 + (buckets::BUCKETS - 1) / WIDER;

/// The bytes of a file's name, and of a type's, that are kept: their ends.
const LONGEST: usize = 120;

/// Text that was copied.
#[derive(Debug)]
struct Copied {
    length: u8,
    bytes: [u8; LONGEST],
}

/// Durations of one writer.
#[derive(Debug)]
struct Durations {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// Durations in exponential buckets, which are 19 % wide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockDurations {
    counts: [u64; BUCKETS],
    /// The sum of all, in nanoseconds.
    pub sum_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
}

impl LockDurations {
    pub(crate) const NONE: Self = Self { counts: [0; BUCKETS], sum_ns: 0, max_ns: 0 };

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The same as a histogram, which has finer buckets: each duration is in the last one that its
    /// own contains.
    pub fn histogram(&self) -> Histogram {
        let mut histogram =
            Histogram { scale: SCALE, sum_ns: self.sum_ns, max_ns: self.max_ns, ..Histogram::default() };
        for (at, count) in self.counts.iter().enumerate() {
            histogram.buckets[at * WIDER] = *count;
        }
        histogram
    }
}

/// The holder of a lock for which a thread or a task waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockHolder {
    /// A group by its number; 0: no group was current.
    Group(u32),
    /// The lock was taken before locks were noted.
    Before,
    /// Not known: there was no room for the holder, or the lock was just being handed over.
    Unknown,
    /// Groups beyond the first eight.
    Others,
}

/// The codes of [`LockHolder`]; 0 is none.
const BEFORE: u64 = 1;
const UNKNOWN: u64 = 2;
const OTHERS: u64 = 3;
const GROUP: u64 = 4;

impl LockHolder {
    fn of(code: u64) -> Option<Self> {
        match code {
            0 => None,
            BEFORE => Some(Self::Before),
            UNKNOWN => Some(Self::Unknown),
            OTHERS => Some(Self::Others),
            group => Some(Self::Group((group - GROUP) as u32)),
        }
    }

    fn code(self) -> u64 {
        match self {
            Self::Before => BEFORE,
            Self::Unknown => UNKNOWN,
            Self::Others => OTHERS,
            Self::Group(group) => GROUP + u64::from(group),
        }
    }
}

/// The holder of a lock when a wait began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blame {
    pub(crate) by: LockHolder,
    /// The number of the holder's row, if the holder is known.
    pub(crate) row: Option<u32>,
}

/// See the module.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Row {
    /// The line and the type of locks.
    site: usize,
    key: u64,
    kind: u8,
    line: u32,
    column: u32,
    /// The shelf that writes it.
    shelf: usize,
    number: u32,
    /// Whether a thread has waited for a lock that was taken here.
    is_waited_for: AtomicBool,
    acquisitions: AtomicU64,
    given_up: AtomicU64,
    waits: Durations,
    holds: Durations,
    /// The longest wait, its holder, and the row of that, from 1 on.
    longest: Sequence,
    longest_ns: AtomicU64,
    longest_by: AtomicU64,
    longest_held_at: AtomicU64,
    /// Blamed groups, with the time for which they are.
    blamed: [(AtomicU64, AtomicU64); BLAMED],
    /// That time of all further groups.
    blamed_others: AtomicU64,
    file: Copied,
    name: Copied,
}

impl Copied {
    fn copy(&mut self, text: &str) {
        // Of a path the end is worth more, and so it is of a type.
        let skipped = text.len().saturating_sub(LONGEST);
        let from = (skipped..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        let end = &text.as_bytes()[from..];
        self.bytes[..end.len()].copy_from_slice(end);
        self.length = end.len() as u8;
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length as usize]).unwrap_or_default()
    }
}

/// Adds, for the only writer of `to`.
#[inline]
fn add(to: &AtomicU64, more: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Durations {
    #[inline]
    fn add(&self, ns: u64) {
        let fine = buckets::place(ns);
        add(&self.counts[fine.div_ceil(WIDER)], 1);
        add(&self.sum_ns, ns);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    fn add_to(&self, all: &mut LockDurations) {
        for (sum, count) in all.counts.iter_mut().zip(&self.counts) {
            *sum += count.load(Ordering::Relaxed);
        }
        all.sum_ns = all.sum_ns.wrapping_add(self.sum_ns.load(Ordering::Relaxed));
        all.max_ns = all.max_ns.max(self.max_ns.load(Ordering::Relaxed));
    }
}

impl Row {
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Whether another thread has waited for a lock that was taken here.
    #[inline]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_waited_for.load(Ordering::Relaxed)
    }

    /// A thread waits for a lock that was taken here.
    pub(crate) fn wait_for(&self) {
        if !self.is_waited_for() {
            self.is_waited_for.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn group(&self) -> u32 {
        self.key as u32
    }

    pub(crate) fn kind(&self) -> LockKind {
        LockKind::of(self.kind)
    }

    pub(crate) fn file(&self) -> &str {
        self.file.text()
    }

    pub(crate) fn name(&self) -> &str {
        self.name.text()
    }

    pub(crate) fn position(&self) -> (u32, u32) {
        (self.line, self.column)
    }

    /// The shelf that writes it.
    #[inline]
    pub(crate) fn shelf(&self) -> usize {
        self.shelf
    }

    #[inline]
    pub(crate) fn is(&self, site: usize, key: u64) -> bool {
        self.site == site && self.key == key
    }

    /// The words that [`Row::is`] compares.
    pub(crate) fn identity(&self) -> (usize, u64) {
        (self.site, self.key)
    }

    /// Writes what it has of its line, before others see it.
    pub(crate) fn begin(&mut self, (site, key): (usize, u64), kind: LockKind, shelf: usize, number: u32) {
        (self.site, self.key, self.kind) = (site, key, kind as u8);
        (self.shelf, self.number) = (shelf, number);
    }

    /// Likewise, of a line that is there.
    pub(crate) fn copy_site(&mut self, site: &Location<'_>, name: &str) {
        (self.line, self.column) = (site.line(), site.column());
        self.file.copy(site.file());
        self.name.copy(name);
    }

    /// Likewise, of a line that another row has.
    pub(crate) fn copy_row(&mut self, of: &Self) {
        (self.line, self.column) = (of.line, of.column);
        self.file.copy(of.file.text());
        self.name.copy(of.name.text());
    }

    /// Counts an acquisition; the number of those before.
    #[inline]
    pub(crate) fn acquired(&self) -> u64 {
        let before = self.acquisitions.load(Ordering::Relaxed);
        self.acquisitions.store(before + 1, Ordering::Relaxed);
        before
    }

    /// Counts the time for which a lock was held.
    #[inline]
    pub(crate) fn held(&self, ticks: u64) {
        self.holds.add(ticks_to_ns(ticks));
    }

    /// Counts a wait that is over.
    pub(crate) fn waited(&self, ticks: u64, by: Blame, is_given_up: bool) {
        let ns = ticks_to_ns(ticks);
        self.waits.add(ns);
        if is_given_up {
            let given_up = self.given_up.load(Ordering::Relaxed);
            // Release: pairs with the load in `given_up`, after which the wait is counted.
            self.given_up.store(given_up + 1, Ordering::Release);
        }
        let code = by.by.code();
        let is_its = |of: &&(AtomicU64, AtomicU64)| [0, code].contains(&of.0.load(Ordering::Relaxed));
        match self.blamed.iter().find(is_its) {
            Some((of, sum)) => {
                of.store(code, Ordering::Relaxed);
                add(sum, ns);
            }
            None => add(&self.blamed_others, ns),
        }
        if ns > self.longest_ns.load(Ordering::Relaxed) {
            self.longest.write(|| {
                self.longest_ns.store(ns, Ordering::Relaxed);
                self.longest_by.store(code, Ordering::Relaxed);
                self.longest_held_at.store(by.row.map_or(0, |row| u64::from(row) + 1), Ordering::Relaxed);
            });
        }
    }

    pub(crate) fn acquisitions(&self) -> u64 {
        self.acquisitions.load(Ordering::Relaxed)
    }

    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Acquire)
    }

    pub(crate) fn add_to(&self, waits: &mut LockDurations, holds: &mut LockDurations) {
        self.waits.add_to(waits);
        self.holds.add_to(holds);
    }

    /// The longest wait, and the holder of the lock when it began.
    pub(crate) fn longest(&self) -> Option<(u64, Blame)> {
        let words = || {
            [&self.longest_ns, &self.longest_by, &self.longest_held_at]
                .map(|word| word.load(Ordering::Relaxed))
        };
        let ([ns, by, row], is_whole) = self.longest.read(words);
        let by = LockHolder::of(by).filter(|_| is_whole)?;
        Some((ns, Blame { by, row: row.checked_sub(1).map(|row| row as u32) }))
    }

    /// The waits by the holder of the lock when they began, in nanoseconds.
    pub(crate) fn blamed(&self) -> impl Iterator<Item = (LockHolder, u64)> {
        let one = |(of, sum): &(AtomicU64, AtomicU64)| {
            Some((LockHolder::of(of.load(Ordering::Relaxed))?, sum.load(Ordering::Relaxed)))
        };
        let others = Some((LockHolder::Others, self.blamed_others.load(Ordering::Relaxed)));
        self.blamed.iter().filter_map(one).chain(others).filter(|(_, ns)| *ns > 0)
    }
}

//! The places in the source that spawn tasks: how many of their tasks live, and which tasks only
//! wakers of ours can wake.
//!
//! # Spawn sites
//!
//! A spawn finds its site in a table by the address of its [`Location`]; the table is filled once
//! and never emptied. While times are taken, each begin and end of a task adds to the site's count.
//! So a count is the change since any earlier reading, also for tasks that began before times were
//! taken: these have their site, and their end counts.
//!
//! # The word of a slot
//!
//! | bits | are |
//! |---|---|
//! | [`SITE`] | the number of the site; 0: none |
//! | [`WHOLE`] | the runtime polls the task itself, not another future around it |
//! | [`ESCAPED`] | a poll, or a leaf, got the runtime's own waker, whose clones are not counted |
//! | [`ENDED`] | its future has returned its output: the task needs no waker, and is dropped next |
//! | [`BY_HAND`] | the task was entered by hand: a scope, a thread, a run |
//!
//! With `WHOLE` and without the other two, each waker by which the task can be woken is one that
//! the slot counts, provided that the task has begun in the present run.

use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};

use dormouse_keys::unlikely;
use dormouse_sys::sync::OnceRef;

use crate::slot::Slot;
use crate::waiting::WAITS;

/// A poll of a task, which may be its last one.
#[derive(Debug, Clone, Copy)]
pub struct LastPoll(pub(crate) Option<&'static Slot>);

impl LastPoll {
    /// The future has returned its output. To be called within the poll.
    #[inline]
    pub fn has_ended(self) {
        if let Some(slot) = self.0 {
            ended(slot);
        }
    }
}

const SITE: u32 = 0xffff;
const WHOLE: u32 = 1 << 16;
const ESCAPED: u32 = 1 << 17;
const ENDED: u32 = 1 << 18;
const BY_HAND: u32 = 1 << 19;

/// How many sites there can be. Tasks of further ones have none.
const SITES: usize = 1024;
/// How many cells are compared for one site.
const WAY: usize = 32;
/// Threads that spawn at the same time mostly count in different shards.
const SHARDS: usize = 8;
/// Numbers of tasks that one thread takes at once, as the account of groups does.
const BLOCK: u64 = 1024;

static TABLE: [OnceRef<Location<'static>>; SITES] = [const { OnceRef::new() }; SITES];

/// The counts of all sites, for some of the threads.
#[repr(align(128))]
struct Shard([AtomicI64; SITES]);

static ALIVE: [Shard; SHARDS] = [const { Shard([const { AtomicI64::new(0) }; SITES]) }; SHARDS];

/// A place in the source that spawns tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site(u16);

impl Site {
    /// No site, or one for which there was no room.
    pub const NONE: Self = Self(0);

    /// The site at `location`. Lines of generic functions may be several.
    ///
    /// # Cost
    ///
    /// A look-up in a table: mostly one comparison.
    #[inline]
    pub fn of(location: &'static Location<'static>) -> Self {
        // Locations are neighbours in memory; their cells are not.
        let hash = (ptr::from_ref(location).addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (hash >> (u64::BITS - SITES.ilog2())) as usize;
        (first..first + WAY)
            .map(|cell| cell % SITES)
            .find(|&cell| is_there(cell, location))
            .map_or(Self::NONE, |cell| Self(cell as u16 + 1))
    }

    /// The number of the site, from 1 on; 0 for [`Site::NONE`].
    pub fn number(self) -> u32 {
        self.0.into()
    }

    /// A task with this number begins here.
    #[inline]
    pub fn begins(self, task: u64) {
        if unlikely!(WAITS) {
            self.count(task, 1);
        }
    }

    /// A task with this number that began here ends.
    #[inline]
    pub fn ends(self, task: u64) {
        if unlikely!(WAITS) {
            self.count(task, -1);
        }
    }

    fn count(self, task: u64, change: i64) {
        if let Some(cell) = usize::from(self.0).checked_sub(1) {
            ALIVE[(task / BLOCK) as usize % SHARDS].0[cell].fetch_add(change, Ordering::Relaxed);
        }
    }
}

/// Whether the cell has this location, or gets it.
#[inline]
fn is_there(cell: usize, location: &'static Location<'static>) -> bool {
    let there = TABLE[cell].get().unwrap_or_else(|| TABLE[cell].get_or_init(|| location));
    ptr::eq(there, location)
}

/// A site, and how many more of its tasks have begun than ended while times were taken.
#[derive(Debug, Clone, Copy)]
pub struct SpawnSite {
    /// The site.
    pub site: Site,
    /// Its line.
    pub location: &'static Location<'static>,
    /// The change of its number of living tasks.
    pub change: i64,
}

/// All sites that have spawned.
///
/// # Cost
///
/// Reads a thousand words, and eight for each site.
pub fn spawn_sites() -> impl Iterator<Item = SpawnSite> {
    TABLE.iter().enumerate().filter_map(|(cell, location)| {
        let change = ALIVE.iter().map(|shard| shard.0[cell].load(Ordering::Relaxed)).sum();
        Some(SpawnSite { site: Site(cell as u16 + 1), location: location.get()?, change })
    })
}

/// By how much a number has grown that was seen in this order, if it keeps growing: of nine
/// readings or more, each third lies wholly above the third before it. So a number that rises and
/// falls, or has risen once, is not one that grows.
pub fn growth(looks: &[i64]) -> Option<u64> {
    let third = looks.len() / 3;
    if third < 3 {
        return None;
    }
    let last = looks.len() - third;
    let [low, middle, high] = [&looks[..third], &looks[third..last], &looks[last..]];
    let is_above = |above: &[i64], below: &[i64]| above.iter().min() > below.iter().max();
    let grown = looks.last()?.checked_sub(*looks.first()?)?;
    (is_above(middle, low) && is_above(high, middle)).then_some(grown.unsigned_abs())
}

/// The slot's task was spawned there.
pub(crate) fn spawned(slot: &Slot, site: Site) {
    slot.spawned.fetch_or(WHOLE | site.number(), Ordering::Relaxed);
}

/// The runtime's own waker is about to go where its clones are not counted.
#[cold]
pub(crate) fn escapes(slot: &Slot) {
    slot.spawned.fetch_or(ESCAPED, Ordering::Relaxed);
}

/// The slot's task is entered by hand.
pub(crate) fn entered(slot: &Slot) {
    if !is_by_hand(slot) {
        slot.spawned.fetch_or(BY_HAND, Ordering::Relaxed);
    }
}

/// Whether the slot's task was entered by hand.
pub(crate) fn is_by_hand(slot: &Slot) -> bool {
    slot.spawned.load(Ordering::Relaxed) & BY_HAND != 0
}

/// The site where the slot's task was spawned.
pub(crate) fn of(slot: &Slot) -> Site {
    Site((slot.spawned.load(Ordering::Relaxed) & SITE) as u16)
}

/// The future of the slot's task has returned its output. Called within its poll, whose end
/// publishes it.
#[inline]
pub(crate) fn ended(slot: &Slot) {
    if slot.spawned.load(Ordering::Relaxed) & WHOLE != 0 {
        slot.spawned.fetch_or(ENDED, Ordering::Relaxed);
    }
}

/// Whether the slot's task needs a waker to go on, and each one is counted, if it has begun in this
/// run.
pub(crate) fn sees_all_wakers(slot: &Slot) -> bool {
    slot.spawned.load(Ordering::Relaxed) & (WHOLE | ESCAPED | ENDED) == WHOLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn here() -> Site {
        Site::of(Location::caller())
    }

    #[test]
    #[cfg_attr(miri, ignore = "a line has several locations there")]
    fn a_line_is_one_site() {
        let sites: Vec<_> = (0..3).map(|_| here()).collect();
        let other = here();
        assert!(sites.iter().all(|&site| site == sites[0] && site != other && site != Site::NONE));
        let line = |of: Site| spawn_sites().find(|row| row.site == of).unwrap().location.line();
        assert_eq!(line(other), line(sites[0]) + 1);
    }

    #[test]
    fn only_what_keeps_growing_grows() {
        let grown = |of: fn(i64) -> i64, looks: i64| growth(&(0..looks).map(of).collect::<Vec<_>>());
        assert_eq!(grown(|n| 5 + n, 9), Some(8), "a task for each look");
        assert_eq!(grown(|n| n / 2, 12), Some(5), "one for each two");
        assert_eq!(grown(|n| 3 * n + [0, 1, -1][n as usize % 3], 12), Some(32), "beside other work");
        assert_eq!(grown(|n| 5 + n, 8), None, "too few looks");
        assert_eq!(grown(|_| 7, 12), None);
        assert_eq!(grown(|n| n.min(4), 12), None, "it has risen, and stays");
        assert_eq!(grown(|n| [1, 9, 4][n as usize % 3], 12), None, "it rises and falls");
        assert_eq!(grown(|n| if n < 11 { n } else { 0 }, 12), None, "all are gone");
        assert_eq!(grown(|n| -n, 12), None);
    }
}

//! The unwind tables of this process, published for the threads that walk.
//!
//! One thread at a time learns, and publishes ([`Publisher`]); walks search what it has published.
//! A table is replaced by a longer one when its object's functions have been learned, and freed
//! when no walk that may have found it is under way.
//!
//! # Safety
//!
//! The unsafe code makes references from the addresses of published tables. A replaced table is
//! freed only once no walk holds a map that had it (`CODE.is_settled`), and never if a change of
//! the map has failed.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_maps::{Held, Overlap, RangeMap};
use dormouse_sys::memory;

use crate::cache::ThreadCache;
use crate::memory::ProcessMemory;
use crate::rule::FrameRule;
use crate::table::{RowTable, TableRef};
use crate::tables::UnwindTables;

/// The memory that a range of code takes in maps and lists of them.
const RANGE: usize = 256;

/// The code of this process.
pub(crate) static CODE: RangeMap<TableRef> = RangeMap::new();

/// The most bytes of replaced tables that wait for walks to end. Beyond it walks go on with what
/// they have.
const MOST_RETIRED: usize = 64 << 20;

/// Begins anew when code that had a table is gone, or belongs to another object: rules that threads
/// remember are those of one generation.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Addresses whose functions walks have met before they were learned; 0: none.
static MISSED: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];

/// The generation of the rules that a walk finds from now on. Read before the map.
pub(crate) fn generation() -> u64 {
    // Acquire: pairs with the addition in `publish`.
    GENERATION.load(Ordering::Acquire)
}

/// The cells that an address may be in.
const TRIED: usize = 8;

/// Notes an address for [`learn_missed`], instead of another one if its cells are full: then the
/// next walk there misses that one.
pub(crate) fn miss(address: usize) {
    // The upper bits of a product with an odd number spread addresses that differ in low bits.
    let place = (address as u32).wrapping_mul(0x9e37_79b1) >> (u32::BITS - MISSED.len().ilog2());
    let cell = |tried: usize| &MISSED[(place as usize + tried) % MISSED.len()];
    let address = address as u64;
    // Relaxed: an address says all. Of two threads that find the same cell free, one is noted.
    let is_free = |cell: &&AtomicU64| [0, address].contains(&cell.load(Ordering::Relaxed));
    let free = (0..TRIED).map(cell).find(is_free).unwrap_or_else(|| cell(0));
    free.store(address, Ordering::Relaxed);
}

/// A range of code, and the published table of its object, with the object's number and version.
#[derive(Debug)]
struct Published {
    start: u64,
    end: u64,
    number: u64,
    version: u64,
    table: Option<Arc<RowTable>>,
    /// Walks do not find it yet.
    is_new: bool,
}

/// Whether walks have missed functions since the last [`take_missed`].
pub(crate) fn has_missed() -> bool {
    // Relaxed: an address says all.
    MISSED.iter().any(|missed| missed.load(Ordering::Relaxed) != 0)
}

/// Gives the functions that walks have missed since the last time to `take`, until that returns
/// false. Whether there were any.
pub(crate) fn take_missed(mut take: impl FnMut(u64) -> bool) -> bool {
    // Relaxed: an address says all.
    let is_missed = |missed: &&AtomicU64| missed.load(Ordering::Relaxed) != 0;
    let mut missed = MISSED.iter().filter(is_missed).peekable();
    let has_missed = missed.peek().is_some();
    let _all = missed.all(|missed| take(missed.swap(0, Ordering::Relaxed)));
    has_missed
}

/// The tables of this process that walks search. There is one: it is never dropped.
#[derive(Debug)]
pub(crate) struct Publisher {
    published: Vec<Published>,
    /// Tables that were replaced, and may still be read.
    retired: Vec<Arc<RowTable>>,
}

impl Publisher {
    pub(crate) const fn new() -> Self {
        Self { published: Vec::new(), retired: Vec::new() }
    }

    /// The bytes of its tables, and of those that may still be read.
    pub(crate) fn size(&self) -> usize {
        let mut sum = self.retired.iter().map(|table| table.size()).sum();
        let mut last = 0;
        for of in &self.published {
            // Ranges of one object have one table.
            sum += if of.number == last { 0 } else { of.size() };
            last = of.number;
        }
        sum
    }

    /// Publishes what has been learned since the last time. Returns false if there is no memory for
    /// it: then walks go on with what they have.
    pub(crate) fn publish(&mut self, tables: &UnwindTables<ProcessMemory>) -> bool {
        // A walk that never ended (one of a thread that a fork has left in the parent, or one that
        // `siglongjmp` has left) keeps all of them.
        if self.retired.iter().map(|table| table.size()).sum::<usize>() > MOST_RETIRED {
            if !CODE.is_settled() {
                return false;
            }
            self.retired.clear();
        }
        let Self { published, retired } = self;
        let (ranges, before) = (tables.objects().count(), published.len());
        let (mut now, mut gone) = (Vec::<Published>::new(), Vec::new());
        // The copies of tables come first: they may be refused, the rest may not.
        let has_room = memory::is_there(ranges * RANGE + tables.size())
            && now.try_reserve(ranges + before).is_ok()
            && gone.try_reserve(before).is_ok()
            && retired.try_reserve(before).is_ok();
        if !has_room {
            return false;
        }
        let mut is_all = true;
        let mut old = std::mem::take(published).into_iter().peekable();
        for (range, object) in tables.objects() {
            gone.extend(std::iter::from_fn(|| old.next_if(|old| old.start < range.start)));
            let (number, version) = object.map_or((0, 0), |(object, _)| (object.number, object.version));
            let same =
                old.next_if(|old| (old.start, old.end, old.number) == (range.start, range.end, number));
            match (same, object) {
                (Some(same), _) if same.version == version => now.push(same),
                (same, None) => now.push(same.unwrap_or_else(|| Published::of(range, None))),
                (same, Some((_, table))) => {
                    let table = shared(&now, number, version).or_else(|| table.copy().map(Arc::new));
                    if table.is_some() {
                        retire(retired, same.and_then(|same| same.table));
                        now.push(Published { number, version, ..Published::of(range, table) });
                    } else {
                        // No memory: walks go on with the one before.
                        is_all = false;
                        now.extend(same);
                    }
                }
            }
        }
        gone.extend(old);
        *published = now;
        let shown = CODE.update(|edit| {
            for gone in &gone {
                edit.remove(gone.start..gone.end)?;
            }
            for Published { start, end, table, .. } in published.iter().filter(|of| of.is_new) {
                let table = TableRef(table.as_ref().map_or(ptr::null(), Arc::as_ptr));
                edit.insert(*start..*end, table, Overlap::Replace)?;
            }
            Ok::<_, dormouse_maps::EditError>(())
        });
        if shown.is_err() {
            // The map goes on with the replaced ones.
            retired.drain(..).for_each(std::mem::forget);
            published.extend(gone);
            published.sort_unstable_by_key(|of| of.start);
            return false;
        }
        for of in published.iter_mut() {
            of.is_new = false;
        }
        if !gone.is_empty() {
            for gone in gone {
                retire(retired, gone.table);
            }
            // After the map. Release: pairs with the load in `generation`, so a walk of the new
            // generation finds no older rule.
            GENERATION.fetch_add(1, Ordering::Release);
        }
        if CODE.is_settled() {
            retired.clear();
        }
        is_all
    }
}

/// The published table of this version, if the object has code in other ranges.
fn shared(now: &[Published], number: u64, version: u64) -> Option<Arc<RowTable>> {
    let of = now.iter().rev().find(|of| (of.number, of.version) == (number, version))?;
    of.table.clone()
}

/// Keeps a replaced table. Ranges of one object have one.
fn retire(retired: &mut Vec<Arc<RowTable>>, table: Option<Arc<RowTable>>) {
    let is_known = |table: &Arc<RowTable>| retired.last().is_some_and(|last| Arc::ptr_eq(last, table));
    if let Some(table) = table.filter(|table| !is_known(table)) {
        retired.push(table);
    }
}

impl Published {
    /// The bytes of its table.
    fn size(&self) -> usize {
        self.table.as_ref().map_or(0, |table| table.size())
    }

    /// A table that no walk has seen.
    fn of(range: &Range<u64>, table: Option<Arc<RowTable>>) -> Self {
        Self { start: range.start, end: range.end, number: 0, version: 0, table, is_new: true }
    }
}

/// The rule of an address that the thread does not remember.
#[cold]
#[inline(never)]
pub(crate) fn search(
    code: &Held<'_, TableRef>,
    cache: Option<&ThreadCache>,
    address: u64,
) -> Option<FrameRule> {
    let found = match cache {
        Some(cache) => code.find(&cache.ranges, address),
        None => code.find_uncached(address),
    };
    let TableRef(table) = found?.value;
    // SAFETY: null, or published: the publisher frees it only when no walk holds the map that had
    // it.
    let rule = match unsafe { table.as_ref() } {
        Some(table) => table.packed(address)?.rule(),
        None => FrameRule::LINK,
    };
    if let Some(cache) = cache {
        cache.remember(address, rule);
    }
    Some(rule)
}

/// Whether an address lies in code that has a table.
#[cold]
#[inline(never)]
pub(crate) fn has_table(code: &Held<'_, TableRef>, address: u64) -> bool {
    code.find_uncached(address).is_some_and(|found| !found.value.0.is_null())
}

#[cfg(test)]
mod tests {
    use dormouse_testkit::in_child;
    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::*;
    use crate::process::ProcessTables;

    /// Limits the address space of this process.
    fn limit_memory(current: Option<u64>) {
        setrlimit(Resource::As, Rlimit { current, maximum: None }).unwrap();
    }

    /// All memory that a limit leaves, in pieces that the allocator may keep for later.
    fn rest_of_memory() -> Vec<Vec<u8>> {
        let mut taken = Vec::with_capacity(1 << 16);
        for size in [64 << 10, 1 << 10] {
            let mut next = Vec::new();
            while taken.len() < taken.capacity() && next.try_reserve_exact(size).is_ok() {
                taken.push(std::mem::take(&mut next));
            }
        }
        taken
    }

    /// The rule that walks find.
    fn published(address: u64) -> Option<FrameRule> {
        CODE.hold(|code| search(&code, None, address)).unwrap()
    }

    #[test]
    #[cfg_attr(miri, ignore = "its functions have no code")]
    fn walks_go_on_with_old_tables_without_memory() {
        in_child(|| {
            let (old, new) = (libc::getpid as *const () as u64, libc::qsort as *const () as u64);
            let (mut tables, mut publisher) = (ProcessTables::own().unwrap(), Publisher::new());
            tables.tables().code(old);
            assert!(publisher.publish(tables.tables()));
            let rule = published(old);
            assert!(rule.is_some() && published(new).is_none());
            tables.tables().read_whole(new).unwrap();
            let size = publisher.size();
            limit_memory(Some(1));
            let taken = rest_of_memory();
            for _ in 0..3 {
                assert!(!publisher.publish(tables.tables()), "there is memory");
                assert_eq!((published(old), published(new)), (rule, None));
                assert_eq!(publisher.size(), size, "nothing is left of the attempt");
            }
            limit_memory(None);
            drop(taken);
            assert!(publisher.publish(tables.tables()));
            assert_eq!(published(old), rule);
            assert!(published(new).is_some() && publisher.size() > size);
        });
    }

    #[test]
    fn what_one_stack_misses_is_learned_at_once() {
        // As many as there are addresses of code in the part of a stack that is looked at.
        let missed: Vec<u64> = (1..=150).map(|n| n * 0x1039).collect();
        for &address in &missed {
            miss(address as usize);
        }
        let mut learned = Vec::new();
        assert!(has_missed());
        while take_missed(|address| {
            learned.push(address);
            !learned.len().is_multiple_of(7)
        }) {}
        assert!(!has_missed());
        learned.sort_unstable();
        assert_eq!(learned, missed);
    }
}

//! The unwind tables of this process, published for signal handlers.
//!
//! One thread learns, and publishes ([`Publisher`]); handlers search what it has published. A table
//! is replaced by a longer one when its object's functions have been learned, and freed when no
//! walk that may have found it is under way.
//!
//! # Safety
//!
//! The unsafe code makes references from the addresses of published tables, and reads words of the
//! calling thread's own stack.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_maps::{Held, Overlap, RangeMap};
use dormouse_sys::process::fork::{Mutex, Phase};
use dormouse_sys::{memory, peek};

use crate::arch::RED_ZONE;
use crate::cache::ThreadCache;
use crate::memory::ProcessMemory;
use crate::rule::{CallFrame, CallerStep, FrameRule, PackedRule};
use crate::table::{RowTable, TableRef};
use crate::tables::UnwindTables;

/// A word on the stack.
const WORD: usize = size_of::<usize>();

/// The memory that a range of code takes in maps and lists of them.
const RANGE: usize = 256;

/// The bytes of another stack that are copied at once.
const WINDOW: usize = 512;

/// The code of this process.
static CODE: RangeMap<TableRef> = RangeMap::new();

/// Tables that publishers have left, and that may still be read. Held while tables are replaced:
/// the map's own lock would stay taken in a child of a fork.
static LEFT: Mutex<Vec<Arc<RowTable>>> = Mutex::new(Phase::Tables, Vec::new());

/// Begins anew when code that had a table is gone, or belongs to another object: rules that threads
/// remember are those of one generation.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// A range of code, and the published table of its object, with the object's number and version.
#[derive(Debug)]
struct Published {
    start: u64,
    end: u64,
    number: u64,
    version: u64,
    table: Option<Arc<RowTable>>,
    /// Handlers do not have it yet.
    is_new: bool,
}

/// Addresses whose functions handlers have met before they were learned; 0: none.
static MISSED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// The tables of this process that signal handlers search. When it is dropped, handlers find none.
/// There is one at a time.
#[derive(Debug, Default)]
pub struct Publisher {
    published: Vec<Published>,
    /// Tables that were replaced, and may still be read.
    retired: Vec<Arc<RowTable>>,
}

impl Publisher {
    /// Has `learn` learn the functions that handlers have missed since the last time. Whether there
    /// were any.
    pub fn learn_missed(&mut self, mut learn: impl FnMut(u64)) -> bool {
        let mut has_missed = false;
        for missed in &MISSED {
            // Relaxed: an address says all.
            if missed.load(Ordering::Relaxed) != 0 {
                has_missed = true;
                learn(missed.swap(0, Ordering::Relaxed));
            }
        }
        has_missed
    }

    /// Publishes what has been learned since the last time. If there is no memory for it, handlers
    /// go on with what they have.
    pub fn publish(&mut self, tables: &UnwindTables<ProcessMemory>) {
        let Ok(mut left) = LEFT.lock() else { return };
        let Self { published, retired } = self;
        let (ranges, before) = (tables.objects().count(), published.len());
        let (mut now, mut gone) = (Vec::new(), Vec::new());
        // The copies of tables come first: they may be refused, the rest may not.
        let has_room = memory::is_there(ranges * RANGE + tables.size())
            && now.try_reserve(ranges).is_ok()
            && gone.try_reserve(before).is_ok()
            && retired.try_reserve(before).is_ok();
        if !has_room {
            return;
        }
        let mut old = std::mem::take(published).into_iter().peekable();
        for (range, object) in tables.objects() {
            gone.extend(std::iter::from_fn(|| old.next_if(|old| old.start < range.start)));
            let (number, version) = object.map_or((0, 0), |(object, _)| (object.number, object.version));
            let same =
                old.next_if(|old| (old.start, old.end, old.number) == (range.start, range.end, number));
            match (same, object) {
                (Some(same), _) if same.version == version => now.push(Published { is_new: false, ..same }),
                (same, None) => now.push(same.unwrap_or_else(|| Published::of(range, None))),
                (same, Some((_, table))) => match table.copy() {
                    Some(table) => {
                        retired.extend(same.and_then(|same| same.table));
                        let table = Some(Arc::new(table));
                        now.push(Published { number, version, ..Published::of(range, table) });
                    }
                    // No memory: handlers go on with the one before.
                    None => now.extend(same),
                },
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
        if !gone.is_empty() {
            retired.extend(gone.into_iter().filter_map(|gone| gone.table));
            // After the map. Release: pairs with the load in `walk_by`, so a walk of the new
            // generation finds no older rule.
            GENERATION.fetch_add(1, Ordering::Release);
        }
        if shown.is_err() {
            // The map has the replaced ones, and leads to them for ever.
            self.retired.drain(..).for_each(std::mem::forget);
        } else if CODE.is_settled() {
            self.retired.clear();
            left.clear();
        }
    }
}

impl Published {
    /// A table that handlers have not seen.
    fn of(range: &Range<u64>, table: Option<Arc<RowTable>>) -> Self {
        Self { start: range.start, end: range.end, number: 0, version: 0, table, is_new: true }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let left = LEFT.lock();
        let _refused = CODE.update(|edit| edit.remove(..).map(drop));
        // Release: as in `publish`.
        GENERATION.fetch_add(1, Ordering::Release);
        let most = self.published.len() + self.retired.len();
        let old = self.published.drain(..).filter_map(|old| old.table).chain(self.retired.drain(..));
        match left {
            Ok(mut left) => {
                if CODE.is_settled() {
                    left.clear();
                } else if left.try_reserve(most).is_ok() {
                    // A handler is at it. The next publisher frees them.
                    left.extend(old);
                } else {
                    old.for_each(std::mem::forget);
                }
            }
            // In the middle of a fork by this thread.
            Err(_) => old.for_each(std::mem::forget),
        }
    }
}

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkStop {
    /// At a thread's first function.
    Outermost,
    /// At code whose caller no rule finds.
    Unknown,
    /// At code about which nothing has been learned yet. Its address is noted.
    NotLearned,
    /// At the end of the room.
    Cut,
}

/// A walk that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    /// How many functions were filled in.
    pub depth: usize,
    /// How it ended.
    pub end: WalkStop,
    /// The registers of the last function.
    pub last: CallFrame,
}

/// Fills in the addresses of the functions of the calling thread's stack, the innermost first: the
/// instruction of `from`, and for each caller one inside of its call. `cache` is the thread's.
///
/// # Async-signal-safety
///
/// No lock, allocation, panic or thread-local. On a stack outside of `own` system calls, those of
/// [`peek::copy_some`]. Some 300 bytes of the stack, there 800.
///
/// # Safety
///
/// `own` is empty, or the calling thread can read it: from the stack pointer on, if that lies in
/// `own`, and in the red zone below, where the interrupted code may have written.
pub unsafe fn walk(
    cache: Option<&ThreadCache>,
    from: CallFrame,
    own: &Range<usize>,
    into: &mut [usize],
) -> Walk {
    if !own.contains(&from.stack) {
        return walk_elsewhere(cache, from, into);
    }
    let lowest = from.stack.saturating_sub(RED_ZONE).max(own.start);
    let word = |at: usize| {
        let is_there = at >= lowest && at <= own.end - WORD && at.is_multiple_of(WORD);
        // SAFETY: the address lies in the thread's own stack, as the caller guarantees: not below
        // the stack pointer, or where the interrupted code has written according to the table.
        // Volatile: other code of the thread wrote it.
        is_there.then(|| unsafe { ptr::with_exposed_provenance::<usize>(at).read_volatile() })
    };
    walk_by(cache, from, word, into)
}

/// Walks a stack that is not the thread's own: the kernel copies its words.
#[cold]
#[inline(never)]
fn walk_elsewhere(cache: Option<&ThreadCache>, from: CallFrame, into: &mut [usize]) -> Walk {
    let mut window = [0; WINDOW];
    let (mut begins, mut filled) = (0, 0);
    let word = |at: usize| {
        if at < begins || at.checked_add(WORD)? > begins + filled {
            (begins, filled) = (at, peek::copy_some(at, &mut window));
        }
        window[..filled].get(at - begins..)?.first_chunk().map(|word| usize::from_ne_bytes(*word))
    };
    walk_by(cache, from, word, into)
}

#[inline(always)]
fn walk_by(
    cache: Option<&ThreadCache>,
    from: CallFrame,
    mut read: impl FnMut(usize) -> Option<usize>,
    into: &mut [usize],
) -> Walk {
    // Before the map is read: see `publish`. Acquire: pairs with the additions there.
    let generation = GENERATION.load(Ordering::Acquire);
    let (mut last, mut depth) = (from, 0);
    let walked = CODE.hold(|code| {
        loop {
            let Some(place) = into.get_mut(depth) else { return WalkStop::Cut };
            *place = last.instruction;
            depth += 1;
            let address = last.instruction as u64;
            let rule = match cache {
                Some(cache) => cache.rule(address, generation, || search(&code, Some(cache), address)),
                None => search(&code, None, address),
            };
            let Some(rule) = rule else { return WalkStop::NotLearned };
            let rule = rule.rule();
            match rule.caller(last, &mut read) {
                CallerStep::Found(caller) => last = caller,
                CallerStep::Outermost => return WalkStop::Outermost,
                CallerStep::Unknown if rule.is_first(last, depth) => return WalkStop::Outermost,
                CallerStep::Unknown => return WalkStop::Unknown,
            }
        }
    });
    if let Ok(WalkStop::NotLearned) = walked {
        // Relaxed: an address says all.
        MISSED[last.instruction % MISSED.len()].store(last.instruction as u64, Ordering::Relaxed);
    }
    // An error: too many readers at once.
    Walk { depth, end: walked.unwrap_or(WalkStop::NotLearned), last }
}

/// The rule of an address that the thread does not remember.
#[cold]
#[inline(never)]
fn search(code: &Held<'_, TableRef>, cache: Option<&ThreadCache>, address: u64) -> Option<PackedRule> {
    let found = match cache {
        Some(cache) => code.find(&cache.ranges, address),
        None => code.find_uncached(address),
    };
    let TableRef(table) = found?.value;
    // SAFETY: null, or published: the publisher frees it only when no walk holds the map that had
    // it.
    match unsafe { table.as_ref() } {
        Some(table) => table.packed(address),
        None => PackedRule::new(FrameRule::LINK),
    }
}

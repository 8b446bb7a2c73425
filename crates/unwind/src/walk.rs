//! The callers of code on the calling thread, by the tables that are published for walks, and from
//! the first function on of which nothing has been learned by frame pointers.
//!
//! # Async-signal-safety
//!
//! No lock, allocation, panic or thread-local. Some 850 bytes of the stack. On a stack that is not
//! the thread's own the kernel copies its words, a quarter of a kilobyte at once: the system calls
//! of [`peek::copy_some`], and 1,300 bytes of the stack.
//!
//! # Safety
//!
//! The unsafe code reads words of the calling thread's own stack.
#![allow(unsafe_code)]

use std::ops::Range;

use dormouse_maps::Held;
use dormouse_sys::arch::stack_word;
use dormouse_sys::peek;
use dormouse_sys::stack::here;

use crate::arch::{self, RED_ZONE};
use crate::cache::ThreadCache;
use crate::frames;
use crate::published::{CODE, generation, has_table, miss, search};
use crate::rule::{CallFrame, CallerStep, FrameRule};
use crate::short::ShortRule;
use crate::table::TableRef;

/// A word on the stack.
const WORD: usize = size_of::<usize>();

/// The words of the stack that are searched for callers.
const REACH: usize = 256;

/// The bytes of another stack that are copied at once.
const WINDOW: usize = 256;

/// The bytes of the stack that a walk takes.
const ROOM: usize = if cfg!(dormouse_unoptimized) { 6144 } else { 1408 };

/// Whether the alternate stacks that the standard library gives threads may lack that room: in
/// builds without optimisation.
pub const MAY_LACK_ROOM: bool = cfg!(dormouse_unoptimized);

/// Whether a signal handler has room for a walk, if it runs on an alternate stack whose lowest
/// address is this (otherwise 0). The 8 KiB that the standard library gives threads, with the frame
/// of the kernel in them, are too little for one without optimisation.
///
/// # Async-signal-safety
///
/// Reads one register.
#[inline(always)]
pub fn has_room(lowest: usize) -> bool {
    here().stack.wrapping_sub(lowest) >= ROOM
}

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WalkEnd {
    /// At code whose table has no rule that leads to its caller.
    NoRule,
    /// At code of no object with a table, whose frame pointer leads nowhere.
    NoTable,
    /// Nothing had been learned about a function, and frame pointers lead no further.
    #[default]
    Unlearned,
    /// At a thread's first function.
    Outermost,
    /// Where the caller of the walk wanted no more.
    Enough,
}

/// A walk that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walk {
    /// How it ended.
    pub end: WalkEnd,
    /// Whether nothing had been learned about a function: its address is noted, and its callers
    /// were followed by frame pointers.
    pub is_missed: bool,
}

/// Passes the functions of the calling thread's stack to `take`, the innermost first, until it
/// returns false: the instruction of `from`, and for each caller one inside of its call. `cache` is
/// the thread's.
///
/// # Async-signal-safety
///
/// See the module; and that of `take`.
///
/// # Safety
///
/// `own` is empty, or the calling thread can read it: from the stack pointer on, if that lies in
/// `own`, and in the red zone below, where the interrupted code may have written.
#[inline]
pub unsafe fn walk(
    cache: Option<&ThreadCache>,
    from: CallFrame,
    own: &Range<usize>,
    mut take: impl FnMut(CallFrame) -> bool,
) -> Walk {
    if !own.contains(&from.stack) {
        return walk_unbound(cache, from, &mut take);
    }
    // SAFETY: the caller's promise, and it lies in `own`.
    unsafe { walk_own(cache, from, own, take) }
}

/// # Safety
///
/// That of [`walk`], with a stack pointer in `own`.
#[inline(always)]
unsafe fn walk_own(
    cache: Option<&ThreadCache>,
    from: CallFrame,
    own: &Range<usize>,
    take: impl FnMut(CallFrame) -> bool,
) -> Walk {
    let lowest = from.stack.saturating_sub(RED_ZONE).max(own.start);
    let last = own.end - WORD;
    let word = move |at: usize| {
        let is_there = at >= lowest && at <= last && at.is_multiple_of(WORD);
        // SAFETY: the address lies in the thread's own stack, as the caller guarantees: not below
        // the stack pointer, or where the interrupted code has written according to the table.
        is_there.then(|| unsafe { stack_word(at) })
    };
    walk_by(cache, from, word, take)
}

/// Walks a stack as [`walk`] does, into limited room, as [`frames`] has it. `count` is the number
/// of functions, also if there is no room for all.
///
/// # Async-signal-safety
///
/// See the module. Not generic: it is called where the stack is small, also in builds without
/// optimisation.
///
/// # Safety
///
/// That of [`walk`].
#[inline(never)]
pub unsafe fn walk_into(
    cache: Option<&ThreadCache>,
    from: CallFrame,
    own: &Range<usize>,
    count: &mut u32,
    into: &mut [usize],
) -> Walk {
    if own.contains(&from.stack) {
        // SAFETY: the caller's promise, and it lies in `own`.
        unsafe { walk_own_into(cache, from, own, count, into) }
    } else {
        walk_unbound(cache, from, &mut |frame| frames::take(frame.instruction, count, into))
    }
}

/// A part of its own: what it keeps on the stack is not there in the other case, which needs more.
///
/// # Safety
///
/// That of [`walk_own`].
#[inline(never)]
unsafe fn walk_own_into(
    cache: Option<&ThreadCache>,
    from: CallFrame,
    own: &Range<usize>,
    count: &mut u32,
    into: &mut [usize],
) -> Walk {
    // SAFETY: the caller's promise.
    unsafe { walk_own(cache, from, own, |frame| frames::take(frame.instruction, count, into)) }
}

/// Walks a stack as [`walk`] does, but the kernel copies its words: nothing is known about it.
///
/// # Async-signal-safety
///
/// See the module; and that of `take`. Not generic: it is called where the stack is small, also in
/// builds without optimisation.
#[cold]
#[inline(never)]
pub fn walk_unbound(
    cache: Option<&ThreadCache>,
    from: CallFrame,
    take: &mut dyn FnMut(CallFrame) -> bool,
) -> Walk {
    let mut window = [0; WINDOW];
    let (mut begins, mut filled) = (0, 0);
    let word = |at: usize| {
        if at < begins || at.checked_add(WORD)? > begins + filled {
            (begins, filled) = (at, peek::copy_some(at, &mut window));
        }
        window[..filled].get(at - begins..)?.first_chunk().map(|word| usize::from_ne_bytes(*word))
    };
    walk_by(cache, from, word, take)
}

#[inline(always)]
fn walk_by(
    cache: Option<&ThreadCache>,
    from: CallFrame,
    mut read: impl FnMut(usize) -> Option<usize>,
    mut take: impl FnMut(CallFrame) -> bool,
) -> Walk {
    // Before the map is held.
    if let Some(cache) = cache {
        cache.renew(generation());
    }
    let mut last = from;
    let by_tables = CODE.hold(|code| {
        // A copy: a closure's own variable would stay in memory.
        let mut at = from;
        let end = loop {
            if !take(at) {
                break Some(WalkEnd::Enough);
            }
            let known = cache.and_then(|cache| cache.known(at.instruction as u64));
            if let Some(caller) = known.and_then(|known| known.caller(at, &mut read)) {
                at = caller;
                continue;
            }
            match step(&code, cache, known, (at, from), &mut read) {
                Ok(caller) => at = caller,
                Err(end) => break end,
            }
        };
        last = at;
        end
    });
    match by_tables {
        Ok(Some(end)) => Walk { end, is_missed: false },
        Ok(None) => {
            note_callers(last, &mut read);
            Walk { end: follow_links(last, read, take), is_missed: true }
        }
        // Too many readers at once.
        Err(_) if !take(last) => Walk { end: WalkEnd::Enough, is_missed: true },
        Err(_) => Walk { end: follow_links(last, read, take), is_missed: true },
    }
}

/// The caller of a function whose rule the thread does not remember, or by which the walk ends; how
/// it ends, or `None` where nothing has been learned. `from` is where the walk began.
#[cold]
#[inline(never)]
fn step(
    code: &Held<'_, TableRef>,
    cache: Option<&ThreadCache>,
    known: Option<ShortRule>,
    (at, from): (CallFrame, CallFrame),
    read: &mut impl FnMut(usize) -> Option<usize>,
) -> Result<CallFrame, Option<WalkEnd>> {
    let found = known.map(ShortRule::rule).or_else(|| search(code, cache, at.instruction as u64));
    let rule = found.ok_or(None)?;
    // Code of a known object of which nothing has been learned is another function.
    let is_other = |address: usize| match search(code, cache, address as u64) {
        Some(rule) => rule != FrameRule::UNCOVERED,
        None => code.find_uncached(address as u64).is_some(),
    };
    if let Some(caller) = rule.linked_caller(at, &mut *read, is_other) {
        return Ok(caller);
    }
    match rule.caller(at, read) {
        CallerStep::Found(caller) => Ok(caller),
        CallerStep::Outermost => Err(Some(WalkEnd::Outermost)),
        CallerStep::Unknown if at != from && rule.is_first(at) => Err(Some(WalkEnd::Outermost)),
        CallerStep::Unknown if has_table(code, at.instruction as u64) => Err(Some(WalkEnd::NoRule)),
        CallerStep::Unknown => Err(Some(WalkEnd::NoTable)),
    }
}

/// Notes the function of which nothing has been learned, and those that may have called it: each
/// address of code on the stack above. Some of these are no return addresses, or of calls that have
/// returned. Their functions are learned in vain; without the others, each walk would meet the next
/// function that is not known.
#[cold]
#[inline(never)]
fn note_callers(from: CallFrame, read: &mut impl FnMut(usize) -> Option<usize>) {
    miss(from.instruction);
    let _too_many_readers = CODE.hold(|code| {
        let is_code = |address: usize| code.find_uncached(address as u64).is_some();
        let linked = (from.link != 0).then_some(from.link);
        // Code of an object that has just come: nothing can be learned before the next reading of
        // the mappings.
        if is_code(from.instruction) {
            let words = (0..REACH).map_while(|word| read(from.stack.wrapping_add(word * WORD)));
            let addresses = linked.into_iter().chain(words).filter_map(arch::code_address);
            addresses.filter(|&address| is_code(address)).for_each(|address| miss(address.wrapping_sub(1)));
        }
    });
}

/// Goes on by frame pointers. The register of the first function means nothing if it is zero: a
/// library without frame pointers uses it for other values (glibc keeps the type of cancellation
/// in it while `send` waits).
#[inline(always)]
fn follow_links(
    from: CallFrame,
    mut read: impl FnMut(usize) -> Option<usize>,
    mut take: impl FnMut(CallFrame) -> bool,
) -> WalkEnd {
    let mut last = from;
    loop {
        match FrameRule::LINK.caller(last, &mut read) {
            CallerStep::Found(caller) => last = caller,
            CallerStep::Outermost => return WalkEnd::Outermost,
            CallerStep::Unknown if last != from && FrameRule::LINK.is_first(last) => {
                return WalkEnd::Outermost;
            }
            CallerStep::Unknown => return WalkEnd::Unlearned,
        }
        if !take(last) {
            return WalkEnd::Enough;
        }
    }
}

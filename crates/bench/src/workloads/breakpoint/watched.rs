//! The words that are watched, and the ways to watch them.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_breakpoints::{Access, Watch, WatchSpec};
use dormouse_sys::perf::{Attr, Breakpoint, WatchLen};

use crate::runner::Failure;

/// The watched words, one for each register.
static WORDS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Values that are written are less.
pub(super) const NEVER_WRITTEN: u64 = u64::MAX;

/// The address of the word that [`write()`] writes.
pub(super) fn addr() -> usize {
    WORDS[0].as_ptr().addr()
}

/// Writes a watched word `times` times, each time with another value.
pub(super) fn write(times: u64) {
    for value in 1..=times {
        black_box(&WORDS[0]).store(value, Ordering::Relaxed);
    }
}

/// The request of the kernel's own watch.
pub(super) fn attr() -> Result<Attr, Failure> {
    Ok(Attr::breakpoint(Breakpoint::watch(addr(), WatchLen::Eight, Access::Write)?))
}

/// Our watch of a word, which no rate disarms.
pub(super) fn spec(word: &AtomicU64) -> WatchSpec {
    WatchSpec::new(word.as_ptr().addr(), 8, Access::Write).rate(u32::MAX).all_slots()
}

/// Our watch of the word that [`write()`] writes.
pub(super) fn first() -> WatchSpec {
    spec(&WORDS[0])
}

/// Our watches of the first `count` words.
pub(super) fn arm(count: usize) -> Result<Vec<Watch>, Failure> {
    let armed: Vec<Watch> =
        WORDS.iter().take(count).map(|word| spec(word).arm()).collect::<Result<_, _>>()?;
    if armed.iter().any(Watch::is_over) {
        return Err(Failure::wrong("a watch is over as soon as it is armed"));
    }
    Ok(armed)
}

//! Polls that runtimes announce: how many there are, and in how many of them a task was entered or
//! current. (`api` has the two calls around a poll.)

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::thread::{MAX_THREADS, ThreadBlock};

use crate::span;

/// Polls that runtimes have announced while anything was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnnouncedPolls {
    /// All polls that runtimes have announced.
    pub all: u64,
    /// Polls in which a task was entered, or around which one was current.
    pub inside: u64,
}

/// The polls of one thread, and of those that had its block before.
#[repr(align(128))]
struct Announced {
    all: AtomicU64,
    inside: AtomicU64,
}

/// By the index of the thread's block.
static ANNOUNCED: [Announced; MAX_THREADS] =
    [const { Announced { all: AtomicU64::new(0), inside: AtomicU64::new(0) } }; MAX_THREADS];

/// Counts a poll of the thread that has `block`. Only that thread calls this.
pub(super) fn count(block: &ThreadBlock, is_inside: bool) {
    let Announced { all, inside } = &ANNOUNCED[block.index()];
    all.store(all.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    // Pairs with the load in `announced_polls`.
    inside.store(inside.load(Ordering::Relaxed).wrapping_add(is_inside.into()), Ordering::Release);
}

/// The polls that runtimes have announced since the start of the process.
pub fn announced_polls() -> AnnouncedPolls {
    ANNOUNCED[..span::used().len()].iter().fold(AnnouncedPolls::default(), |sum, announced| {
        // Pairs with the store in `count`: a thread that sees a poll inside sees it among all.
        let inside = announced.inside.load(Ordering::Acquire);
        let all = announced.all.load(Ordering::Relaxed);
        AnnouncedPolls { all: sum.all.wrapping_add(all), inside: sum.inside.wrapping_add(inside) }
    })
}

/// In a fork child: its polls are its own.
pub(super) fn begin_in_child() {
    // If no runtime announces polls, no page of the table is written, in no child either.
    for announced in
        ANNOUNCED[..span::used().len()].iter().filter(|announced| announced.all.load(Ordering::Relaxed) > 0)
    {
        announced.all.store(0, Ordering::Relaxed);
        announced.inside.store(0, Ordering::Relaxed);
    }
}

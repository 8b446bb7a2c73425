//! The spans of all threads, by the index of the thread's block.

use std::sync::atomic::{AtomicUsize, Ordering};

use dormouse_sys::thread::{self, MAX_THREADS, ThreadBlock};

use super::seqlock::Span;

pub(crate) static SPANS: [Span; MAX_THREADS] = [const { Span::new() }; MAX_THREADS];

/// One past the highest index of a span that any thread has had.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The span of the thread that has `block`. Only that thread calls this.
pub(crate) fn own(block: &ThreadBlock) -> &'static Span {
    USED.fetch_max(block.index() + 1, Ordering::Relaxed);
    &SPANS[block.index()]
}

/// The threads that are, with their spans.
pub(crate) fn live() -> impl Iterator<Item = (&'static ThreadBlock, &'static Span)> {
    thread::live().map(|block| (block, &SPANS[block.index()]))
}

/// All spans that threads have or had: in a fork child, those of the parent's threads.
pub(crate) fn used() -> &'static [Span] {
    &SPANS[..USED.load(Ordering::Relaxed)]
}

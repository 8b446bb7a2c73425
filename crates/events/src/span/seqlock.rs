//! The span of a thread, where other threads can read it: which context the thread charges, and
//! since which readings.
//!
//! A *span* is the time for which a thread charges the same context. The thread, its *owner*,
//! begins and ends spans without a barrier or a locked instruction, around an odd sequence number
//! (a seqlock). Two others use the span:
//!
//! - A reader takes a [`Snapshot`], reads the thread's counters from outside, and adds the delta
//!   since the baseline.
//! - A change of what is counted *flushes* the span: it reads the counters from outside, charges
//!   the delta to the context in the owner's stead, and [rebases](Span::rebase) the span: it stores
//!   a new [`Baseline`] from which the owner is to charge the rest.
//!
//! The number is more than that of a [`Sequence`](dormouse_sys::sync::Sequence): it names the span,
//! so that a rebase finds out whether it is still the same one, and says whether the span runs.
//!
//! So two threads may want to charge a delta, the owner and the flushing thread, and exactly one
//! must. One word, `rebased`, decides: either a flush increments the count in it, or the owner sets
//! [`CLAIMED`] in it, whichever comes first. Touching that word at each end of a span would cost
//! the owner a locked instruction. The generation avoids that: by invariant 2, an owner that finds
//! its span's generation still current need not look at the word.
//!
//! # Invariants
//!
//! 1. `sequence` is odd while the owner edits the span. Otherwise it is the number of the span, and
//!    no other span of this thread ever has that number. A signal handler may begin and end other
//!    spans between any two instructions of the owner, but not while the number is odd.
//! 2. Each delta is charged once. A change of what is counted moves the generation, *then* has
//!    every thread pass a barrier, *then* reads the spans. An owner stores the odd number, *then*
//!    passes its (free) side of that barrier, *then* loads the generation. So either the change
//!    finds the odd number and waits, or the owner finds the new generation and claims.
//! 3. `rebased` holds the number of a span, how often that span was rebased, and whether its owner
//!    has claimed the rest. A span has room for two rebases; the one in force is chosen by the
//!    parity of that count, and the other is written before `rebased` moves. One thread rebases at
//!    a time (the lock of changes in `control`).
//! 4. A span whose number lacks [`RUNS`] is idle: it charges nothing. Its other words wait for the
//!    thread's next task, which mostly belongs to the same context and need not write them.
//! 5. A span that no thread has [arrived](Span::arrive) at is all zeros, so that the table of spans
//!    takes no room in the binary and no memory. It is idle, so its event sets are never loaded.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

use super::baseline::{self, ALL, Baseline, BaselineCells};
use super::snapshot::{Pending, Shortcut, Snapshot};
use crate::event_set::{EMPTY, EventSet, MAX_COUNTERS, Readings};
use crate::generation::Generation;
use crate::primitive::{AtomicU32, AtomicU64, const_unless_loom, fence, light_barrier, zeros};

/// In the number of a span: its owner is editing it.
const EDITING: u64 = 1;
/// In the number of a span: it charges a context. Without this bit it is idle.
const RUNS: u64 = 2;
/// From one number to the next.
const NEXT: u64 = 4;

/// How often a snapshot looks again while the owner edits the span.
#[cfg(not(all(test, loom)))]
const PATIENCE: usize = 1000;

/// In `rebased`: the owner has claimed the rest of the span.
const CLAIMED: u64 = 1;
/// In `rebased`: one rebase more.
const ONCE: u64 = 2;
/// In `rebased`: the number of the span lies above.
const NUMBER_SHIFT: u32 = 8;

/// In `context`: the task is customized.
const CUSTOMIZED: u32 = 1 << 31;
/// Whether customized tasks may count other events than their contexts.
const CHANGES: bool = cfg!(feature = "origin");
/// Numbers of contexts are below.
pub(crate) const MAX_CONTEXTS: u32 = CUSTOMIZED;

/// The span of one thread.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Span {
    sequence: AtomicU64,
    /// The last number that `sequence` had outside of edits. Only the owner uses it.
    number: AtomicU64,
    /// The number of the context, with [`CUSTOMIZED`].
    context: AtomicU32,
    /// The context that `entries`, `scopes` and `ns` below are pending for: what its tasks counted
    /// in spans that are over, and that its ledger lacks. They are charged when a task of another
    /// context comes, so polls of one context in a row take no locked instruction.
    pending_for: AtomicU32,
    entries: AtomicU64,
    scopes: AtomicU64,
    ns: AtomicU64,
    /// The generation that the owner saw at the beginning.
    generation: AtomicU64,
    rebased: AtomicU64,
    /// The events that a customized task counts beside those of its context, and those that it does
    /// not count.
    added: AtomicU64,
    removed: AtomicU64,
    own: BaselineCells,
    rebases: [BaselineCells; 2],
    /// By rebase: [`Baseline::begun`].
    begun: [[AtomicU64; MAX_COUNTERS]; 2],
}

/// For the owner.
impl Span {
    const_unless_loom! {
        pub(crate) const fn new() -> Self {
            Self {
                sequence: AtomicU64::new(0),
                number: AtomicU64::new(0),
                context: AtomicU32::new(0),
                pending_for: AtomicU32::new(0),
                entries: AtomicU64::new(0),
                scopes: AtomicU64::new(0),
                ns: AtomicU64::new(0),
                generation: AtomicU64::new(Generation::ASLEEP.0),
                rebased: AtomicU64::new(0),
                added: AtomicU64::new(0),
                removed: AtomicU64::new(0),
                own: BaselineCells::new(),
                rebases: [BaselineCells::new(), BaselineCells::new()],
                begun: [zeros!(), zeros!()],
            }
        }
    }

    /// A thread comes to the span. The last thread that had it may have ended in the middle of
    /// anything, or in the parent of a fork.
    pub(crate) fn arrive(&self) {
        let number = self.begin();
        for baseline in [&self.own, &self.rebases[0], &self.rebases[1]] {
            if baseline.set.is_unset() {
                baseline.set.store(&EMPTY);
            }
        }
        self.take_pending(0);
        self.set_context(0);
        self.set_asleep();
        self.end_idle(number);
    }

    /// Whether the thread is in the middle of an edit: then the caller is a signal handler over
    /// that edit.
    #[inline]
    pub(crate) fn is_in_edit(&self) -> bool {
        self.sequence.load(Relaxed) & EDITING != 0
    }

    /// Whether the span charges nothing (invariant 4).
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.sequence.load(Relaxed) & RUNS == 0
    }

    /// Whether a plain task of context number `context` could run in this span unchanged.
    #[inline]
    pub(crate) fn suits(&self, context: u32, generation: Generation) -> bool {
        self.generation.load(Relaxed) == generation.0
            && self.context.load(Relaxed) == context
            && self.sequence.load(Relaxed) & (RUNS | EDITING) == RUNS
    }

    /// One more task became current.
    #[inline]
    pub(crate) fn count_entry(&self) {
        // One writer. Release: the load in `pending` (Acquire) finds no entry without its scope.
        self.entries.store(self.entries.load(Relaxed).wrapping_add(1), Release);
    }

    /// The task that becomes current next does so in a scope.
    #[inline]
    pub(crate) fn count_scope(&self) {
        // One writer.
        self.scopes.store(self.scopes.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Begins an edit, which ends the span; returns the span's number.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        let mut number = self.number.load(Relaxed);
        self.sequence.store(number | EDITING, Relaxed);
        compiler_fence(SeqCst);
        // From here on handlers leave the span alone. Between the load and the store, though, a
        // handler may have had other spans. Then `number` is that of a span that is over, and
        // the odd number that was just stored has been in `sequence` before, in the handler's
        // edit. A snapshot that found it there, and finds it here again, would take two edits
        // for one; so the current number replaces it. (In the moment until it does, `snapshot` may
        // be wrong by the pending counts that the handler charged.)
        let now = self.number.load(Relaxed);
        if now != number {
            number = now;
            self.sequence.store(number | EDITING, Relaxed);
        }
        // Pairs with the acquire fence in `is_still`: a thread that sees a word of the new span
        // sees the odd number.
        fence(Release);
        // Pairs with the heavy barrier in `control` (invariant 2).
        light_barrier();
        number
    }

    /// Takes back the edit that [`Span::begin`] began at `number`: the caller has changed nothing.
    #[inline]
    pub(crate) fn cancel(&self, number: u64) {
        // Pairs with the first load of `try_snapshot`.
        self.sequence.store(number, Release);
    }

    /// How the owner finds what the span `number` adds up to.
    #[inline]
    pub(crate) fn shortcut(&self, number: u64, generation: Generation) -> Shortcut {
        if self.generation.load(Relaxed) != generation.0 {
            return Shortcut::FullRead;
        }
        let set = self.own.set.load();
        if number & RUNS == 0 || set.is_empty() {
            Shortcut::Empty
        } else if set.is_clock() {
            Shortcut::Clock { since: self.first() }
        } else {
            Shortcut::FullRead
        }
    }

    /// The baseline's reading in the first slot.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.own.readings[0].load(Relaxed)
    }

    /// Adds CPU time to the pending counts.
    #[inline]
    pub(crate) fn add(&self, ns: u64) {
        self.ns.store(self.ns.load(Relaxed).wrapping_add(ns), Relaxed);
    }

    /// Whether what is pending is for context number `context`.
    #[inline]
    pub(crate) fn is_pending_for(&self, context: u32) -> bool {
        self.pending_for.load(Relaxed) == context
    }

    /// Takes what is pending, for the caller to charge. Later counts are pending for `context`.
    #[inline]
    pub(crate) fn take_pending(&self, context: u32) -> Pending {
        let pending = self.pending();
        self.entries.store(0, Relaxed);
        self.scopes.store(0, Relaxed);
        self.ns.store(0, Relaxed);
        // Pairs with the load in `pending`: a thread that sees the new context does not see the
        // counts of the last one.
        self.pending_for.store(context, Release);
        pending
    }

    #[inline]
    fn pending(&self) -> Pending {
        // Pairs with the store in `take_pending`, as the next one does with that in `count_entry`.
        let context = self.pending_for.load(Acquire);
        let (entries, scopes) = (self.entries.load(Acquire), self.scopes.load(Relaxed));
        Pending { context, entries, scopes, ns: self.ns.load(Relaxed) }
    }

    /// The baseline from which the owner, which has just seen `generation`, charges the rest of
    /// span `number`. From then on no other thread charges it.
    #[inline]
    pub(crate) fn baseline(&self, number: u64, generation: Generation) -> Baseline {
        if number & RUNS == 0 {
            return Baseline::NOTHING;
        }
        if self.generation.load(Relaxed) == generation.0 {
            return self.own.load(self.is_changed());
        }
        self.claim(number)
    }

    /// Invariant 2, where the generation has moved: the owner claims the rest, or takes over from a
    /// flush that was faster.
    #[cold]
    fn claim(&self, number: u64) -> Baseline {
        // Acquire and release pair with the exchange in `rebase`.
        let claimed = self.rebased.fetch_update(AcqRel, Acquire, |rebased| {
            let rebased = if rebased >> NUMBER_SHIFT == number { rebased } else { number << NUMBER_SHIFT };
            Some(rebased | CLAIMED)
        });
        let (Ok(rebased) | Err(rebased)) = claimed;
        self.baseline_by(rebased, number, self.is_changed(), self.began_asleep())
    }

    /// The baseline of the span `number` if `rebased` has this value.
    fn baseline_by(&self, rebased: u64, number: u64, is_changed: bool, began_asleep: bool) -> Baseline {
        if rebased >> NUMBER_SHIFT == number && rebased & !(number << NUMBER_SHIFT) != 0 {
            let rebase = (rebased / ONCE % 2) as usize;
            let baseline = self.rebases[rebase].load(is_changed);
            let begun = Some(baseline::load(&self.begun[rebase], baseline.set));
            return Baseline { begun, ..baseline };
        }
        if began_asleep { Baseline::NOTHING } else { self.own.load(is_changed) }
    }

    /// Whether the task may count other events than its context.
    #[inline]
    fn is_changed(&self) -> bool {
        CHANGES && self.context.load(Relaxed) & CUSTOMIZED != 0
    }

    /// The events of the span that are charged to its context, by index.
    #[inline]
    pub(crate) fn shared(&self) -> u64 {
        if self.is_changed() { self.own.shared.load(Relaxed) } else { u64::MAX }
    }

    /// The span, of a customized task, shares the events of `mask` with its context.
    #[cold]
    pub(crate) fn set_shared(&self, mask: u64) {
        if CHANGES {
            self.own.shared.store(mask, Relaxed);
        }
    }

    /// The span charges the events of `set` from `readings` on.
    #[inline]
    pub(crate) fn set_baseline(&self, generation: Generation, set: &'static EventSet, readings: &Readings) {
        self.generation.store(generation.0, Relaxed);
        self.own.store(set, ALL, readings);
    }

    /// Does what [`Span::set_baseline`] does, for a set of at most one slot and without a change of
    /// the generation.
    #[inline]
    pub(crate) fn set_one(&self, set: &'static EventSet, reading: u64) {
        // `known` has been `ALL` since `set_baseline`.
        self.set_first(reading);
        self.own.set.store(set);
    }

    /// Does what [`Span::set_one`] does, without a change of the set.
    #[inline]
    pub(crate) fn set_first(&self, reading: u64) {
        self.own.readings[0].store(reading, Relaxed);
    }

    /// Whether nothing was counted anywhere when the span began.
    #[inline]
    pub(crate) fn began_asleep(&self) -> bool {
        self.generation.load(Relaxed) == Generation::ASLEEP.0
    }

    /// Whether the span `number`, which its owner ends, has nothing to charge: it began asleep, and
    /// was not rebased.
    #[inline]
    pub(crate) fn has_nothing(&self, number: u64) -> bool {
        self.began_asleep() && self.rebased.load(Relaxed) >> NUMBER_SHIFT != number
    }

    /// Nothing is counted anywhere as the span begins.
    #[inline]
    pub(crate) fn set_asleep(&self) {
        self.generation.store(Generation::ASLEEP.0, Relaxed);
    }

    /// The span is for a plain task of context number `context`.
    #[inline]
    pub(crate) fn set_context(&self, context: u32) {
        self.context.store(context, Relaxed);
    }

    /// The span is for a customized task, which counts the events of `added` beside those of its
    /// context, and not those of `removed`.
    #[cold]
    pub(crate) fn set_customized(&self, context: u32, (added, removed): (u64, u64)) {
        self.context.store(context | CUSTOMIZED, Relaxed);
        if CHANGES {
            self.added.store(added, Relaxed);
            self.removed.store(removed, Relaxed);
        }
    }

    /// Ends the edit that [`Span::begin`] began at `number`: the next span runs.
    #[inline]
    pub(crate) fn end(&self, number: u64) {
        self.end_as((number | RUNS) + NEXT);
    }

    /// Ends the edit as [`Span::end`] does; the next span is idle.
    #[inline]
    pub(crate) fn end_idle(&self, number: u64) {
        self.end_as((number & !RUNS) + NEXT);
    }

    /// Ends the edit as [`Span::end`] does; the next span runs if the last one did.
    pub(crate) fn end_alike(&self, number: u64) {
        self.end_as(number + NEXT);
    }

    #[inline]
    fn end_as(&self, number: u64) {
        self.number.store(number, Relaxed);
        compiler_fence(SeqCst);
        // Pairs with the first load of `try_snapshot`.
        self.sequence.store(number, Release);
    }
}

/// For all others.
impl Span {
    /// A snapshot; `None` while the owner edits the span.
    pub(crate) fn try_snapshot(&self) -> Option<Snapshot> {
        // Pairs with the stores in `end_as` and `cancel`.
        let number = self.sequence.load(Acquire);
        if number & EDITING != 0 {
            return None;
        }
        // Pairs with the exchange in `rebase`: a thread that sees the count sees the rebase.
        let rebased = self.rebased.load(Acquire);
        let generation = Generation(self.generation.load(Relaxed));
        let runs = number & RUNS != 0;
        let context = if runs { self.context.load(Relaxed) } else { 0 };
        let is_changed = CHANGES && context & CUSTOMIZED != 0;
        let baseline = if runs {
            self.baseline_by(rebased, number, is_changed, generation == Generation::ASLEEP)
        } else {
            Baseline::NOTHING
        };
        let (added, removed) =
            if is_changed { (self.added.load(Relaxed), self.removed.load(Relaxed)) } else { (0, 0) };
        let (context, pending) = (context & !CUSTOMIZED, self.pending());
        let seen = Snapshot { number, rebased, context, added, removed, pending, generation, baseline };
        self.is_still(&seen).then_some(seen)
    }

    /// Calls [`Span::try_snapshot`] until it succeeds, because an edit takes nanoseconds. But it
    /// does not wait for an owner that was descheduled in the middle of an edit: then it returns
    /// only the pending counts.
    #[cfg(not(all(test, loom)))]
    pub(crate) fn snapshot(&self) -> Snapshot {
        for _ in 0..PATIENCE {
            if let Some(seen) = self.try_snapshot() {
                return seen;
            }
            std::hint::spin_loop();
        }
        // The owner takes the pending counts once in an edit, so within one odd number they belong
        // to the context that goes with them. The load pairs as in `try_snapshot`.
        let number = self.sequence.load(Acquire);
        let pending = self.pending();
        // As in `is_still`.
        fence(Acquire);
        let is_one = self.sequence.load(Relaxed) == number;
        Snapshot {
            number,
            rebased: 0,
            context: 0,
            added: 0,
            removed: 0,
            pending: if is_one { pending } else { Pending::default() },
            generation: Generation::ASLEEP,
            baseline: Baseline::NOTHING,
        }
    }

    /// Whether the span is still what was `seen`: then all that the caller has read in between
    /// belongs to it.
    pub(crate) fn is_still(&self, seen: &Snapshot) -> bool {
        // Pairs with the release fence in `begin`, and keeps the caller's loads before these.
        fence(Acquire);
        // An edit is not: the owner may charge the pending counts at any moment.
        self.sequence.load(Relaxed) == seen.number & !EDITING && self.rebased.load(Relaxed) == seen.rebased
    }

    /// Takes the delta up to `baseline` of the span that was `seen` from its owner, which charges
    /// the rest from `baseline`. False if the owner was faster. One thread at a time calls this
    /// (invariant 3).
    pub(crate) fn rebase(&self, seen: &Snapshot, baseline: &Baseline) -> bool {
        let first = seen.number << NUMBER_SHIFT;
        let before = if seen.rebased >> NUMBER_SHIFT == seen.number { seen.rebased } else { first };
        if before & CLAIMED != 0 {
            return false;
        }
        // The count wraps within its bits. Only its parity matters, and that it is neither 0 nor
        // what it was.
        let count = match (before + ONCE) & ((1 << NUMBER_SHIFT) - 1) {
            0 => 2 * ONCE,
            count => count,
        };
        let rebase = (count / ONCE % 2) as usize;
        for (word, begun) in self.begun[rebase].iter().zip(baseline.begun.unwrap_or(baseline.readings)) {
            word.store(begun, Relaxed);
        }
        let cells = &self.rebases[rebase];
        cells.shared.store(baseline.shared, Relaxed);
        cells.store(baseline.set, baseline.known, &baseline.readings);
        // Release pairs with the loads in `claim` and `try_snapshot`. Acquire pairs with the claim
        // of an earlier span: its owner read this rebase before we wrote it.
        self.rebased.compare_exchange(seen.rebased, first | count, AcqRel, Acquire).is_ok()
    }
}

#[cfg(all(test, loom))]
mod interleavings;

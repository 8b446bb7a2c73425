//! The end of a span and the beginning of the next: the thread charges the first and takes the
//! readings for the second.
//!
//! Where task-clock is the only event, as for most polls, that is one reading of the clock and some
//! stores. All other work is in separate functions.
//!
//! # Safety
//!
//! The unsafe code follows the customization of the span's task, by invariant 3 of
//! [`super::stack`].
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use dormouse_clock::overhead::TASKS;
use dormouse_keys::unlikely;

use super::stack::{Here, Stack};
use super::state::State;
use super::task::Customization;
use super::token::MAX_DEPTH;
use crate::event_set::{CLOCK, EventSet, Readings};
use crate::generation::{Generation, SWITCH};
use crate::ledger::Context;
use crate::span::{Delta, Shortcut, Span};

/// The effect of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switched {
    /// Nothing is counted for these tasks, or the thread cannot count: it has no block, or the
    /// caller is a signal handler that interrupted a switch of the thread.
    Asleep,
    /// The tasks were equivalent: counting went on, and no counter was read.
    Kept,
    /// Counters were read: the previous task was charged, or counting began.
    Read,
}

/// An edit of the thread's span, in the middle.
#[derive(Clone, Copy)]
struct Edit {
    span: &'static Span,
    /// The number of the span that ends.
    number: u64,
    /// How many frames its task was inside of.
    depth: usize,
    generation: Generation,
}

impl Edit {
    /// Whether nothing was counted during the span that ends, and nothing is counted now. The
    /// thread may have run the hook just before the key woke it, so the generation is checked, too.
    #[inline]
    fn has_nothing_to_do(self) -> bool {
        !(unlikely!(SWITCH) || self.generation.counts()) && self.span.has_nothing(self.number)
    }

    #[inline]
    fn shortcut(self) -> Shortcut {
        self.span.shortcut(self.number, self.generation)
    }
}

impl Stack {
    #[inline]
    fn begin(&self, here: Here, depth: usize) -> Edit {
        let number = here.span.begin();
        self.state.set(State::Closed);
        // The generation is loaded before the context's set. A change of what is counted stores the
        // sets first and moves the generation then. So this span may have the new set with the old
        // generation: then the change flushes it, which does no harm. In the other order it could
        // have the old set with the new generation: the change would take it for up to date, and
        // the thread would count the old events until its next switch.
        Edit { span: here.span, number, depth, generation: Generation::current() }
    }

    /// Case 1(b): charges the span, whose task was inside of `depth` frames, and begins one for
    /// `context`. Of the frames `after` are left.
    ///
    /// Inlined: while nothing is counted, the whole edit takes less than a call with its registers.
    #[inline(always)]
    pub(super) fn charge_and_begin(
        &self,
        here: Here,
        depth: usize,
        after: usize,
        context: &'static Context,
        own: *const Customization,
    ) -> Switched {
        let edit = self.begin(here, depth);
        if edit.has_nothing_to_do() {
            self.end_edit(edit, after, context, own);
            return Switched::Asleep;
        }
        self.read_and_begin(edit, after, context, own)
    }

    /// The last part of [`Stack::charge_and_begin`]: the span is that of `context` now.
    #[inline(always)]
    fn end_edit(&self, edit: Edit, after: usize, context: &'static Context, own: *const Customization) {
        // SAFETY: invariant 3: `own` is that of a frame, or of the task that the caller has.
        match unsafe { own.as_ref() } {
            Some(own) => edit.span.set_customized(context.id(), own.changes.masks()),
            None => edit.span.set_context(context.id()),
        }
        self.charged.set(Some(context));
        self.charged_own.set(own);
        self.truncate(edit.depth, after);
        edit.span.end(edit.number);
    }

    #[inline(never)]
    fn read_and_begin(
        &self,
        edit: Edit,
        after: usize,
        context: &'static Context,
        own: *const Customization,
    ) -> Switched {
        let _timed = TASKS.begin();
        // SAFETY: invariant 3: `own` is that of a frame, or of the task that the caller has.
        let customized = unsafe { own.as_ref() };
        let Edit { span, generation, .. } = edit;
        let shared = context.set();
        let set = customized.map_or(shared, |own| own.set(shared));
        let did = match edit.shortcut() {
            shortcut @ (Shortcut::Empty | Shortcut::Clock { .. }) if set.is_clock() || set.is_empty() => {
                self.begin_by_clock(edit, shortcut, set)
            }
            _ => self.begin_by_reading(edit, set),
        };
        if !span.is_pending_for(context.id()) {
            self.charge_pending(span, Some(context));
        }
        if customized.is_some() {
            span.set_shared(shared.mask());
        }
        if !generation.counts() {
            span.set_asleep();
        }
        self.end_edit(edit, after, context, own);
        did
    }

    /// Case 2: charges the span, whose task was inside of `depth` frames. No frame is left, and no
    /// task.
    #[inline]
    pub(super) fn charge_and_end(&self, here: Here, depth: usize) -> Switched {
        let edit = self.begin(here, depth);
        let Edit { span, number, generation, .. } = edit;
        let asleep = edit.has_nothing_to_do();
        let shortcut = if asleep { Shortcut::Empty } else { edit.shortcut() };
        let did = match shortcut {
            Shortcut::Empty => Switched::Asleep,
            Shortcut::Clock { since } => {
                let _timed = TASKS.begin();
                self.charge_clock(edit, since, dormouse_clock::thread_cpu_ns_end());
                Switched::Read
            }
            Shortcut::FullRead => {
                let _timed = TASKS.begin();
                let mut now = Readings::default();
                let set = self.charge_by_reading(edit, &mut now);
                if self.scheduled.get().is_some() {
                    // The set stays in, and a span of no generation has the next task come by
                    // `begin_by_reading`, which takes it out.
                    span.set_asleep();
                }
                if set.is_empty() { Switched::Asleep } else { Switched::Read }
            }
        };
        let kept = self.charged.get().filter(|charged| self.can_keep(charged));
        self.charged_own.set(ptr::null());
        self.truncate(depth, 0);
        // Before the end of the edit: a change of what is counted that finds the span asleep reads
        // the block to see whether there is a task. Not before the frames go: a handler in between
        // would show the topmost frame's task again.
        here.block.set_task(0);
        if let Some(context) = kept
            && asleep
        {
            // 2(a): the span of no task is also that of the next one.
            self.keep(context, State::Open(generation));
            span.end(number);
            return did;
        }
        if let Some(context) = kept
            && matches!(shortcut, Shortcut::Clock { .. })
            && !self.lazy.get()
        {
            // 2(c). (A lazy thread gets here when it parks; at the end of its next poll it wants
            // 2(b).)
            self.keep(context, State::Idle(generation));
        }
        if !generation.counts() {
            span.set_asleep();
        }
        span.end_idle(number);
        did
    }

    /// Case 2(b): whether a lazy thread without a task goes on to charge the context of its last
    /// task.
    pub(super) fn end_lazily(&self, here: Here) -> bool {
        let Some(charged) = self.charged.get() else { return false };
        let generation = Generation::current();
        if !generation.counts() || charged.is_exact() || !self.can_keep(charged) {
            return false;
        }
        if !here.span.suits(charged.id(), generation) {
            self.charge_and_begin(here, 1, 1, charged, ptr::null());
        }
        self.keep(charged, State::Open(generation));
        compiler_fence(Ordering::SeqCst);
        if !here.span.suits(charged.id(), generation) {
            // A handler in between has begun a span for another task.
            self.state.set(State::Closed);
        }
        true
    }

    /// Charges the pending counts. Later counts are pending for `next`.
    #[inline(never)]
    pub(super) fn charge_pending(&self, span: &Span, next: Option<&'static Context>) {
        let pending = span.take_pending(next.map_or(0, Context::id));
        if let Some(context) = self.pending_for.replace(next) {
            context.charge_pending(self.start.get(), &pending);
        }
    }

    /// Where both spans count task-clock alone, or nothing.
    #[inline(always)]
    fn begin_by_clock(&self, edit: Edit, shortcut: Shortcut, set: &'static EventSet) -> Switched {
        let span = edit.span;
        if shortcut == Shortcut::Empty && set.is_empty() {
            span.set_one(set, 0);
            return Switched::Asleep;
        }
        let now = if let Shortcut::Clock { since } = shortcut {
            let now = dormouse_clock::thread_cpu_ns_end();
            self.charge_clock(edit, since, now);
            now
        } else {
            dormouse_clock::thread_cpu_ns_begin()
        };
        span.set_one(set, now);
        Switched::Read
    }

    #[inline]
    fn charge_clock(&self, Edit { span, depth, .. }: Edit, since: u64, now: u64) {
        // Saturating: a fork child's clock begins again.
        let n = now.saturating_sub(since);
        let is_pending = self.charged.get().is_some_and(|context| span.is_pending_for(context.id()));
        if is_pending && depth <= 1 && self.charged_own.get().is_null() {
            span.add(n);
        } else {
            let is_shared = span.shared() & 1 << CLOCK != 0;
            self.charge(depth, std::iter::once(Delta { index: CLOCK, n, whole: n, is_shared }));
        }
    }

    /// Every way from and to a set that is scheduled leads here: it is not task-clock alone.
    #[inline(never)]
    fn begin_by_reading(&self, edit: Edit, set: &'static EventSet) -> Switched {
        if let Some(last) = self.scheduled.get()
            && !ptr::eq(last, set)
        {
            self.sched_out();
        }
        let mut readings = Readings::default();
        let last = self.charge_by_reading(edit, &mut readings);
        // One reading ends the last span and begins the next, if both count the same events.
        if !ptr::eq(set, last) {
            set.read(&mut readings);
        }
        edit.span.set_baseline(edit.generation, set, &readings);
        if set.is_scheduled() {
            self.scheduled.set(Some(set));
            // Also if it is in: its events may have ended and begun again since.
            set.sched_in();
        }
        if set.is_empty() && last.is_empty() { Switched::Asleep } else { Switched::Read }
    }

    /// The thread leaves the set that is scheduled on it.
    #[cold]
    pub(super) fn sched_out(&self) {
        if let Some(last) = self.scheduled.take() {
            last.sched_out();
        }
    }

    /// Charges the span up to `readings`, which are taken now; returns its set.
    #[inline(never)]
    fn charge_by_reading(&self, edit: Edit, readings: &mut Readings) -> &'static EventSet {
        let baseline = edit.span.baseline(edit.number, edit.generation);
        if !baseline.set.is_empty() {
            baseline.set.read(readings);
            self.charge(edit.depth, baseline.deltas(readings, u32::MAX));
        }
        baseline.set
    }

    #[inline]
    fn charge(&self, depth: usize, deltas: impl Iterator<Item = Delta>) {
        let Some(charged) = self.charged.get() else { return };
        // SAFETY: invariant 3: a frame owns it until the frame goes, which is after the end of
        // this span.
        let own = unsafe { self.charged_own.get().as_ref() };
        for Delta { index, n, whole, is_shared } in deltas {
            if is_shared {
                charged.charge(self.start.get(), index, n);
            }
            if let Some(own) = own {
                own.charge(index, whole);
            }
            if depth > 1 && is_shared {
                self.charge_around(charged, depth, index, whole);
            }
        }
    }

    /// Charges the contexts around `charged`: each once, however many frames it has.
    #[cold]
    fn charge_around(&self, charged: &'static Context, depth: usize, index: usize, n: u64) {
        let frames = &self.frames[..depth.min(MAX_DEPTH)];
        for (place, frame) in frames.iter().enumerate() {
            let Some(context) = frame.context.get() else { continue };
            let is = |other: &Context| ptr::eq(other, context);
            if !is(charged) && !frames[..place].iter().any(|below| below.context.get().is_some_and(is)) {
                context.charge_nested(index, n);
            }
        }
    }
}

//! The trace to which one task belongs, and where that came from.
//!
//! A request's own span is better than its caller's, and better than those of its parts, which
//! begin later. A connection has spans of many traces, one after the other, and belongs to none.
//!
//! | the task has | the service sets one | a span becomes current | likewise, outside of any, of another trace | a caller's is known |
//! |---|---|---|---|---|
//! | none, or a caller's | set | own | own | a caller's |
//! | own | set | own, the first | several | own |
//! | several | set | several | several | several |
//! | set | set, the last | set | set | set |
//!
//! # Invariants
//!
//! 1. Only the task's thread writes, within the slot's sequence.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::trace_context::TraceContext;

/// How a task has its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Origin {
    /// There is none.
    None = 0,
    /// The caller's, from a request's header; or the task began in another one that has it.
    Caller = 1,
    /// A span of this process was current in it.
    Own = 2,
    /// Spans of several traces were current, none inside of another: it has none.
    Several = 3,
    /// The service has set it.
    Set = 4,
}

/// A span that becomes current, or that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveSpan {
    /// The span's ids: trace and span.
    pub context: TraceContext,
    /// Whether the span belongs to another process, the caller.
    pub is_remote: bool,
}

/// The words of a slot; all zeros: it has none.
#[derive(Debug, Default)]
pub(crate) struct Traced {
    ids: [AtomicU64; 3],
    /// [`Origin`], and [`SAMPLED`].
    origin: AtomicU32,
}

const SAMPLED: u32 = 1 << 8;

impl Traced {
    fn origin(&self) -> Origin {
        match self.origin.load(Ordering::Relaxed) & 0xff {
            1 => Origin::Caller,
            2 => Origin::Own,
            3 => Origin::Several,
            4 => Origin::Set,
            _ => Origin::None,
        }
    }

    /// The trace, if it has one.
    pub(crate) fn get(&self) -> Option<TraceContext> {
        let origin = self.origin.load(Ordering::Relaxed);
        if origin & 0xff == Origin::None as u32 {
            return None;
        }
        let ids = self.ids.each_ref().map(|id| id.load(Ordering::Relaxed));
        TraceContext::from_words(ids, origin & SAMPLED != 0)
    }

    /// The trace, if it is one that the task's parts have, too. A span of the tracer's is current
    /// for a part, or it is not the part's.
    pub(crate) fn inherited(&self) -> Option<TraceContext> {
        self.get().filter(|_| matches!(self.origin(), Origin::Caller | Origin::Set))
    }

    /// The task begins.
    #[inline]
    pub(crate) fn clear(&self) {
        self.origin.store(Origin::None as u32, Ordering::Relaxed);
    }

    #[cold]
    fn put(&self, of: Option<TraceContext>, origin: Origin) {
        for (to, from) in self.ids.iter().zip(of.map_or([0; 3], TraceContext::words)) {
            to.store(from, Ordering::Relaxed);
        }
        let sampled = if of.is_some_and(TraceContext::is_sampled) { SAMPLED } else { 0 };
        self.origin.store(origin as u32 | sampled, Ordering::Relaxed);
    }

    /// The service sets it.
    pub(crate) fn set(&self, of: TraceContext) {
        self.put(Some(of), Origin::Set);
    }

    /// A caller's is known. Whether the task has it from now on.
    pub(crate) fn call(&self, of: TraceContext) -> bool {
        let is_taken = matches!(self.origin(), Origin::None | Origin::Caller);
        if is_taken {
            self.put(Some(of), Origin::Caller);
        }
        is_taken
    }

    /// A span becomes current in the task. `is_nested`: inside of another. Whether the task has its
    /// trace from now on, and had another span.
    pub(crate) fn enter(&self, span: ActiveSpan, is_nested: bool) -> bool {
        match self.origin() {
            _ if span.is_remote => return self.call(span.context),
            Origin::None | Origin::Caller => {
                self.put(Some(span.context), Origin::Own);
                return true;
            }
            Origin::Own if !is_nested && !self.is_of(span.context) => self.put(None, Origin::Several),
            Origin::Own | Origin::Several | Origin::Set => {}
        }
        false
    }

    fn is_of(&self, other: TraceContext) -> bool {
        self.get().is_some_and(|own| own.trace_id() == other.trace_id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(trace: u8, span: u8) -> TraceContext {
        TraceContext::new([trace; 16], [span; 8]).unwrap()
    }

    fn span(trace: u8, span: u8) -> ActiveSpan {
        ActiveSpan { context: context(trace, span), is_remote: false }
    }

    /// The state of a task after these events.
    fn after(events: &[&dyn Fn(&Traced)]) -> (Origin, Option<TraceContext>) {
        let traced = Traced { ids: Default::default(), origin: AtomicU32::new(0) };
        for event in events {
            event(&traced);
        }
        (traced.origin(), traced.get())
    }

    #[test]
    fn a_task_has_the_trace_of_its_table() {
        let set = |traced: &Traced| traced.set(context(1, 10));
        let set_again = |traced: &Traced| traced.set(context(1, 11));
        let called = |traced: &Traced| _ = traced.call(context(2, 20));
        let called_again = |traced: &Traced| _ = traced.call(context(2, 21));
        let enter = |traced: &Traced, span, is_nested| {
            let before = traced.get();
            let has_changed = traced.enter(span, is_nested);
            assert!(!has_changed || traced.get() == Some(span.context), "{before:?}");
        };
        let own = |traced: &Traced| enter(traced, span(3, 30), false);
        let child = |traced: &Traced| enter(traced, span(3, 31), true);
        let linked = |traced: &Traced| enter(traced, span(4, 40), true);
        let other = |traced: &Traced| enter(traced, span(4, 40), false);
        let remote = |traced: &Traced| enter(traced, ActiveSpan { is_remote: true, ..span(5, 50) }, false);
        let none = (Origin::None, None);
        assert_eq!(after(&[]), none);
        assert_eq!(after(&[&called, &called_again]), (Origin::Caller, Some(context(2, 21))));
        assert_eq!(after(&[&remote]), (Origin::Caller, Some(context(5, 50))));
        for before in [&[][..], &[&called as &dyn Fn(&Traced)], &[&remote]] {
            let with = |more: &[&dyn Fn(&Traced)]| after(&[before, more].concat());
            assert_eq!(with(&[&own, &child, &own, &linked, &called, &remote]), with(&[&own]));
            assert_eq!(with(&[&own]), (Origin::Own, Some(context(3, 30))));
            assert_eq!(with(&[&own, &other, &own, &called]), (Origin::Several, None));
            assert_eq!(with(&[&own, &other, &set]), (Origin::Set, Some(context(1, 10))));
            assert_eq!(with(&[&set, &own, &other, &called, &set_again]), (Origin::Set, Some(context(1, 11))));
        }
        assert_eq!(after(&[&set, &|traced| traced.clear()]), none);
        let unsampled = |traced: &Traced| traced.set(context(1, 10).sampled(false));
        assert_eq!(after(&[&unsampled]).1, Some(context(1, 10).sampled(false)));
    }
}

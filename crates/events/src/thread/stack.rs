//! The stack of the tasks that are current on a thread, in a fixed place, so that entering a task
//! allocates nothing.
//!
//! A guard finds its frame by depth and token. So a guard that is dropped late, out of order or
//! never does no harm to the others.
//!
//! # Invariants
//!
//! 1. The thread charges the context that its [`Span`] shows: that of the topmost live frame;
//!    between tasks the last one, if the thread is in state `Open`. While nothing is counted the
//!    span may show any context that it showed before.
//! 2. No two frames and guards of a thread have the same token, except for guards that a signal
//!    handler leaves behind.
//! 3. A frame owns one count of the customization that it points to, and drops it when the frame
//!    goes, which is after the span that charges it has ended.
//!
//! # Safety
//!
//! The unsafe code drops customizations, by invariant 3, and finds the thread's stack.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use dormouse_sys::otel::Slot;
use dormouse_sys::thread::{TasksAround, ThreadBlock};

use super::state::{State, StateCell};
use super::task::Customization;
use super::token::{Kind, MAX_DEPTH, Token};
use crate::event_set::EventSet;
use crate::ledger::Context;
use crate::span::Span;

#[derive(Debug)]
pub(super) struct Frame {
    /// `None`: its guard was dropped before those above it.
    pub(super) context: Cell<Option<&'static Context>>,
    /// The customization of its task; null if the task is plain.
    pub(super) own: Cell<*const Customization>,
    pub(super) task: Cell<u64>,
    /// Written when another frame comes on top of this one.
    pub(super) token: Cell<Token>,
}

/// The last frames that a thread has had. Others once a task was entered; no end of one changes
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastFrames {
    lowest: Token,
    further: u64,
}

/// Where other threads see this one.
#[derive(Clone, Copy)]
pub(super) struct Here {
    pub(super) block: &'static ThreadBlock,
    pub(super) span: &'static Span,
}

pub(super) struct Stack {
    /// The topmost frame.
    pub(super) top: Cell<Token>,
    /// The number of the last frame that was not the lowest.
    pub(super) numbers: Cell<u64>,
    /// `None` before the thread arrives, where it found no block, and past its end.
    pub(super) here: Cell<Option<Here>>,
    pub(super) state: StateCell,
    /// The context for which the state holds: that of the lowest frame, there or gone.
    pub(super) kept_for: Cell<Option<&'static Context>>,
    /// Whether the last task stays current until the next one comes.
    pub(super) lazy: Cell<bool>,
    /// Whether the thread is on the way to its block.
    pub(super) arrives: Cell<bool>,
    pub(super) ended: Cell<bool>,
    /// The thread's start number, which chooses the shard.
    pub(super) start: Cell<u64>,
    /// The context that the span's pending counts are for.
    pub(super) pending_for: Cell<Option<&'static Context>>,
    /// The context and the customization that the span is for, or was for before it was idle.
    pub(super) charged: Cell<Option<&'static Context>>,
    pub(super) charged_own: Cell<*const Customization>,
    /// The last set for which PMUs were called (`sched_in`), if it wants such calls, until the next
    /// set.
    pub(super) scheduled: Cell<Option<&'static EventSet>>,
    /// The last frames at the beginning of the poll that a runtime announced.
    pub(super) announced: Cell<Option<LastFrames>>,
    /// The thread's pointer, once it has led to a context.
    pub(super) slot: Cell<Option<Slot>>,
    pub(super) frames: [Frame; MAX_DEPTH],
}

thread_local! {
    static STACK: Stack = const {
        Stack {
            top: Cell::new(Token::FIRST),
            numbers: Cell::new(0),
            here: Cell::new(None),
            state: StateCell::new(),
            kept_for: Cell::new(None),
            lazy: Cell::new(false),
            arrives: Cell::new(false),
            ended: Cell::new(false),
            start: Cell::new(0),
            pending_for: Cell::new(None),
            charged: Cell::new(None),
            charged_own: Cell::new(ptr::null()),
            scheduled: Cell::new(None),
            announced: Cell::new(None),
            slot: Cell::new(None),
            frames: [const { Frame::none() }; MAX_DEPTH],
        }
    };
}

const _: () = assert!(!std::mem::needs_drop::<Stack>());

/// [`LocalKey::with`](std::thread::LocalKey::with), inlined however much `look` does: a call for
/// the address of a constant is half of the cost of the shortest switch.
#[inline(always)]
pub(super) fn with<R>(look: impl FnOnce(&Stack) -> R) -> R {
    let stack = STACK.with(ptr::from_ref);
    // SAFETY: the stack has no destructor, so it lives as long as the thread, and belongs to the
    // thread alone.
    look(unsafe { &*stack })
}

impl Frame {
    pub(super) const fn none() -> Self {
        Self {
            context: Cell::new(None),
            own: Cell::new(ptr::null()),
            task: Cell::new(0),
            token: Cell::new(Token::NONE),
        }
    }

    /// Becomes a frame of the same task as `from`, with a count of its own.
    pub(super) fn copy(&self, from: &Self) {
        let own = from.own.get();
        if !own.is_null() {
            // SAFETY: invariant 3; `from` keeps its count.
            unsafe { Arc::increment_strong_count(own) };
        }
        give_back(self.own.replace(own));
        self.context.set(from.context.get());
        self.task.set(from.task.get());
        self.token.set(from.token.get());
    }

    pub(super) fn set_own(&self, own: Option<&Arc<Customization>>) {
        let own = own.map_or(ptr::null(), |own| Arc::into_raw(Arc::clone(own)));
        give_back(self.own.replace(own));
    }
}

/// Drops the count that a frame had of `own`, which the frame has given up.
pub(super) fn give_back(own: *const Customization) {
    if !own.is_null() {
        // SAFETY: invariant 3; the frame points to another one now.
        drop(unsafe { Arc::from_raw(own) });
    }
}

impl Here {
    /// A task became current.
    #[inline]
    pub(super) fn count(self, kind: Kind) {
        match kind {
            Kind::Drop => return,
            Kind::Poll => {}
            // Before the entry: no reader takes a scope for a poll.
            Kind::Scope | Kind::Run => self.span.count_scope(),
        }
        self.span.count_entry();
    }
}

impl Stack {
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.top.get().depth()
    }

    pub(super) fn top_frame(&self) -> Option<&Frame> {
        self.frames.get(self.depth().checked_sub(1)?)
    }

    /// The frame of a guard, if it is still there: a poll around it may have ended before the
    /// guard.
    #[inline]
    pub(super) fn frame(&self, token: Token) -> Option<&Frame> {
        let (top, depth) = (self.top.get(), token.depth());
        let frame = self.frames.get(depth.checked_sub(1)?)?;
        let there = if depth < top.depth() { frame.token.get() } else { top };
        (depth <= top.depth() && there == token).then_some(frame)
    }

    /// The tasks in whose polls the current one runs.
    pub(super) fn tasks_around(&self) -> TasksAround {
        let below = &self.frames[..self.depth().saturating_sub(1)];
        let is_poll = |frame: &&Frame| frame.context.get().is_some() && frame.token.get().is_poll();
        let mut tasks = below.iter().rev().filter(is_poll).map(|frame| frame.task.get());
        std::array::from_fn(|_| tasks.next().unwrap_or(0))
    }

    pub(super) fn last_frames(&self) -> LastFrames {
        let top = self.top.get();
        let lowest = if top.depth() > 1 { self.frames[0].token.get() } else { top };
        LastFrames { lowest: lowest.gone(), further: self.numbers.get() }
    }

    /// Puts `frame`, at depth `below`, on the stack.
    #[inline]
    pub(super) fn push(&self, frame: &Frame, below: usize, context: &'static Context, kind: Kind) -> Token {
        self.prepare(frame, context);
        let token = self.next_token(below, kind);
        self.top.set(token);
        compiler_fence(Ordering::SeqCst);
        // Once more: a handler in between may have used the frame for its own tasks.
        frame.context.set(Some(context));
        token
    }

    /// The token of a frame that comes on top of `below` others.
    #[inline]
    pub(super) fn next_token(&self, below: usize, kind: Kind) -> Token {
        let top = self.top.get();
        match below.checked_sub(1) {
            None => top.next(kind),
            Some(last) => {
                self.frames[last].token.set(top);
                let number = self.numbers.get() + 1;
                self.numbers.set(number);
                Token::new(number, below + 1, kind)
            }
        }
    }

    /// Before `frame` becomes the topmost one: a handler that comes then must not take it for one
    /// that is gone, nor the lowest one for that of another context in whose name the state holds.
    #[inline]
    pub(super) fn prepare(&self, frame: &Frame, context: &'static Context) {
        if ptr::eq(frame, &raw const self.frames[0]) && !self.keeps(context) {
            self.state.set(State::Closed);
            compiler_fence(Ordering::SeqCst);
        }
        frame.context.set(Some(context));
        compiler_fence(Ordering::SeqCst);
    }

    /// Leaves `depth` of `before` frames, and gives back the customizations of the others.
    #[inline]
    pub(super) fn truncate(&self, before: usize, depth: usize) {
        if depth >= before {
            return;
        }
        let top = self.top.get();
        self.top.set(match depth.checked_sub(1) {
            Some(place) => self.frames[place].token.get(),
            None if top.depth() <= 1 => top.gone(),
            None => self.frames[0].token.get().gone(),
        });
        for frame in self.frames.get(depth..before).unwrap_or_default() {
            if !frame.own.get().is_null() {
                frame.set_own(None);
            }
        }
    }

    /// Whether the state holds for `context`.
    #[inline]
    pub(super) fn keeps(&self, context: &Context) -> bool {
        self.kept_for.get().is_some_and(|kept| ptr::eq(kept, context))
    }

    /// Whether the state can hold for `context`: the lowest frame is of it, and the span is that of
    /// a plain task.
    #[inline]
    pub(super) fn can_keep(&self, context: &Context) -> bool {
        self.charged_own.get().is_null()
            && self.frames[0].context.get().is_some_and(|lowest| ptr::eq(lowest, context))
    }

    #[inline]
    pub(super) fn keep(&self, context: &'static Context, state: State) {
        self.kept_for.set(Some(context));
        compiler_fence(Ordering::SeqCst);
        self.state.set(state);
    }
}

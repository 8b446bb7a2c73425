//! The moment a thread goes from one task to the next.
//!
//! Each thread has a stack of what is current, in a fixed place: entering allocates nothing. Guards know
//! their entry by place and token, so that a guard which is dropped late, out of order or never does
//! no harm to the others.
//!
//! While nothing is counted the hook sleeps: the stack is kept, so that it is known what each thread runs when counting
//! begins, and no counter is read.
//!
//! # Invariants
//!
//! 1. What is charged is what the thread's [`Stay`] shows: the topmost live entry, or, on a lazy thread without
//!    one, what was there last.
//! 2. Tokens are never reused on a thread.
//! 3. An entry owns a count of the reference that it holds; it is given back when the entry goes.
//!
//! # Async-signal-safety
//!
//! A handler may enter and leave tasks, but for those of a context that is exact for each task, whose first entry allocates.
//! One that interrupts a switch is charged to whatever that switch leads to: from the beginning of the change of the stay
//! to its end, which comes after the stack is what it is to be, its guards are inert. Outside of changes, what is on the
//! stack may be charged at any moment, because a handler's guard passes on to the topmost entry.
//!
//! # Safety
//!
//! The unsafe code follows and gives back the reference of an entry.
#![allow(unsafe_code)]

mod charge;
#[cfg(all(test, not(loom)))]
mod tests;
mod token;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, compiler_fence};

use dormouse_keys::{static_key, unlikely};
use dormouse_sys::thread::{self, Current, MAX_THREADS, ThreadBlock};

use self::token::Token;
use crate::context::Context;
use crate::control::generation;
use crate::pmu;
use crate::stay::{ASLEEP, Seen, Stay};
use crate::task::{Own, Task};

static_key! {
    /// On while anything is counted for anybody.
    pub(crate) static SWITCH: "dormouse.switch" = false;
}

/// How deep tasks can nest on one thread. What is entered below that is charged to what is there.
pub const MAX_DEPTH: usize = 32;

static OVERFLOWS: AtomicU64 = AtomicU64::new(0);

/// One past the highest index of a stay that was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// By the index of the thread's block.
static STAYS: [Stay; MAX_THREADS] = [const { Stay::new() }; MAX_THREADS];

#[derive(Debug)]
struct Entry {
    /// `None`: its guard was dropped before those above it.
    context: Cell<Option<&'static Context>>,
    /// What its task has of its own, counted; null if nothing.
    own: Cell<*const Own>,
    task: Cell<u64>,
    token: Cell<Token>,
}

#[derive(Clone, Copy)]
struct Here {
    block: &'static ThreadBlock,
    stay: &'static Stay,
}

struct Stack {
    depth: Cell<usize>,
    tokens: Cell<u64>,
    here: Cell<Option<Here>>,
    /// What a lazy thread charges outside of its tasks, and goes on to charge if the next one is of it.
    kept: Cell<Option<&'static Context>>,
    /// The generation in which that is so; none as soon as anything else is charged.
    kept_generation: Cell<u64>,
    /// Whether the last task stays current until the next one comes.
    lazy: Cell<bool>,
    /// Whether the thread is past its end.
    ended: Cell<bool>,
    /// The thread's start number, which chooses the shard.
    start: Cell<u64>,
    /// To whom the stay owes.
    owed_to: Cell<Option<&'static Context>>,
    /// What the stay is for.
    charged: Cell<Option<&'static Context>>,
    charged_own: Cell<*const Own>,
    entries: [Entry; MAX_DEPTH],
}

thread_local! {
    static STACK: Stack = const {
        Stack {
            depth: Cell::new(0),
            tokens: Cell::new(0),
            here: Cell::new(None),
            kept: Cell::new(None),
            kept_generation: Cell::new(ASLEEP),
            lazy: Cell::new(false),
            ended: Cell::new(false),
            start: Cell::new(0),
            owed_to: Cell::new(None),
            charged: Cell::new(None),
            charged_own: Cell::new(std::ptr::null()),
            entries: [const {
                Entry {
                    context: Cell::new(None),
                    own: Cell::new(std::ptr::null()),
                    task: Cell::new(0),
                    token: Cell::new(Token::NONE),
                }
            }; MAX_DEPTH],
        }
    };
}

/// How the end of a task treats what was entered inside it and is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A scope: guards may be dropped in any order, and what was entered inside goes on.
    Scope,
    /// A poll: when it ends, nothing of it is current any more, whatever guards it has left behind.
    Poll,
    /// The destructor of a task: as a poll, but not counted as an entry.
    Drop,
}

/// What a switch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switched {
    /// Nothing is counted.
    Asleep,
    /// The tasks were equivalent: counting went on, and no counter was read.
    Kept,
    /// Counters were read: what they showed was charged, or counting began from there.
    Read,
}

/// Makes a task current as long as it lives.
#[derive(Debug)]
#[must_use = "the task is current as long as the guard lives"]
pub struct Entered {
    token: Token,
    /// A guard belongs to its thread.
    not_send: PhantomData<*const ()>,
}

/// Makes `task` current on this thread until the guard is dropped; then what was current before is again.
///
/// # Cost
///
/// A dozen stores while nothing is counted. Else one read of each counter, unless the task is equivalent to what is
/// current; as much again when the guard is dropped.
///
/// # Async-signal-safety
///
/// A handler may call it once its thread has, but not for a task that counts for itself, whose first entry allocates. Over
/// a switch of its own thread the guard does nothing.
#[inline]
pub fn enter(task: &mut Task, kind: Kind) -> Entered {
    STACK.with(|stack| stack.enter(task, kind))
}

/// This thread goes on with `to`, or with nothing, whatever was current: the primitive for who sees every
/// switch of a thread, as a scheduler of fibers or an executor of its own. A task that was switched from may be switched
/// to on another thread, in the middle of its run too. Guards of [`enter`] that the previous task has left are as if
/// dropped.
///
/// # Cost
///
/// Between equivalent tasks some comparisons and stores. Else one read of each counter.
///
/// # Async-signal-safety
///
/// Not for handlers: it ends what they have interrupted.
#[inline]
pub fn switch(to: Option<&mut Task>) -> Switched {
    STACK.with(|stack| stack.switch(to))
}

/// Whether the calling thread leaves the last task current until the next one comes, and so reads nothing between two tasks
/// of one context. Honest only where every piece of work on the thread is a task, and where [`park`] is called
/// before the thread does anything else: what runs unseen is charged to the task before it. Not for signal handlers.
pub fn set_lazy(lazy: bool) {
    STACK.with(|stack| {
        stack.lazy.set(lazy);
        // The end of the task that is current now decides anew.
        stack.kept_generation.set(ASLEEP);
        stack.park();
    });
}

/// Charges what a lazy thread has not charged yet: it does something else from now on, or sleeps.
pub fn park() {
    STACK.with(Stack::park);
}

/// The task that is current on this thread, 0 outside any.
pub fn current_task() -> u64 {
    STACK.with(|stack| stack.top().map_or(0, |entry| entry.task.get()))
}

/// The number of the context that is current on this thread, 0 outside any.
pub fn current_context() -> u32 {
    STACK.with(|stack| stack.top().and_then(|entry| entry.context.get()).map_or(0, Context::id))
}

/// How often a task was entered deeper than [`MAX_DEPTH`].
pub fn overflows() -> u64 {
    OVERFLOWS.load(Ordering::Relaxed)
}

/// `task` has changed what it has of its own; it may be current on this thread.
pub(crate) fn renew(task: &mut Task) {
    STACK.with(|stack| stack.renew(task));
}

/// The threads that charge something.
pub(crate) fn all_stays() -> impl Iterator<Item = (&'static ThreadBlock, &'static Stay)> {
    thread::live().map(|block| (block, &STAYS[block.index()]))
}

/// What they charge and owe at this moment.
pub(crate) fn stays() -> impl Iterator<Item = (&'static ThreadBlock, &'static Stay, Seen)> {
    all_stays().map(|(block, stay)| (block, stay, stay.watch()))
}

impl Entry {
    fn set_own(&self, own: Option<&Arc<Own>>) {
        let own = own.map_or(std::ptr::null(), |own| Arc::into_raw(Arc::clone(own)));
        let before = self.own.replace(own);
        if !before.is_null() {
            // SAFETY: invariant 3; the entry has another one now.
            drop(unsafe { Arc::from_raw(before) });
        }
    }
}

impl Stack {
    fn top(&self) -> Option<&Entry> {
        self.entries.get(self.depth.get().checked_sub(1)?)
    }

    fn here(&self) -> Option<Here> {
        match self.here.get() {
            None => self.arrive(),
            here => here,
        }
    }

    /// Without a block (more threads than the table holds) a thread's tasks are not counted.
    #[cold]
    fn arrive(&self) -> Option<Here> {
        if self.ended.get() || !charges_at_exit() || !thread::on_fork_child(begin_in_child) {
            return None;
        }
        let block = thread::current()?;
        let here = Here { block, stay: &STAYS[block.index()] };
        self.start.set(block.start());
        USED.fetch_max(block.index() + 1, Ordering::Relaxed);
        // Whoever had the block before may have ended in the middle of anything, as in a fork.
        let number = here.stay.begin();
        here.stay.pay(0);
        here.stay.set_context(0);
        here.stay.set_asleep();
        here.stay.end(number);
        pmu::show();
        self.here.set(Some(here));
        Some(here)
    }

    /// Whether a lazy thread without a current task charges `context` and goes on with it.
    #[inline]
    fn keeps(&self, context: &Context) -> bool {
        self.kept_generation.get() == generation()
            && self.kept.get().is_some_and(|kept| std::ptr::eq(kept, context))
    }

    #[inline]
    fn next_token(&self, place: usize, kind: Kind) -> Token {
        let number = self.tokens.get() + 1;
        self.tokens.set(number);
        Token::new(number, place, kind)
    }

    #[inline]
    fn enter(&self, task: &mut Task, kind: Kind) -> Entered {
        if self.depth.get() == 0
            && kind == Kind::Poll
            && task.has_nothing()
            && self.keeps(task.context())
            && let Some(here) = self.here.get()
        {
            // The lowest entry has this context already. The depth first, as in `enter_anew`.
            self.depth.set(1);
            compiler_fence(Ordering::SeqCst);
            let token = self.next_token(0, kind);
            self.entries[0].token.set(token);
            self.entries[0].task.set(task.id());
            here.stay.count_entry();
            here.block.set_task(task.id());
            return Entered { token, not_send: PhantomData };
        }
        let token = if task.is_plain() {
            self.enter_plainly(task.context(), task.id(), kind)
        } else {
            self.enter_specially(task, kind)
        };
        Entered { token, not_send: PhantomData }
    }

    #[inline(never)]
    fn enter_plainly(&self, context: &'static Context, id: u64, kind: Kind) -> Token {
        self.enter_anew(context, id, None, kind)
    }

    #[cold]
    fn enter_specially(&self, task: &mut Task, kind: Kind) -> Token {
        let (context, id) = (task.context(), task.id());
        self.enter_anew(context, id, task.special(), kind)
    }

    #[inline(always)]
    fn enter_anew(&self, context: &'static Context, id: u64, own: Option<&Arc<Own>>, kind: Kind) -> Token {
        let place = self.depth.get();
        let Some(entry) = self.entries.get(place) else {
            OVERFLOWS.fetch_add(1, Ordering::Relaxed);
            return Token::NONE;
        };
        let here = self.here();
        if here.is_some_and(|here| here.stay.is_changing()) {
            // A signal handler over a switch.
            return Token::NONE;
        }
        // The depth first: a handler from here on uses the places above, and must not take this one for one that is gone.
        entry.context.set(Some(context));
        compiler_fence(Ordering::SeqCst);
        self.depth.set(place + 1);
        compiler_fence(Ordering::SeqCst);
        let token = self.next_token(place, kind);
        entry.context.set(Some(context));
        entry.task.set(id);
        entry.token.set(token);
        if own.is_some() {
            entry.set_own(own);
        }
        if let Some(here) = here {
            let raw = own.map_or(std::ptr::null(), Arc::as_ptr);
            if unlikely!(SWITCH) {
                if own.is_some() || !here.stay.goes_on(context.id(), generation()) {
                    self.pass(here, place, place + 1, Some(context), raw);
                }
                if kind != Kind::Drop {
                    here.stay.count_entry();
                }
            } else {
                self.pass_asleep(here, place, place + 1, Some(context), raw);
            }
            here.block.set_current(Current { task: id, group: context.id() });
        }
        token
    }

    #[inline]
    fn leave(&self, token: Token) {
        if self.kept_generation.get() == generation()
            && self.depth.get() == 1
            && self.entries[0].token.get() == token
            && let Some(here) = self.here.get()
        {
            self.depth.set(0);
            here.block.set_task(0);
            return;
        }
        self.leave_for(token);
    }

    #[inline(never)]
    fn leave_for(&self, token: Token) {
        let (depth, place) = (self.depth.get(), token.place());
        let Some(entry) = self.entries.get(place) else { return };
        if place >= depth || entry.token.get() != token {
            // A poll around it has ended before the guard.
            return;
        }
        if token.is_scope() && place + 1 < depth {
            // Entries above go on; this one is passed over when they are gone. So far they were inside of it.
            self.renew_top();
            entry.context.set(None);
            return;
        }
        self.pop_to(place);
    }

    #[inline]
    fn pop_to(&self, mut depth: usize) {
        while depth > 0 && self.entries[depth - 1].context.get().is_none() {
            depth -= 1;
        }
        let before = self.depth.get();
        let (context, own, task) = match depth.checked_sub(1).map(|top| &self.entries[top]) {
            Some(top) => (top.context.get(), top.own.get(), top.task.get()),
            None => (None, std::ptr::null(), 0),
        };
        if let Some(here) = self.here.get() {
            if here.stay.is_changing() {
                // A signal handler over a switch drops a guard of what it has interrupted; the poll around it will
                // end that.
                return;
            }
            let id = context.map_or(0, Context::id);
            if unlikely!(SWITCH) {
                // One entry at most: contexts between would not be charged for what was inside of them.
                let goes_on = before <= depth + 1
                    && (own.is_null() && here.stay.goes_on(id, generation())
                        || depth == 0 && self.lazy.get() && self.stays_lazily(here));
                if goes_on {
                    self.cut(before, depth);
                } else {
                    self.pass(here, before, depth, context, own);
                }
            } else {
                self.pass_asleep(here, before, depth, context, own);
            }
            here.block.set_current(Current { task, group: id });
        } else {
            self.cut(before, depth);
        }
    }

    /// Of `before` entries `depth` are left. What the others had of their own is charged no more.
    #[inline]
    fn cut(&self, before: usize, depth: usize) {
        self.depth.set(depth);
        for entry in self.entries.get(depth..before).unwrap_or_default() {
            if !entry.own.get().is_null() {
                entry.set_own(None);
            }
        }
    }

    /// Whether a thread without a current task goes on to charge what was its last task's, from now on.
    fn stays_lazily(&self, here: Here) -> bool {
        let Some(charged) = self.charged.get() else { return false };
        let generation = generation();
        let stays = self.charged_own.get().is_null()
            && !charged.is_exact()
            && self.entries[0].context.get().is_some_and(|lowest| std::ptr::eq(lowest, charged));
        if stays {
            if !here.stay.goes_on(charged.id(), generation) {
                self.pass(here, 1, 1, Some(charged), std::ptr::null());
            }
            self.kept.set(Some(charged));
            self.kept_generation.set(generation);
        }
        stays
    }

    #[inline]
    fn switch(&self, to: Option<&mut Task>) -> Switched {
        let Some(task) = to else {
            let counts = self.top().and_then(|top| top.context.get()).is_some_and(|c| !c.layout().is_empty());
            if self.depth.get() > 0 {
                self.pop_to(0);
            }
            self.park();
            return if counts { Switched::Read } else { Switched::Asleep };
        };
        let Some(here) = self.here() else { return Switched::Asleep };
        let (context, id) = (task.context(), task.id());
        if self.depth.get() == 1 && task.is_plain() && here.stay.goes_on(context.id(), generation()) {
            // Counted, or the generation would not be what it is. The lowest entry has this context already.
            self.entries[0].token.set(self.next_token(0, Kind::Poll));
            self.entries[0].task.set(id);
            here.stay.count_entry();
            here.block.set_task(id);
            return if context.layout().is_empty() { Switched::Asleep } else { Switched::Kept };
        }
        self.switch_to(here, task)
    }

    #[inline(never)]
    fn switch_to(&self, here: Here, task: &mut Task) -> Switched {
        if here.stay.is_changing() {
            return Switched::Asleep;
        }
        if self.depth.get() > 1 {
            self.pop_to(1);
        }
        let (context, id) = (task.context(), task.id());
        let own = task.special();
        let raw = own.map_or(std::ptr::null(), |own| Arc::into_raw(Arc::clone(own)));
        let (before, entry) = (self.depth.get(), &self.entries[0]);
        // As in `enter_anew`.
        entry.context.set(Some(context));
        compiler_fence(Ordering::SeqCst);
        self.depth.set(1);
        compiler_fence(Ordering::SeqCst);
        entry.token.set(self.next_token(0, Kind::Poll));
        entry.context.set(Some(context));
        entry.task.set(id);
        let last = entry.own.replace(raw);
        let did = if unlikely!(SWITCH) {
            let did = self.pass(here, before, 1, Some(context), raw);
            here.stay.count_entry();
            did
        } else {
            self.pass_asleep(here, before, 1, Some(context), raw)
        };
        here.block.set_current(Current { task: id, group: context.id() });
        if !last.is_null() {
            // SAFETY: invariant 3; the entry has another one now, and what it was charged is over.
            drop(unsafe { Arc::from_raw(last) });
        }
        did
    }

    fn park(&self) {
        if self.depth.get() > 0 {
            return;
        }
        if let Some(here) = self.here.get()
            && self.charged.get().is_some()
            && !here.stay.is_changing()
        {
            self.pass(here, 0, 0, None, std::ptr::null());
        }
    }

    /// Charges what the topmost entry has counted so far.
    #[cold]
    fn renew_top(&self) {
        if let (Some(here), Some(top)) = (self.here.get(), self.top())
            && !here.stay.is_changing()
        {
            let (depth, context, own) = (self.depth.get(), top.context.get(), top.own.get());
            if unlikely!(SWITCH) {
                self.pass(here, depth, depth, context, own);
            } else {
                self.pass_asleep(here, depth, depth, context, own);
            }
        }
    }

    fn renew(&self, task: &mut Task) {
        let (context, id) = (task.context(), task.id());
        let own = task.special();
        for entry in &self.entries[..self.depth.get().min(MAX_DEPTH)] {
            if entry.task.get() == id && entry.context.get().is_some_and(|there| std::ptr::eq(there, context))
            {
                let charged = self.charged_own.get();
                let is_top = self.top().is_some_and(|top| std::ptr::eq(top, entry));
                // SAFETY: invariant 3; kept until the change has been charged.
                let _until_charged = (!charged.is_null() && is_top).then(|| unsafe {
                    Arc::increment_strong_count(charged);
                    Arc::from_raw(charged)
                });
                entry.set_own(own);
                if is_top {
                    self.renew_top();
                }
            }
        }
    }
}

/// Has what a thread has counted charged at its end; false when the table of hooks is full.
pub(crate) fn charges_at_exit() -> bool {
    thread::on_thread_exit(end_of_thread)
}

/// In a fork child: hands what the parent's other threads owed to `charge`, as number of the context, entries and CPU
/// time. Signal-safe if `charge` is.
pub(crate) fn inherit(charge: impl Fn(u32, u64, u64)) {
    let own = STACK.with(|stack| stack.here.get());
    for stay in STAYS.iter().take(USED.load(Ordering::Relaxed)) {
        if own.is_none_or(|own| !std::ptr::eq(own.stay, stay)) {
            let seen = stay.watch();
            stay.pay(0);
            charge(seen.owed_to, seen.entries, seen.owed);
        }
    }
}

/// In a fork child all counters of its thread begin again. What its parent had pending is the parent's; what the child
/// does is counted from its next switch on.
fn begin_in_child() {
    STACK.with(|stack| {
        if let Some(here) = stack.here.get() {
            let number = here.stay.begin();
            stack.kept_generation.set(ASLEEP);
            here.stay.set_asleep();
            here.stay.end(number);
        }
    });
}

/// What a thread does last: nothing of it stays uncharged.
fn end_of_thread() {
    STACK.with(|stack| {
        stack.lazy.set(false);
        stack.pop_to(0);
        stack.park();
        if let Some(here) = stack.here.take() {
            let number = here.stay.begin();
            stack.pay(here.stay, None);
            here.stay.end(number);
        }
        stack.ended.set(true);
    });
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        STACK.with(|stack| stack.leave(self.token));
    }
}

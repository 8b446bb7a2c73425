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
//!    one, what was there last. While nothing is counted it may show what was there last on any thread ([`kept`]).
//! 2. Of the entries of a thread and of the guards that are left, no two have the same token, unless a handler leaves a
//!    guard behind.
//! 3. An entry owns a count of the reference that it holds; it is given back when the entry goes.
//!
//! # Async-signal-safety
//!
//! A handler may enter and leave tasks, but for those of a context that is exact for each task, whose first entry allocates.
//! It drops its guards before it returns.
//! One that interrupts a switch is charged to whatever that switch leads to: from the beginning of the change of the stay
//! to its end, which comes after the stack is what it is to be, its guards are inert. Outside of changes, what is on the
//! stack may be charged at any moment, because a handler's guard passes on to the topmost entry.
//!
//! # Safety
//!
//! The unsafe code follows and gives back the reference of an entry, and finds the thread's stack.
#![allow(unsafe_code)]

mod charge;
mod kept;
#[cfg(all(test, not(loom)))]
mod tests;
mod token;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, compiler_fence};

use dormouse_keys::static_key;
use dormouse_sys::thread::{self, Current, MAX_THREADS, ThreadBlock};

use self::kept::Kept;
use self::token::Token;
use crate::context::Context;
use crate::control::generation;
use crate::pmu;
use crate::stay::{Seen, Stay};
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
    /// Written when another one comes on top of it.
    token: Cell<Token>,
}

#[derive(Clone, Copy)]
struct Here {
    block: &'static ThreadBlock,
    stay: &'static Stay,
}

struct Stack {
    /// The topmost entry.
    top: Cell<Token>,
    /// The number of the last entry that was not the lowest.
    tokens: Cell<u64>,
    here: Cell<Option<Here>>,
    /// The context of the lowest entry, there or gone, for which it holds that it is kept, if it does.
    kept: Cell<Option<&'static Context>>,
    kept_as: Cell<Kept>,
    /// Whether the last task stays current until the next one comes.
    lazy: Cell<bool>,
    /// Whether the thread is on its way to its block.
    arrives: Cell<bool>,
    /// Whether the thread is past its end.
    ended: Cell<bool>,
    /// The thread's start number, which chooses the shard.
    start: Cell<u64>,
    /// To whom the stay owes.
    owed_to: Cell<Option<&'static Context>>,
    /// What the stay is for, or was before it was idle.
    charged: Cell<Option<&'static Context>>,
    charged_own: Cell<*const Own>,
    entries: [Entry; MAX_DEPTH],
}

thread_local! {
    static STACK: Stack = const {
        Stack {
            top: Cell::new(Token::FIRST),
            tokens: Cell::new(0),
            here: Cell::new(None),
            kept: Cell::new(None),
            kept_as: Cell::new(Kept::NOT),
            lazy: Cell::new(false),
            arrives: Cell::new(false),
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

const _: () = assert!(!std::mem::needs_drop::<Stack>());

/// [`LocalKey::with`](std::thread::LocalKey::with), inlined however much `look` does: a call for the place of a constant
/// is half of what the shortest switch takes.
#[inline(always)]
fn with<R>(look: impl FnOnce(&Stack) -> R) -> R {
    let stack = STACK.with(std::ptr::from_ref);
    // SAFETY: it has no destructor, so it is there as long as the thread, and is the thread's alone.
    look(unsafe { &*stack })
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
/// A dozen stores while nothing is counted, fewer from poll to poll of one context. Else one read of each counter, unless
/// the task is equivalent to what is current; as much again when the guard is dropped.
///
/// # Async-signal-safety
///
/// A handler may call it once its thread has, but not for a task that counts for itself, whose first entry allocates. Over
/// a switch of its own thread the guard does nothing.
#[inline]
pub fn enter(task: &mut Task, kind: Kind) -> Entered {
    with(|stack| stack.enter(task, kind))
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
    with(|stack| stack.switch(to))
}

/// Whether the calling thread leaves the last task current until the next one comes, and so reads nothing between two tasks
/// of one context. Honest only where every piece of work on the thread is a task, and where [`park`] is called
/// before the thread does anything else: what runs unseen is charged to the task before it. Not for signal handlers.
pub fn set_lazy(lazy: bool) {
    STACK.with(|stack| {
        stack.lazy.set(lazy);
        // The end of the task that is current now decides anew.
        stack.kept_as.set(Kept::NOT);
        stack.park();
    });
}

/// Whether the calling thread is lazy; see [`set_lazy`].
pub fn is_lazy() -> bool {
    STACK.with(|stack| stack.lazy.get())
}

/// Charges what a lazy thread has not charged yet: it does something else from now on, or sleeps.
pub fn park() {
    STACK.with(Stack::park);
}

/// The task that is current on this thread, 0 outside any.
pub fn current_task() -> u64 {
    STACK.with(|stack| stack.top_entry().map_or(0, |entry| entry.task.get()))
}

/// The number of the context that is current on this thread, 0 outside any.
pub fn current_context() -> u32 {
    STACK.with(|stack| stack.top_entry().and_then(|entry| entry.context.get()).map_or(0, Context::id))
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
    #[inline]
    fn depth(&self) -> usize {
        self.top.get().depth()
    }

    fn top_entry(&self) -> Option<&Entry> {
        self.entries.get(self.depth().checked_sub(1)?)
    }

    fn here(&self) -> Option<Here> {
        match self.here.get() {
            None => self.arrive(),
            here => here,
        }
    }

    /// Without a block (more threads than the table holds) a thread's tasks are not counted, nor are those of a handler
    /// that comes meanwhile.
    #[cold]
    fn arrive(&self) -> Option<Here> {
        if self.arrives.replace(true) {
            return None;
        }
        compiler_fence(Ordering::SeqCst);
        let here = self.find_block();
        self.here.set(here);
        compiler_fence(Ordering::SeqCst);
        self.arrives.set(false);
        here
    }

    fn find_block(&self) -> Option<Here> {
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
        here.stay.end_idle(number);
        pmu::show();
        Some(here)
    }

    #[inline]
    fn enter(&self, task: &mut Task, kind: Kind) -> Entered {
        if self.kept_as.get().is(Kept::THERE)
            && kind == Kind::Poll
            && task.has_nothing()
            && let Some(token) = self.go_on(task.context(), task.id())
        {
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
        if self.kept_as.get().is(Kept::IDLE)
            && let Some(token) = self.resume(context, id, kind)
        {
            return token;
        }
        self.enter_anew(context, id, None, kind)
    }

    #[cold]
    fn enter_specially(&self, task: &mut Task, kind: Kind) -> Token {
        let (context, id) = (task.context(), task.id());
        self.enter_anew(context, id, task.special(), kind)
    }

    #[inline(never)]
    fn enter_anew(&self, context: &'static Context, id: u64, own: Option<&Arc<Own>>, kind: Kind) -> Token {
        let top = self.top.get();
        let place = top.depth();
        let Some(entry) = self.entries.get(place) else {
            OVERFLOWS.fetch_add(1, Ordering::Relaxed);
            return Token::NONE;
        };
        let here = self.here();
        if here.is_some_and(|here| here.stay.is_changing()) {
            // A signal handler over a switch.
            return Token::NONE;
        }
        self.prepare(entry, context);
        let token = match place.checked_sub(1) {
            None => top.next(kind),
            Some(below) => {
                self.entries[below].token.set(top);
                let number = self.tokens.get() + 1;
                self.tokens.set(number);
                Token::new(number, place + 1, kind)
            }
        };
        self.top.set(token);
        compiler_fence(Ordering::SeqCst);
        entry.context.set(Some(context));
        entry.task.set(id);
        if own.is_some() {
            entry.set_own(own);
        }
        if let Some(here) = here {
            let raw = own.map_or(std::ptr::null(), Arc::as_ptr);
            // Before the generation is looked at, as in `go_on`.
            here.block.set_current(Current { task: id, group: context.id() });
            if own.is_some() || !here.stay.goes_on(context.id(), generation()) {
                self.pass(here, place, place + 1, context, raw);
            }
            if kind != Kind::Drop && !here.stay.is_asleep() {
                here.stay.count_entry();
            }
        }
        token
    }

    /// Before `entry` becomes the topmost one: a handler that comes between must not take it for one that is gone, nor the
    /// lowest one for what is kept.
    #[inline]
    fn prepare(&self, entry: &Entry, context: &'static Context) {
        if std::ptr::eq(entry, &raw const self.entries[0]) && !self.keeps(context) {
            self.kept_as.set(Kept::NOT);
            compiler_fence(Ordering::SeqCst);
        }
        entry.context.set(Some(context));
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn leave(&self, token: Token) {
        if !(self.kept_as.get().is(Kept::THERE) && self.stop(token)) {
            self.leave_for(token);
        }
    }

    #[inline(never)]
    fn leave_for(&self, token: Token) {
        if self.kept_as.get().is(Kept::IDLE) && self.suspend(token) {
            return;
        }
        let (top, depth) = (self.top.get(), token.depth());
        let Some(entry) = depth.checked_sub(1).and_then(|place| self.entries.get(place)) else { return };
        if depth > top.depth() || (if depth < top.depth() { entry.token.get() } else { top }) != token {
            // A poll around it has ended before the guard.
            return;
        }
        if token.is_scope() && depth < top.depth() {
            // Entries above go on; this one is passed over when they are gone. So far they were inside of it.
            self.renew_top();
            entry.context.set(None);
            return;
        }
        self.pop_to(depth - 1);
    }

    #[inline]
    fn pop_to(&self, mut depth: usize) {
        while depth > 0 && self.entries[depth - 1].context.get().is_none() {
            depth -= 1;
        }
        let before = self.depth();
        let Some(here) = self.here.get() else { return self.cut(before, depth) };
        if here.stay.is_changing() {
            // A signal handler over a switch drops a guard of what it has interrupted; the poll around it will
            // end that.
            return;
        }
        // Of one entry at most: contexts between would not be charged for what was inside of them.
        let at_most_one = before <= depth + 1;
        let top = depth.checked_sub(1).map(|top| &self.entries[top]);
        let Some((top, context)) = top.and_then(|top| Some((top, top.context.get()?))) else {
            if at_most_one && self.lazy.get() && self.stays_lazily(here) {
                self.cut(before, 0);
                here.block.set_task(0);
            } else {
                self.go_idle(here, before);
            }
            return;
        };
        let own = top.own.get();
        if at_most_one && own.is_null() && here.stay.goes_on(context.id(), generation()) {
            self.cut(before, depth);
        } else {
            self.pass(here, before, depth, context, own);
        }
        here.block.set_current(Current { task: top.task.get(), group: context.id() });
    }

    /// Of `before` entries `depth` are left. What the others had of their own is charged no more.
    #[inline]
    fn cut(&self, before: usize, depth: usize) {
        if depth >= before {
            return;
        }
        let top = self.top.get();
        self.top.set(match depth.checked_sub(1) {
            Some(place) => self.entries[place].token.get(),
            None if top.depth() <= 1 => top.gone(),
            None => self.entries[0].token.get().gone(),
        });
        for entry in self.entries.get(depth..before).unwrap_or_default() {
            if !entry.own.get().is_null() {
                entry.set_own(None);
            }
        }
    }

    #[inline]
    fn switch(&self, to: Option<&mut Task>) -> Switched {
        let Some(task) = to else {
            let top = self.top_entry().and_then(|top| top.context.get());
            if self.depth() > 0 {
                self.pop_to(0);
            }
            self.park();
            return if top.is_some_and(|context| !context.layout().is_empty()) {
                Switched::Read
            } else {
                Switched::Asleep
            };
        };
        let Some(here) = self.here() else { return Switched::Asleep };
        let (context, id, top) = (task.context(), task.id(), self.top.get());
        if top.depth() == 1 && task.is_plain() && here.stay.goes_on(context.id(), generation()) {
            // Counted, or the generation would not be what it is. The lowest entry has this context already.
            self.top.set(top.gone().next(Kind::Poll));
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
        if self.depth() > 1 {
            self.pop_to(1);
        }
        let (context, id) = (task.context(), task.id());
        let own = task.special();
        let raw = own.map_or(std::ptr::null(), |own| Arc::into_raw(Arc::clone(own)));
        let (top, entry) = (self.top.get(), &self.entries[0]);
        self.prepare(entry, context);
        self.top.set(top.gone().next(Kind::Poll));
        compiler_fence(Ordering::SeqCst);
        entry.context.set(Some(context));
        entry.task.set(id);
        let last = entry.own.replace(raw);
        // Before the generation is looked at, as in `go_on`.
        here.block.set_current(Current { task: id, group: context.id() });
        let did = self.pass(here, top.depth(), 1, context, raw);
        if !here.stay.is_asleep() {
            here.stay.count_entry();
        }
        if !last.is_null() {
            // SAFETY: invariant 3; the entry has another one now, and what it was charged is over.
            drop(unsafe { Arc::from_raw(last) });
        }
        did
    }

    fn park(&self) {
        if self.depth() > 0 {
            return;
        }
        if let Some(here) = self.here.get()
            && !here.stay.is_idle()
            && !here.stay.is_changing()
            && !self.keeps_asleep()
        {
            self.go_idle(here, 0);
        }
    }

    /// Charges what the topmost entry has counted so far.
    #[cold]
    fn renew_top(&self) {
        if let (Some(here), Some(top)) = (self.here.get(), self.top_entry())
            && let Some(context) = top.context.get()
            && !here.stay.is_changing()
        {
            let depth = self.depth();
            self.pass(here, depth, depth, context, top.own.get());
        }
    }

    fn renew(&self, task: &mut Task) {
        let (context, id) = (task.context(), task.id());
        let own = task.special();
        for entry in &self.entries[..self.depth()] {
            if entry.task.get() == id && entry.context.get().is_some_and(|there| std::ptr::eq(there, context))
            {
                let charged = self.charged_own.get();
                let is_top = self.top_entry().is_some_and(|top| std::ptr::eq(top, entry));
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
            stack.kept_as.set(Kept::NOT);
            if here.stay.is_changing() {
                // Forked by a handler over a switch, which ends the change.
                return here.stay.set_asleep();
            }
            let number = here.stay.begin();
            here.stay.set_asleep();
            here.stay.end_alike(number);
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
            here.stay.end_alike(number);
        }
        stack.ended.set(true);
    });
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        with(|stack| stack.leave(self.token));
    }
}

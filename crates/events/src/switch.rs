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
//! A handler may enter and leave tasks. One that interrupts a switch is charged to whatever that switch leads to.
//!
//! # Safety
//!
//! The unsafe code follows and gives back the reference of an entry.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use dormouse_keys::{static_key, unlikely};
use dormouse_sys::thread::{self, Current, MAX_THREADS, ThreadBlock};

use crate::account::CLOCK;
use crate::context::Context;
use crate::control::generation;
use crate::layout::{Layout, NOTHING, Readings};
use crate::pmu;
use crate::stay::{ASLEEP, Counted, Seen, Stay};
use crate::task::{Own, Task};

static_key! {
    /// On while anything is counted for anybody.
    pub(crate) static SWITCH: "dormouse.switch" = false;
}

/// How deep tasks can nest on one thread. What is entered below that is charged to what is there.
pub const MAX_DEPTH: usize = 32;

static OVERFLOWS: AtomicU64 = AtomicU64::new(0);

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
    /// What the stay is for, if it began while anything was counted.
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

/// Which entry a guard is of: in one word, because it is compared at every poll. The lowest bits are the entry's place,
/// then comes the guard's kind, then a number that no other entry of the thread has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Token(u64);

const PLACE_BITS: u32 = 8;
const KIND_BITS: u32 = 8;

const _: () = assert!(MAX_DEPTH < 1 << PLACE_BITS);

impl Token {
    const NONE: Self = Self(0);

    #[inline]
    fn new(number: u64, place: usize, kind: Kind) -> Self {
        Self(number << (PLACE_BITS + KIND_BITS) | (kind as u64) << PLACE_BITS | place as u64)
    }

    fn place(self) -> usize {
        self.0 as usize & ((1 << PLACE_BITS) - 1)
    }

    fn is_scope(self) -> bool {
        self.0 >> PLACE_BITS & ((1 << KIND_BITS) - 1) == Kind::Scope as u64
    }
}

/// Makes `task` current on this thread until the guard is dropped; then what was current before is again.
///
/// # Cost
///
/// A dozen stores while nothing is counted. Else one read of each counter, unless the task is equivalent to what is
/// current; as much again when the guard is dropped.
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
#[inline]
pub fn switch(to: Option<&mut Task>) -> Switched {
    STACK.with(|stack| stack.switch(to))
}

/// Whether the calling thread leaves the last task current until the next one comes, and so reads nothing between two tasks
/// of one context. Honest only where every piece of work on the thread is a task, and where [`park`] is called
/// before the thread does anything else: what runs unseen is charged to the task before it.
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
        if self.ended.get()
            || !thread::on_thread_exit(end_of_thread)
            || !thread::on_fork_child(begin_in_child)
        {
            return None;
        }
        let block = thread::current()?;
        let here = Here { block, stay: &STAYS[block.index()] };
        self.start.set(block.start());
        // Whoever had the block before may have ended in the middle of anything, as in a fork.
        let number = here.stay.begin();
        here.stay.pay(0);
        here.stay.set_context(0, false);
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
            // The lowest entry has this context already.
            let token = self.next_token(0, kind);
            self.entries[0].token.set(token);
            self.entries[0].task.set(task.id());
            self.depth.set(1);
            here.stay.count_entry();
            here.block.set_task(task.id());
            return Entered { token, not_send: PhantomData };
        }
        let token = if task.is_plain() {
            self.enter_anew(task.context(), task.id(), None, kind)
        } else {
            self.enter_specially(task, kind)
        };
        Entered { token, not_send: PhantomData }
    }

    #[cold]
    fn enter_specially(&self, task: &mut Task, kind: Kind) -> Token {
        let (context, id) = (task.context(), task.id());
        self.enter_anew(context, id, task.special(), kind)
    }

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
        // The depth first: a handler from here on uses the places above.
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
                    self.pass(here, place, Some(context), raw);
                }
                if kind != Kind::Drop {
                    here.stay.count_entry();
                }
            } else {
                Self::pass_asleep(here, Some(context), raw);
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

    fn leave_for(&self, token: Token) {
        let (depth, place) = (self.depth.get(), token.place());
        let Some(entry) = self.entries.get(place) else { return };
        if place >= depth || entry.token.get() != token {
            // A poll around it has ended before the guard.
            return;
        }
        if token.is_scope() && place + 1 < depth {
            // Entries above go on; this one is passed over when they are gone.
            entry.context.set(None);
            return;
        }
        self.pop_to(place);
    }

    fn pop_to(&self, mut depth: usize) {
        while depth > 0 && self.entries[depth - 1].context.get().is_none() {
            depth -= 1;
        }
        let top = depth.checked_sub(1).map(|top| &self.entries[top]);
        let (context, own) = top.map_or((None, std::ptr::null()), |top| (top.context.get(), top.own.get()));
        let before = self.depth.get();
        if let Some(here) = self.here.get() {
            if here.stay.is_changing() {
                // A signal handler over a switch drops a guard of what it has interrupted; the poll around it will
                // end that.
                return;
            }
            if unlikely!(SWITCH) {
                let id = context.map_or(0, Context::id);
                let goes_on = own.is_null() && here.stay.goes_on(id, generation());
                if !(goes_on || depth == 0 && self.stays_lazily(here)) {
                    self.pass(here, before, context, own);
                }
            } else {
                Self::pass_asleep(here, context, own);
            }
            let task = top.map_or(0, |top| top.task.get());
            here.block.set_current(Current { task, group: context.map_or(0, Context::id) });
        }
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
        let stays = self.lazy.get()
            && self.charged_own.get().is_null()
            && here.stay.goes_on(charged.id(), generation())
            && self.entries[0].context.get().is_some_and(|lowest| std::ptr::eq(lowest, charged));
        if stays {
            self.kept.set(Some(charged));
            self.kept_generation.set(generation());
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
        let (context, id) = (task.context(), task.id());
        let own = task.special();
        let raw = own.map_or(std::ptr::null(), Arc::as_ptr);
        let before = self.depth.get();
        let did = if unlikely!(SWITCH) {
            let did = self.pass(here, before, Some(context), raw);
            here.stay.count_entry();
            did
        } else {
            Self::pass_asleep(here, Some(context), raw);
            Switched::Asleep
        };
        self.depth.set(1);
        for entry in self.entries.get(1..before).unwrap_or_default() {
            entry.set_own(None);
        }
        let entry = &self.entries[0];
        entry.token.set(self.next_token(0, Kind::Poll));
        entry.context.set(Some(context));
        entry.task.set(id);
        if own.is_some() || !entry.own.get().is_null() {
            entry.set_own(own);
        }
        here.block.set_current(Current { task: id, group: context.id() });
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
            self.pass(here, 0, None, std::ptr::null());
        }
    }

    /// Charges what was counted since the last change to what it was for, which was inside of `depth` entries, and goes
    /// on for `context`.
    #[inline(never)]
    fn pass(&self, here: Here, depth: usize, context: Option<&'static Context>, own: *const Own) -> Switched {
        let stay = here.stay;
        let number = stay.begin();
        self.kept_generation.set(ASLEEP);
        let generation = generation();
        if stay.is_asleep() {
            // It was not for anything yet, and may have been settled meanwhile.
            let top = depth.checked_sub(1).and_then(|top| self.entries.get(top));
            self.charged.set(top.and_then(|top| top.context.get()));
            self.charged_own.set(top.map_or(std::ptr::null(), |top| top.own.get()));
        }
        // SAFETY: invariant 3: `own` is that of an entry, or of the task that the caller has.
        let special = unsafe { own.as_ref() };
        let layout = context
            .map_or(&NOTHING, |context| special.map_or_else(|| context.layout(), |own| own.layout(context)));
        let counted = stay.counted(generation);
        let did = match counted {
            Counted::Nothing | Counted::Clock { .. } if layout.is_clock() || layout.is_empty() => {
                self.pass_by_clock(stay, depth, counted, generation, layout)
            }
            _ => self.pass_by_reading(stay, depth, number, generation, layout),
        };
        if let Some(context) = context
            && !stay.is_owed_to(context.id())
        {
            self.pay(stay, Some(context));
        }
        stay.set_context(context.map_or(0, Context::id), !own.is_null());
        self.charged.set(context);
        self.charged_own.set(own);
        stay.end(number);
        did
    }

    /// Charges what is owed, and owes to another context from now on.
    fn pay(&self, stay: &Stay, to: Option<&'static Context>) {
        let (entries, ns) = stay.pay(to.map_or(0, Context::id));
        if let Some(context) = self.owed_to.replace(to) {
            context.count_entries(self.start.get(), entries);
            context.charge(self.start.get(), CLOCK, ns);
        }
    }

    /// Where task-clock is all that is counted, before and after, or nothing.
    #[inline]
    fn pass_by_clock(
        &self,
        stay: &Stay,
        depth: usize,
        counted: Counted,
        generation: u64,
        layout: &'static Layout,
    ) -> Switched {
        if counted == Counted::Nothing && layout.is_empty() {
            stay.set_first(generation, layout, 0);
            return Switched::Asleep;
        }
        let now = dormouse_clock::thread_cpu_ns();
        if let Counted::Clock { since } = counted {
            // Saturating: a fork child's clock begins again.
            let ns = now.saturating_sub(since);
            let is_owed = self.charged.get().is_some_and(|context| stay.is_owed_to(context.id()));
            if is_owed && depth <= 1 && self.charged_own.get().is_null() {
                stay.owe(ns);
            } else {
                self.charge(depth, std::iter::once((CLOCK, ns)));
            }
        }
        stay.set_first(generation, layout, now);
        Switched::Read
    }

    #[inline(never)]
    fn pass_by_reading(
        &self,
        stay: &Stay,
        depth: usize,
        number: u64,
        generation: u64,
        layout: &'static Layout,
    ) -> Switched {
        let mut readings = Readings::default();
        let rest = stay.rest(number, generation);
        if !rest.layout.is_empty() {
            rest.layout.read(&mut readings);
            self.charge(depth, rest.until(&readings, u32::MAX));
        }
        // What goes and what comes do so at one moment: one reading of the same counters does for both.
        if !std::ptr::eq(layout, rest.layout) {
            layout.read(&mut readings);
        }
        stay.set(generation, layout, &readings);
        if layout.is_empty() && rest.layout.is_empty() { Switched::Asleep } else { Switched::Read }
    }

    /// The same while nothing is counted.
    #[inline]
    fn pass_asleep(here: Here, context: Option<&'static Context>, own: *const Own) {
        let number = here.stay.begin();
        here.stay.set_asleep();
        here.stay.set_context(context.map_or(0, Context::id), !own.is_null());
        here.stay.end(number);
    }

    #[inline]
    fn charge(&self, depth: usize, counts: impl Iterator<Item = (usize, u64)>) {
        let Some(charged) = self.charged.get() else { return };
        // SAFETY: invariant 3: what is charged is an entry's until the entry goes, which passes on first.
        let own = unsafe { self.charged_own.get().as_ref() };
        let counted = if own.is_some() { charged.layout().mask() } else { u64::MAX };
        for (account, n) in counts {
            if counted & 1 << account != 0 {
                charged.charge(self.start.get(), account, n);
            }
            if let Some(own) = own {
                own.charge(account, n);
            }
            if depth > 1 {
                self.charge_around(charged, depth, account, n);
            }
        }
    }

    /// Charges the contexts around what is charged: once each, however often they are there.
    #[cold]
    fn charge_around(&self, charged: &'static Context, depth: usize, account: usize, n: u64) {
        let entries = &self.entries[..depth.min(MAX_DEPTH)];
        for (place, entry) in entries.iter().enumerate() {
            let Some(context) = entry.context.get() else { continue };
            let is = |other: &Context| std::ptr::eq(other, context);
            if !is(charged) && !entries[..place].iter().any(|below| below.context.get().is_some_and(is)) {
                context.charge_nested(account, n);
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
                if is_top && let Some(here) = self.here.get() {
                    if unlikely!(SWITCH) {
                        self.pass(here, self.depth.get(), Some(context), entry.own.get());
                    } else {
                        Self::pass_asleep(here, Some(context), entry.own.get());
                    }
                }
            }
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
        for entry in &stack.entries {
            entry.context.set(None);
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::control::{Counting, Mode};
    use crate::pmu::{CountingPmu, Event};

    static PMU: CountingPmu = CountingPmu::new();

    fn happenings() -> Event {
        PMU.event("happenings", 0)
    }

    fn pass(times: u64) {
        CountingPmu::happen(0, times);
    }

    /// A context that counts happenings.
    fn context() -> (&'static Context, Counting) {
        let context = Context::new();
        (context, Counting::of(context, &[happenings()], Mode::GroupExact).unwrap())
    }

    fn value(context: &Context) -> (u64, u64) {
        let counts = context.read();
        let count = counts.iter().find(|count| count.event == happenings());
        count.map_or((0, 0), |count| (count.value, count.nested))
    }

    #[test]
    fn events_are_charged_to_the_innermost_task_and_known_to_those_around_it() {
        let ((a, _a), (b, _b)) = (context(), context());
        pass(100);
        let outer = enter(&mut Task::new(a, 1), Kind::Poll);
        pass(10);
        let inner = enter(&mut Task::new(b, 2), Kind::Poll);
        assert_eq!((current_task(), current_context()), (2, b.id()));
        pass(5);
        assert_eq!(value(b), (5, 0), "what is pending is seen");
        let again = enter(&mut Task::new(a, 3), Kind::Poll);
        pass(2);
        drop(again);
        drop(inner);
        assert_eq!(current_task(), 1);
        pass(1);
        drop(outer);
        pass(1000);
        assert_eq!((current_task(), current_context()), (0, 0));
        assert_eq!((value(a), value(b)), ((13, 5), (5, 2)));
        assert_eq!((a.entries(), b.entries()), (2, 1));
    }

    #[test]
    fn scopes_may_end_in_any_order() {
        let ((a, _a), (b, _b)) = (context(), context());
        let first = enter(&mut Task::new(a, 1), Kind::Scope);
        pass(1);
        let second = enter(&mut Task::new(b, 2), Kind::Scope);
        pass(10);
        drop(first);
        pass(100);
        drop(second);
        pass(1000);
        assert_eq!((value(a).0, value(b).0), (1, 110));
        assert_eq!(current_task(), 0);
    }

    #[test]
    fn the_end_of_a_poll_ends_what_it_left_behind_and_late_guards_do_nothing() {
        let ((a, _a), (b, _b)) = (context(), context());
        let poll = enter(&mut Task::new(a, 1), Kind::Poll);
        let kept = enter(&mut Task::new(b, 2), Kind::Scope);
        std::mem::forget(enter(&mut Task::new(b, 3), Kind::Scope));
        pass(7);
        drop(poll);
        pass(100);
        let next = enter(&mut Task::new(a, 4), Kind::Poll);
        pass(1);
        drop(kept);
        assert_eq!(current_task(), 4);
        pass(1);
        drop(next);
        assert_eq!((value(a).0, value(b).0), (2, 7));
    }

    #[test]
    fn deeper_than_the_stack_is_charged_to_what_is_there() {
        let ((a, _a), (b, _b)) = (context(), context());
        let before = overflows();
        let guards: Vec<_> = (0..MAX_DEPTH).map(|_| enter(&mut Task::new(a, 1), Kind::Scope)).collect();
        let too_deep = enter(&mut Task::new(b, 2), Kind::Scope);
        pass(3);
        drop(too_deep);
        drop(guards);
        assert_eq!((value(a).0, value(b).0), (3, 0));
        assert_eq!(overflows(), before + 1);
        assert_eq!(current_task(), 0);
    }

    #[test]
    fn a_panic_ends_the_task() {
        let (a, _a) = context();
        let caught = std::panic::catch_unwind(|| {
            let _guard = enter(&mut Task::new(a, 1), Kind::Poll);
            pass(4);
            std::panic::resume_unwind(Box::new("of the test"));
        });
        assert!(caught.is_err());
        pass(100);
        assert_eq!(value(a).0, 4);
        assert_eq!(current_task(), 0);
    }

    #[test]
    fn a_task_that_runs_since_before_is_counted_from_the_beginning_of_a_counting_to_its_end() {
        let a = Context::new();
        let guard = enter(&mut Task::new(a, 1), Kind::Scope);
        pass(1);
        let counting = Counting::of(a, &[happenings()], Mode::GroupExact).unwrap();
        pass(10);
        assert_eq!(value(a).0, 10);
        let more = Counting::of(a, &[PMU.event("others", 1)], Mode::GroupExact).unwrap();
        CountingPmu::happen(1, 7);
        pass(100);
        assert_eq!(value(a).0, 110);
        drop(counting);
        pass(1000);
        assert_eq!(value(a).0, 110);
        let counting = Counting::of(a, &[happenings()], Mode::GroupExact).unwrap();
        pass(10_000);
        drop(guard);
        pass(100_000);
        drop(counting);
        assert_eq!(value(a).0, 10_110);
        assert_eq!(a.read().iter().find(|count| count.event.name() == "others").unwrap().value, 7);
        drop(more);
    }

    #[test]
    fn a_lazy_thread_keeps_the_last_task_until_another_comes_or_it_parks() {
        let ((a, _a), (b, _b)) = (context(), context());
        set_lazy(true);
        drop(enter(&mut Task::new(a, 1), Kind::Poll));
        pass(1);
        assert_eq!((current_task(), value(a).0), (0, 1));
        let reads = PMU.reads();
        for task in 0..10 {
            let poll = enter(&mut Task::new(a, task), Kind::Poll);
            pass(1);
            drop(poll);
        }
        assert_eq!(value(a).0, 11);
        drop(enter(&mut Task::new(b, 1), Kind::Poll));
        pass(100);
        park();
        pass(1000);
        assert_eq!((value(a).0, value(b).0), (11, 100));
        assert_eq!(a.entries(), 11);
        set_lazy(false);
        // Other tests read too.
        assert!(PMU.reads() >= reads);
    }

    #[test]
    fn a_task_that_ends_when_its_thread_is_lazy_no_more_is_not_kept() {
        let (a, _a) = context();
        set_lazy(true);
        drop(enter(&mut Task::new(a, 1), Kind::Poll));
        let poll = enter(&mut Task::new(a, 2), Kind::Poll);
        pass(1);
        set_lazy(false);
        drop(poll);
        pass(10);
        assert_eq!(value(a).0, 1);
    }

    #[test]
    fn a_task_of_its_own_is_apart_and_can_be_stopped() {
        let (a, _a) = context();
        let mut pinned = Task::new(a, 1);
        pinned.pin();
        let mut plain = Task::new(a, 2);
        assert!(!pinned.is_equivalent(&plain));
        assert!(plain.is_equivalent(&Task::new(a, 3)));
        switch(Some(&mut pinned));
        pass(1);
        switch(Some(&mut plain));
        pass(10);
        plain.disable_all();
        pass(100);
        assert!(plain.is_equivalent(&plain.inherit(4)));
        plain.enable_all();
        assert!(plain.is_equivalent(&Task::new(a, 3)));
        pass(1000);
        plain.add(PMU.event("others", 1)).unwrap();
        assert!(plain.add(PMU.event("others", 1)).is_err());
        CountingPmu::happen(1, 3);
        switch(None);
        pass(10_000);
        assert_eq!(value(a).0, 1011);
        assert_eq!(pinned.counts(), [(happenings(), 1)]);
        assert!(plain.counts().contains(&(PMU.event("others", 1), 3)));
        assert!(!a.read().iter().any(|count| count.event.name() == "others"));
    }
}

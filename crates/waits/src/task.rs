//! A task's own part: its begin, its polls, and its end.
//!
//! # Invariants
//!
//! 1. Only the owner of a [`TaskWaits`] writes its slot, except for what wakers write.
//! 2. Queued, in a poll, runnable and awaiting add up to the age of the task, tick for tick: each
//!    interval begins where the one before ends.
//!
//! # Safety
//!
//! The unsafe code makes references to slots, which stay, and shortens the lifetime of a context.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use dormouse_clock::overhead::TASKS;
use dormouse_clock::{begin_sharing, shared_stamp, stamp, ticks_to_ns};
use dormouse_keys::unlikely;

use crate::answered::{self, RequestEnd};
use crate::arrival::{Arrival, QueuedTicks};
use crate::cancelled::{CancelledRequest, DroppedTask};
use crate::places;
use crate::polling::{Place, Polling};
use crate::primitive::AtomicU64;
use crate::registration::Registration;
use crate::response::{Frames, Head, OPEN};
use crate::rows::{self, Account, Going, Shelf};
use crate::run::{run, run_begun};
use crate::sites::{self, LastPoll, Site};
use crate::slab;
use crate::slot::{Slot, wake};
use crate::stretch::{Around, Stretch, leave};
use crate::trace_context::TraceContext;
use crate::traces;
use crate::wait::Wait;
use crate::waiting::WAITS;
use crate::waker;

/// A task, as the account of groups identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who {
    /// The task's number.
    pub task: u64,
    /// The number of the task's group.
    pub group: u32,
}

/// How a task ends, for the account of latencies and bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskEnd {
    /// The task was no request: its age is no latency.
    NoRequest,
    /// The request was answered, to its end. Without a [head](TaskWaits::head), by its age.
    Answered,
    /// The request ended without an answer, or in the middle of the body: it panicked.
    Unanswered,
    /// The request was dropped before its end, or its answer was that the client is gone.
    Cancelled,
}

/// The times of one task; empty if it began while times were not taken.
#[derive(Debug, Default)]
pub struct TaskWaits(pub(crate) Option<NonNull<Slot>>);

impl UnwindSafe for TaskWaits {}
impl RefUnwindSafe for TaskWaits {}

// SAFETY: slots are shared; what is the owner's moves with it.
unsafe impl Send for TaskWaits {}
// SAFETY: as above: there is nothing to be done with a shared one.
unsafe impl Sync for TaskWaits {}

/// Marks the end of a poll, with the stamp of clock readings made until then, if it has times.
struct Ends(bool);

impl Drop for Ends {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            begin_sharing();
        }
    }
}

impl TaskWaits {
    /// A task that begins now.
    #[inline]
    pub fn begun(who: Who) -> Self {
        Self::begun_after(who, |_| None)
    }

    /// A task that begins now, and answers a request that came before; `arrival` is not called
    /// while times are not taken. The age of the task, which is the latency of the request, begins
    /// with the arrival.
    #[inline]
    pub fn begun_after(who: Who, arrival: impl FnOnce(Around) -> Option<Arrival>) -> Self {
        let mut waits = Self(None);
        if unlikely!(WAITS) {
            waits.begin_now(who, arrival);
        }
        waits
    }

    /// The task is what a runtime was given to spawn at `site`, as a whole: it is polled when it is
    /// woken, and by no other future.
    #[inline]
    pub fn spawned(&mut self, site: Site) {
        if let Some(slot) = self.slot() {
            sites::spawned(slot, site);
        }
    }

    /// For the next poll, which may turn out to be the last one.
    #[inline]
    pub fn last_poll(&self) -> LastPoll {
        LastPoll(self.slot())
    }

    /// The task's slot, if it has one.
    #[inline]
    pub(crate) fn slot(&self) -> Option<&'static Slot> {
        // SAFETY: a slot stays.
        self.0.map(|slot| unsafe { &*slot.as_ptr() })
    }

    /// Polls something; while times are taken, with a waker that sees wakes.
    ///
    /// On a thread without a block, and for a task for which there is no memory, no times are
    /// taken.
    #[inline]
    pub fn poll<T>(&mut self, who: Who, cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        self.poll_inside(who, cx, || (), poll)
    }

    /// Does what [`TaskWaits::poll`] does, inside of the guard that `enter` returns. If `enter` and
    /// the guard's drop read the thread's clock, the poll begins and ends with these readings, and
    /// no others are taken.
    #[inline]
    pub fn poll_inside<T, G>(
        &mut self,
        who: Who,
        cx: &mut Context<'_>,
        enter: impl FnOnce() -> G,
        poll: impl FnOnce(&mut Context<'_>) -> T,
    ) -> T {
        let is_on = unlikely!(WAITS);
        if is_on {
            begin_sharing();
        }
        // Dropped from the last to the first: the poll ends once the caller has left.
        let mut place = Place::empty();
        let _entered = enter();
        if is_on {
            place.is_filled = self.begin_poll(who, cx.waker(), &mut place.polling).is_some();
            if !place.is_filled {
                self.polls_unseen();
            }
        }
        let _ends = Ends(place.is_filled);
        let mut own;
        let cx = match place.get() {
            Some(polling) => {
                // The stack from here on is that of the poll.
                polling.stretch.slot().top.store(ptr::from_ref(polling).addr(), Ordering::Relaxed);
                own = Context::from_waker(polling.lent.waker());
                &mut own
            }
            // SAFETY: the lifetime becomes that of `own`, so that one call serves both. `poll`
            // takes a context of any lifetime, so it cannot put anything into this one that would
            // live shorter than what is there.
            None => unsafe { &mut *ptr::from_mut(cx).cast::<Context<'_>>() },
        };
        poll(cx)
    }

    /// The task is run by hand from now on, on this thread: a stretch that counts as time in a poll
    /// but not as a poll. `None` while times are not taken.
    #[inline]
    pub fn run(&mut self, who: Who) -> Option<Stretch> {
        if unlikely!(WAITS) { self.begin_run(who) } else { None }
    }

    /// Records the trace of the task's caller, which `context` returns; `context` is not called
    /// while times are not taken. A span of this process that becomes current in the task replaces
    /// it. Returns the trace if the task has it from now on.
    #[inline]
    pub fn call(&mut self, context: impl FnOnce() -> Option<TraceContext>) -> Option<TraceContext> {
        if !unlikely!(WAITS) {
            return None;
        }
        let slot = self.slot()?;
        let context = context()?;
        slot.sequence.write(|| slot.traced.call(context)).then_some(context)
    }

    /// The trace to which the task belongs, if that is known.
    pub fn trace(&self) -> Option<TraceContext> {
        self.slot()?.traced.get()
    }

    /// The task is dropped before its end, on this thread; its future still exists. While places
    /// are requested, records where it waits and the caller's stack, for [`TaskEnd::Cancelled`].
    #[inline]
    pub fn cancel(&mut self, who: Who) {
        if unlikely!(WAITS) && places::are_asked() {
            self.begin_drop(who);
        }
    }

    /// The drop that [`TaskWaits::cancel`] has recorded.
    pub fn dropped(&self) -> Option<DroppedTask> {
        let word = self.slot()?.dropped.load(Ordering::Relaxed);
        (word != 0).then(|| DroppedTask::of(word))
    }

    /// Notes that the last poll has made the head of the response: the latency of the request ends
    /// with that poll. Call it for requests, and for streams from their beginning.
    #[inline]
    pub fn head(&mut self, head: Head) {
        if unlikely!(WAITS)
            && let Some((slot, _, account)) = self.polled()
        {
            answered::head(slot, account, head);
        }
    }

    /// The last poll has made frames of the response's body.
    #[inline]
    pub fn frames(&mut self, frames: Frames) {
        if unlikely!(WAITS)
            && let Some((slot, shelf, account)) = self.polled()
        {
            answered::frames(slot, shelf, account, frames);
        }
    }

    /// The slot of a task whose last poll had times of the present run, and this thread's account.
    #[inline(never)]
    fn polled(&self) -> Option<(&'static Slot, &'static Shelf, Account)> {
        let slot = self.slot()?;
        let shelf = rows::own().filter(|_| slot.run.load(Ordering::Relaxed) == run())?;
        Some((slot, shelf, shelf.account(slot.group.load(Ordering::Relaxed))?))
    }

    /// Ends the times of the task: it is switched to by hand.
    #[inline]
    pub fn forget(&mut self) {
        if let Some(slot) = self.0.take() {
            // SAFETY: a slot stays.
            let _no_age = end(unsafe { slot.as_ref() }, None);
        }
    }

    /// Ends the task. Returns the age that a request had when it was [answered](Self::head), or
    /// ended without an answer, in nanoseconds; `None` also if it began while times were not taken.
    #[inline]
    pub fn end(&mut self, as_what: TaskEnd) -> Option<u64> {
        self.end_with(as_what, None)
    }

    /// [Ends](Self::end) the task; its [exemplar](crate::Exemplar) has the outcome, below 255.
    #[inline]
    pub fn end_with(&mut self, as_what: TaskEnd, outcome: Option<u8>) -> Option<u64> {
        // SAFETY: a slot stays.
        self.0.take().and_then(|slot| end(unsafe { slot.as_ref() }, Some((as_what, outcome))))
    }

    // Not cold, as the rest of the way is not: nothing would be inlined.
    #[inline(never)]
    fn begin_now(&mut self, who: Who, arrival: impl FnOnce(Around) -> Option<Arrival>) {
        let _timed = TASKS.begin();
        if let Some(shelf) = rows::own()
            && let Some(account) = shelf.account(who.group)
        {
            // An arrival of an earlier run may be that of any request before.
            let arrival = arrival(Around::of(shelf)).filter(|arrival| arrival.woken >= run_begun());
            let now = stamp();
            let queued = arrival.map(|arrival| QueuedTicks::new(arrival, now));
            let begun = now - queued.map_or(0, QueuedTicks::ticks);
            if self.begin(who, shelf, account, run(), now, begun).is_some()
                && let Some(queued) = queued
            {
                shelf.queue(who.group).count(queued);
            }
        }
    }

    /// Times begin at `now`. `begun`: when the task began, or its request came; 0: before times
    /// were taken.
    #[inline]
    fn begin(
        &mut self,
        who: Who,
        shelf: &Shelf,
        account: Account,
        run: u64,
        now: u64,
        begun: u64,
    ) -> Option<&'static Slot> {
        let slot = slab::take(shelf.index())?;
        slot.share.hold();
        slot.prepare(who.task, who.group);
        restart(slot, shelf, account, run, now, begun);
        slot.turn();
        self.0 = Some(NonNull::from(slot));
        Some(slot)
    }

    /// The slot, with times of that run.
    #[inline]
    fn slot_of(
        &mut self,
        who: Who,
        shelf: &'static Shelf,
        account: Account,
        run: u64,
    ) -> Option<&'static Slot> {
        let Some(slot) = self.slot() else {
            return self.begin(who, shelf, account, run, stamp(), 0);
        };
        let begins = slot.polling.load(Ordering::Relaxed);
        if slot.run.load(Ordering::Relaxed) != run || begins != 0 {
            // In a poll: somebody has forgotten a stretch.
            end_forgotten(Going { slot, begins }, shelf);
            restart(slot, shelf, account, run, stamp(), 0);
        }
        Some(slot)
    }

    /// Fills in a poll; `None`: it has no times.
    fn begin_poll(&mut self, who: Who, runtime: &Waker, into: &mut MaybeUninit<Polling>) -> Option<()> {
        let _timed = TASKS.begin();
        let shelf = rows::own()?;
        let account = shelf.account(who.group)?;
        let run = run();
        let slot = self.slot_of(who, shelf, account, run)?;
        let lent = waker::lend(slot, shelf.start(), runtime)?;
        let stretch = Stretch::begin(slot, shelf, account, run, shared_stamp(), true);
        into.write(Polling { lent, stretch });
        Some(())
    }

    /// A poll gets the runtime's own waker.
    #[cold]
    fn polls_unseen(&self) {
        if let Some(slot) = self.slot() {
            sites::escapes(slot);
        }
    }

    /// Inlined: the stack that drops the task begins at the caller of [`TaskWaits::cancel`].
    #[inline]
    fn begin_drop(&mut self, who: Who) {
        let _timed = TASKS.begin();
        if let Some(shelf) = rows::own()
            && let Some(account) = shelf.account(who.group)
            && let Some(slot) = self.slot_of(who, shelf, account, run())
        {
            places::drops(slot);
        }
    }

    #[cold]
    fn begin_run(&mut self, who: Who) -> Option<Stretch> {
        let _timed = TASKS.begin();
        let shelf = rows::own()?;
        let account = shelf.account(who.group)?;
        let run = run();
        let slot = self.slot_of(who, shelf, account, run)?;
        Some(Stretch::begin(slot, shelf, account, run, stamp(), false))
    }
}

impl Drop for TaskWaits {
    #[inline]
    fn drop(&mut self) {
        let _no_age = self.end(TaskEnd::NoRequest);
    }
}

/// Times begin now: with the task, or in its midst.
#[inline]
fn restart(slot: &Slot, shelf: &Shelf, account: Account, run: u64, now: u64, begun: u64) {
    let store = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
    slot.sequence.write(|| {
        store(&slot.run, run);
        store(&slot.begun, begun);
        store(&slot.since, now);
        store(&slot.polling, 0);
        for word in slot.ticks.iter().chain([&slot.polls, &slot.wakes]) {
            word.store(0, Ordering::Relaxed);
        }
        traces::begin(slot, shelf, run);
    });
    // A new task is to be polled.
    store(&slot.woken, if begun == 0 { 0 } else { wake(now, 0) });
    slot.answer.set(OPEN);
    slot.response.restart();
    slot.registrations.iter().for_each(Registration::restart);
    slot.crowded.store(0, Ordering::Relaxed);
    store(&slot.dropped, 0);
    slot.cpu.set(0, 0);
    account.row.task_begins(run, now);
}

/// The task leaves its slot; returns what [`TaskWaits::end`] does. `None`: it has had no times.
#[inline(never)]
fn end(slot: &'static Slot, as_what: Option<(TaskEnd, Option<u8>)>) -> Option<u64> {
    let _timed = TASKS.begin();
    let shelf = rows::own();
    let account = shelf.and_then(|shelf| Some((shelf, shelf.account(slot.group.load(Ordering::Relaxed))?)));
    let age = account.and_then(|(shelf, account)| end_times(slot, shelf, account, as_what));
    slot.leave();
    waker::end(slot);
    age
}

/// The stretch is over, in which the thread is if nothing was entered inside of it.
#[cold]
pub(crate) fn end_forgotten(going: Going, shelf: &'static Shelf) {
    if shelf.polled().is_some_and(|innermost| innermost.is(going)) {
        let now = stamp();
        shelf.stop(now);
        leave(shelf, going.outer(), now);
    }
}

fn end_times(
    slot: &'static Slot,
    shelf: &'static Shelf,
    account: Account,
    as_what: Option<(TaskEnd, Option<u8>)>,
) -> Option<u64> {
    let begins = slot.polling.load(Ordering::Relaxed);
    if begins != 0 {
        end_forgotten(Going { slot, begins }, shelf);
        return None;
    }
    let run = Some(run()).filter(|run| slot.run.load(Ordering::Relaxed) == *run)?;
    let since = slot.since.load(Ordering::Relaxed);
    let Some((as_what, outcome)) = as_what else {
        account.row.task_ends(run, Wait::new(since, 0, since));
        return None;
    };
    let wait = Wait::new(since, slot.woken.load(Ordering::Relaxed), stamp());
    account.row.task_ends(run, wait);
    let begun = slot.begun.load(Ordering::Relaxed);
    let (task, group) = (slot.task.load(Ordering::Relaxed), slot.group.load(Ordering::Relaxed));
    if as_what == TaskEnd::Cancelled {
        let (dropped, trace) = (slot.dropped.load(Ordering::Relaxed), slot.traced.get());
        let age = (begun != 0).then(|| wait.ends - begun);
        places::cancelled(CancelledRequest { dropped, task, group, age, trace });
    }
    if begun == 0 || as_what == TaskEnd::NoRequest {
        return None;
    }
    let end = RequestEnd { at: wait.ends, is_unanswered: as_what != TaskEnd::Answered, outcome };
    Some(ticks_to_ns(answered::ends(slot, shelf, account, end)))
}

//! The times of a task that is only numbers, as C passes it: by value.
//!
//! Such a task has a slot like any other, and its caller has the slot's index ([`TimesId`]).
//! Nothing keeps a caller from using a copy after the task's end, when the slot is another task's,
//! or two copies at once. So the slot has a word with the number of the task, which no other task
//! of the process ever has. Each function takes the slot by that word before it touches it:
//!
//! | the word is | enter, leave: take it | give it back | end |
//! |---|---|---|---|
//! | 0: the slot is of no such task | – | – | – |
//! | the task's number | adds `TAKEN` | – | 0; the task ends |
//! | with `TAKEN`: in use | – | the number | adds `ENDED` |
//! | with both | – | 0; the task ends | – |
//!
//! Where there is a dash, nothing happens: such an entry has no times.
//!
//! # Invariants
//!
//! 1. The thread that has changed the word from the task's number is the owner of the slot
//!    ([`TaskWaits`]) until it changes the word back, or has ended the task.
//! 2. A stretch of such a task has begun with one entry, whose value has the flag [`ENTERED`]. An
//!    entry inside of it, or on another thread, has none.
//!
//! # Async-signal-safety
//!
//! All functions, on a thread that has entered a group outside of handlers.

use std::mem::{ManuallyDrop, forget};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use dormouse_keys::unlikely;

use crate::rows;
use crate::run::run;
use crate::slab;
use crate::slot::Slot;
use crate::stretch::Stretch;
use crate::task::{TaskEnd, TaskWaits, Who, end_forgotten};
use crate::trace_context::TraceContext;
use crate::waiting::WAITS;

/// The entry has begun a stretch, which ends when the entry is left.
const ENTERED: u32 = 1;
/// The slot is the entry's alone: the task began before times were taken.
const OF_ENTRY: u32 = 2;
/// Above them is the slot's index, and one.
const SLOT: u32 = 2;

/// Flags in the slot's word, below the number of the task.
const TAKEN: u64 = 1;
const ENDED: u64 = 2;
const TASK: u32 = 2;

const _: () = assert!(slab::SLOTS < 1 << (TimesId::BITS - SLOT));

/// Where the times are of a task that is only numbers; the default stands for no times. It can be
/// copied, lost, or used after the task's end: then it has no effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimesId(u32);

impl TimesId {
    /// How many bits a value has.
    pub const BITS: u32 = 23;

    /// The value with these bits.
    #[inline]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The value's bits.
    #[inline]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// A task that begins now.
    #[inline]
    pub fn begun(who: Who) -> Self {
        if unlikely!(WAITS) { Self::begin(who) } else { Self::default() }
    }

    /// The calling thread is in the task from now on. Returns the value for [`TimesId::leave`].
    #[inline]
    #[must_use = "the stretch ends with it"]
    pub fn enter(self, who: Who) -> Self {
        if unlikely!(WAITS) { self.begin_stretch(who) } else { self }
    }

    /// The thread has left the task with that number; `self` is what [`TimesId::enter`] returned.
    #[inline]
    pub fn leave(self, task: u64) {
        if self.0 & ENTERED != 0 {
            self.end_stretch(task);
        }
    }

    /// Ends the task with that number. Returns what [`TaskWaits::end_with`] does.
    #[inline]
    pub fn end(self, task: u64, as_what: TaskEnd, outcome: Option<u8>) -> Option<u64> {
        if self.0 == 0 { None } else { self.end_times(task, as_what, outcome) }
    }

    /// The trace to which the task with that number belongs, if that is known.
    pub fn trace(self, task: u64) -> Option<TraceContext> {
        Taken::by(self.slot()?, task)?.waits().trace()
    }

    fn slot(self) -> Option<&'static Slot> {
        slab::slot((self.0 >> SLOT).checked_sub(1)?)
    }

    #[inline(never)]
    fn begin(who: Who) -> Self {
        word_of(who.task).map_or_else(Self::default, |word| Self::lent(TaskWaits::begun(who), word))
    }

    /// The times are those of a task that is only numbers from now on.
    fn lent(waits: TaskWaits, word: u64) -> Self {
        let Some(slot) = ManuallyDrop::new(waits).slot() else { return Self::default() };
        // Release: pairs with the exchanges of `Taken`.
        slot.numbered.store(word, Ordering::Release);
        Self::of(slot)
    }

    fn of(slot: &Slot) -> Self {
        Self((slot.index.load(Ordering::Relaxed) + 1) << SLOT)
    }

    #[inline(never)]
    fn begin_stretch(self, who: Who) -> Self {
        let known = Self(self.0 & !(ENTERED | OF_ENTRY));
        known.begun_stretch(who).unwrap_or(known)
    }

    fn begun_stretch(self, who: Who) -> Option<Self> {
        if self == Self::default() {
            let (word, mut waits) = (word_of(who.task)?, TaskWaits::default());
            forget(by_hand(&mut waits, who)?);
            return Some(Self(Self::lent(waits, word).0 | ENTERED | OF_ENTRY));
        }
        let slot = self.slot()?;
        let is_free = || slot.polling.load(Ordering::Relaxed) == 0;
        // Looked at before, too: a thread that leaves the task meanwhile could not take the slot.
        let taken = is_free().then(|| Taken::by(slot, who.task))??;
        // The group is that of the task, whatever the caller says.
        if !is_free() || slot.group.load(Ordering::Relaxed) != who.group {
            return None;
        }
        forget(by_hand(&mut taken.waits(), who)?);
        Some(Self(self.0 | ENTERED))
    }

    #[inline(never)]
    fn end_stretch(self, task: u64) {
        let Some(slot) = self.slot() else { return };
        match Taken::by(slot, task) {
            Some(taken) => end_stretch(taken.0),
            None => leave_ended(slot, task),
        }
        if self.0 & OF_ENTRY != 0 {
            let _no_age = self.end_times(task, TaskEnd::NoRequest, None);
        }
    }

    #[inline(never)]
    fn end_times(self, task: u64, as_what: TaskEnd, outcome: Option<u8>) -> Option<u64> {
        let slot = self.slot()?;
        is_to_end(slot, task).then(|| end(slot, as_what, outcome))?
    }
}

/// The word of the slot whose task has that number; `None` for what is no task's number.
fn word_of(task: u64) -> Option<u64> {
    (task != 0 && task <= u64::MAX >> TASK).then_some(task << TASK)
}

/// Takes the task with that number out of the slot, for the caller to end it. False if it is not
/// there, or if another call has taken it, which ends it then.
fn is_to_end(slot: &Slot, task: u64) -> bool {
    let Some(word) = word_of(task) else { return false };
    let exchange = |from, to| slot.numbered.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed);
    // Acquire: pairs with the exchange in the drop of a `Taken`. Between the two exchanges it may
    // have been given back.
    loop {
        match exchange(word, 0) {
            Ok(_) => return true,
            Err(now) if now != word | TAKEN => return false,
            Err(now) if exchange(now, now | ENDED).is_ok() => return false,
            Err(_) => {}
        }
    }
}

/// Ends the slot's task, by its owner.
fn end(slot: &'static Slot, as_what: TaskEnd, outcome: Option<u8>) -> Option<u64> {
    end_stretch(slot);
    TaskWaits(Some(NonNull::from(slot))).end_with(as_what, outcome)
}

/// Ends the stretch in which the slot's task is, if it is in one: as a rule on the thread that has
/// begun it.
fn end_stretch(slot: &'static Slot) {
    if slot.polling.load(Ordering::Relaxed) != 0
        && let Some(shelf) = rows::own()
        && let Some(account) = shelf.account(slot.group.load(Ordering::Relaxed))
    {
        let run = run();
        if slot.run.load(Ordering::Relaxed) == run {
            // The row is of this run: another thread's may not be yet.
            account.row.write(run, || ());
        }
        drop(Stretch::again(slot, shelf, account));
    }
}

/// The thread has left the task, which somebody else has ended, or has taken out of the slot: the
/// thread is charged with it no longer.
#[cold]
fn leave_ended(slot: &'static Slot, task: u64) {
    let is_taken = slot.numbered.load(Ordering::Relaxed) >> TASK == task;
    if let Some(shelf) = rows::own()
        && let Some(innermost) = shelf.polled()
        && (innermost.is_over() || is_taken && ptr::eq(innermost.slot, slot))
    {
        end_forgotten(innermost, shelf);
    }
}

fn by_hand(waits: &mut TaskWaits, who: Who) -> Option<Stretch> {
    waits.run(who).inspect(Stretch::enters_by_hand)
}

/// A slot whose owner is the caller until this is dropped: see invariant 1.
struct Taken(&'static Slot, u64);

impl Taken {
    /// Takes the slot, if the task with that number is there and nobody else has taken it.
    fn by(slot: &'static Slot, task: u64) -> Option<Self> {
        let word = word_of(task)?;
        // Acquire: pairs with the store in `lent` and the exchange in `drop`: the owner before has
        // written all that it does.
        let taken = slot.numbered.compare_exchange(word, word | TAKEN, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Self(slot, word))
    }

    /// The slot's times, which do not end with the value.
    fn waits(&self) -> ManuallyDrop<TaskWaits> {
        ManuallyDrop::new(TaskWaits(Some(NonNull::from(self.0))))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Self(slot, word) = *self;
        // Release: pairs with the exchanges that take the slot.
        let given = slot.numbered.compare_exchange(word | TAKEN, word, Ordering::Release, Ordering::Relaxed);
        if given.is_err() {
            slot.numbered.store(0, Ordering::Relaxed);
            let _no_age = end(slot, TaskEnd::NoRequest, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicU64;
    use std::sync::{Barrier, Once};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::rows::Going;
    use crate::{TaskState, Waiting, living, polled, read_group};

    fn who(group: u32) -> Who {
        static NEXT: AtomicU64 = AtomicU64::new(0x7000_0001);
        Who { task: NEXT.fetch_add(2, Ordering::Relaxed), group }
    }

    /// To the end of the process: a run that another test begins would end ours.
    fn take_times() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| Waiting::start().unwrap().keep());
    }

    fn is_entered(times: TimesId) -> bool {
        times.0 & ENTERED != 0
    }

    fn state(who: Who) -> Option<TaskState> {
        living().find(|task| task.task == who.task).map(|task| task.state)
    }

    /// Neither a stretch nor a wait of the group goes on.
    #[track_caller]
    fn assert_group_is_still(group: u32) {
        let before = read_group(group).unwrap();
        thread::sleep(Duration::from_millis(5));
        assert_eq!(read_group(group).unwrap(), before);
    }

    #[test]
    fn times_are_those_of_a_task_by_hand() {
        take_times();
        let who = who(910);
        let times = TimesId::begun(who);
        assert_eq!(state(who), Some(TaskState::Runnable));
        let entered = times.enter(who);
        assert_eq!(state(who), Some(TaskState::Polled));
        entered.leave(who.task);
        assert_eq!(state(who), Some(TaskState::Awaiting));
        // On another thread.
        thread::spawn(move || times.enter(who).leave(who.task)).join().unwrap();
        let age_ns = times.end(who.task, TaskEnd::Answered, None).unwrap();
        assert_eq!(state(who), None);
        let of = read_group(who.group).unwrap();
        assert_eq!((of.requests.count(), of.requests.max_ns, of.requests.max_task), (1, age_ns, who.task));
        assert_eq!((of.polls.count(), of.awaits.count()), (0, 1));
        assert_group_is_still(who.group);
    }

    #[test]
    fn a_token_of_another_group_enters_nothing() {
        take_times();
        let (own, other) = (who(920), who(921));
        let times = TimesId::begun(own);
        assert!(!is_entered(times.enter(Who { group: other.group, ..own })));
        assert_eq!(state(own), Some(TaskState::Runnable));
        assert!(times.end(own.task, TaskEnd::Answered, None).is_some());
        assert_group_is_still(own.group);
    }

    #[test]
    fn a_beginning_that_a_handler_took_is_left() {
        take_times();
        let who = who(922);
        let times = TimesId::begun(who);
        let entered = times.enter(who);
        // As a handler leaves it that enters and leaves a task between two stores of this thread.
        let shelf = rows::own().unwrap();
        let (polled, charged) = (shelf.polled().unwrap(), shelf.charged_row().unwrap().1);
        shelf.polls(Some(Going { begins: 0, ..polled }), Some(charged));
        entered.leave(who.task);
        assert!(shelf.polled().is_none() && shelf.charged_row().is_none());
        assert!(times.end(who.task, TaskEnd::Answered, None).is_some());
        assert_group_is_still(who.group);
    }

    #[test]
    fn an_outdated_copy_touches_no_other_task() {
        take_times();
        let (old, new) = (who(911), who(912));
        let times = TimesId::begun(old);
        let entered = times.enter(old);
        assert!(times.end(old.task, TaskEnd::Answered, None).is_some());
        assert!(times.end(old.task, TaskEnd::Answered, None).is_none(), "twice");
        // The thread is charged until it leaves.
        entered.leave(old.task);
        assert_group_is_still(old.group);
        // As if the slot were that of such a task now, or of one that Rust polls.
        let (numbered, mut waits) = (TimesId::begun(new), TaskWaits::begun(new));
        let of_rust = TimesId::of(waits.slot().unwrap());
        let seen = || living().filter(|task| task.task == new.task).map(|task| (task.state, task.polls));
        for outdated in [numbered, of_rust] {
            for made_up in [old.task, 0, u64::MAX, new.task | 1 << 62] {
                assert!(!is_entered(outdated.enter(Who { task: made_up, ..new })));
                TimesId(outdated.0 | ENTERED).leave(made_up);
                assert_eq!(outdated.end(made_up, TaskEnd::Answered, None), None);
                assert_eq!(TimesId(u32::MAX).end(made_up, TaskEnd::Answered, None), None);
            }
        }
        assert!(!is_entered(of_rust.enter(new)), "not even by its number");
        assert_eq!(of_rust.end(new.task, TaskEnd::Answered, None), None);
        assert!(seen().eq([(TaskState::Runnable, 0); 2]));
        assert!(waits.end(TaskEnd::Answered).is_some());
        assert!(numbered.end(new.task, TaskEnd::Answered, None).is_some());
    }

    #[test]
    fn one_of_two_ends_ends_the_task() {
        const TASKS: usize = if cfg!(miri) { 20 } else { 2_000 };
        take_times();
        let tasks: Vec<_> = (0..TASKS).map(|_| who(913)).map(|who| (who, TimesId::begun(who))).collect();
        let both = Barrier::new(2);
        let end = || {
            let end = |&(who, times): &(Who, TimesId)| {
                both.wait();
                times.end(who.task, TaskEnd::Answered, None).is_some()
            };
            tasks.iter().map(end).collect::<Vec<_>>()
        };
        let [one, other] =
            thread::scope(|scope| [scope.spawn(end), scope.spawn(end)].map(|it| it.join().unwrap()));
        assert!(one.iter().zip(other).all(|(one, other)| *one != other));
        assert_eq!(read_group(913).unwrap().requests.count(), TASKS as u64);
        // Each slot was given back once.
        let next: Vec<_> = (0..2 * TASKS).map(|_| TaskWaits::begun(who(913))).collect();
        let slots: HashSet<_> = next.iter().map(|waits| waits.0.unwrap()).collect();
        assert_eq!(slots.len(), next.len());
    }

    #[test]
    fn a_task_is_in_one_stretch() {
        take_times();
        let who = who(914);
        let times = TimesId::begun(who);
        let outer = times.enter(who);
        let inner = times.enter(who);
        let elsewhere = thread::spawn(move || times.enter(who)).join().unwrap();
        assert_eq!([outer, inner, elsewhere].map(is_entered), [true, false, false]);
        inner.leave(who.task);
        assert_eq!(state(who), Some(TaskState::Polled));
        outer.leave(who.task);
        assert_eq!(state(who), Some(TaskState::Awaiting));
        times.end(who.task, TaskEnd::NoRequest, None);
        assert_group_is_still(who.group);
    }

    #[test]
    fn a_task_of_before_has_its_stretches() {
        let who = who(915);
        let times = TimesId::default();
        take_times();
        let entered = times.enter(who);
        let task = living().find(|task| task.task == who.task).unwrap();
        assert_eq!((task.state, task.age_ns), (TaskState::Polled, None));
        entered.leave(who.task);
        assert_eq!((state(who), times.end(who.task, TaskEnd::Answered, None)), (None, None));
        let of = read_group(who.group).unwrap();
        assert_eq!((of.poll_ns > 0, of.requests.count()), (true, 0));
        assert_group_is_still(who.group);
    }

    #[test]
    fn an_end_elsewhere_ends_the_stretch() {
        take_times();
        let who = who(916);
        let times = TimesId::begun(who);
        let entered = times.enter(who);
        let age_ns = thread::spawn(move || times.end(who.task, TaskEnd::Answered, None)).join().unwrap();
        assert!(age_ns.is_some());
        entered.leave(who.task);
        assert_eq!(polled().filter(|it| it.task == who.task).count(), 0);
        assert_group_is_still(who.group);
    }

    #[test]
    fn an_end_amid_another_call_comes_after_it() {
        take_times();
        let who = who(917);
        let times = TimesId::begun(who);
        let taken = Taken::by(times.slot().unwrap(), who.task).unwrap();
        assert!(Taken::by(taken.0, who.task).is_none() && !is_entered(times.enter(who)));
        assert_eq!(times.end(who.task, TaskEnd::Answered, None), None);
        assert!(state(who).is_some());
        drop(taken);
        assert_eq!(state(who), None);
        assert_group_is_still(who.group);
    }

    /// Two threads use copies of the same values, without order.
    #[test]
    fn copies_without_order_leave_nothing_behind() {
        const TASKS: usize = if cfg!(miri) { 20 } else { 5_000 };
        take_times();
        let tasks: Vec<_> = (0..TASKS).map(|_| who(918)).map(|who| (who, TimesId::begun(who))).collect();
        let ends = AtomicU64::new(0);
        let uses = || {
            for &(who, times) in &tasks {
                let entered = times.enter(who);
                let ended = times.end(who.task, TaskEnd::Answered, None);
                ends.fetch_add(u64::from(ended.is_some()), Ordering::Relaxed);
                entered.leave(who.task);
            }
        };
        thread::scope(|scope| [scope.spawn(uses), scope.spawn(uses)].map(|it| it.join().unwrap()));
        assert!(
            tasks.iter().all(
                |(who, times)| times.slot().unwrap().numbered.load(Ordering::Relaxed) >> TASK != who.task
            )
        );
        assert_eq!(living().filter(|task| task.group == 918).count(), 0);
        assert_eq!(read_group(918).unwrap().requests.count(), ends.into_inner());
        assert_group_is_still(918);
    }
}

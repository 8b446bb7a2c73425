//! Panics of the host: for the outcomes of tasks, and for a trigger that waits for one.
//!
//! There are two ways to see them. A **hook** in front of the host's is called as each panic
//! begins. If the host has replaced it, the **guards** of tasks see a panic that unwinds them, so
//! panics in tasks are still seen. Both record thread, task and group, and wake the lookout.
//!
//! The process may end by the panic: on the main thread, under `panic = "abort"`, or by a hook of
//! the host's that ends it. None of this is known when the panic begins. So the panicking thread
//! waits for the file, at most 100 ms, and only once in the rule's minimum time between two files.
//!
//! # The hook
//!
//! | the hook is | event | next |
//! |---|---|---|
//! | there | the host sets another hook that keeps it, to call it | there |
//! | there | the host sets another hook in its place: ours is dropped | replaced |
//! | replaced | the host calls `init`, or arms a rule on panics: a new one is put first | there |
//! | replaced | it is called all the same | there |
//!
//! Putting the hook in front takes two calls: one takes the host's hook, the other sets ours. A
//! panic in between meets std's hook, and a hook that another thread sets in between is lost. So
//! this is done only in calls that the host itself makes, never on a thread of ours: a rule that a
//! command arms uses the hook of `init`, or reports that there is none.
//!
//! # One panic, many guards
//!
//! While the hook is there, the guards count nothing: either the hook has seen the panic, or
//! `resume_unwind` continues one that the hook has seen before. Without the hook, a panic passes
//! the guards of its thread's tasks from the innermost to the outermost. The first guard records
//! it, and each stores the task of the next guard on its way ([`NEXT`]), as the hook does.
//!
//! # The last one
//!
//! [`LAST_PANIC`] is behind a [`Sequence`]. A thread that finds it being written leaves it alone:
//! then the other panic is the last. A reader that finds it being written waits for the next wake:
//! the writing thread adds to the count and wakes the lookout after that.
//!
//! # Async-signal-safety
//!
//! A panic may come anywhere, even inside the allocator: recording one allocates nothing, takes no
//! lock, and waits only in a futex.

use std::cell::Cell;
use std::panic::{Location, PanicHookInfo};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_sys::Capability;
use dormouse_sys::futex;
use dormouse_sys::loader::PinError;
use dormouse_sys::process::identity;
use dormouse_sys::sync::{OnceBox, Sequence};

use crate::core::ends;

/// How long a thread that panics waits for its file.
const PATIENCE: Duration = Duration::from_millis(100);

/// How many triggers wait for a panic, and in which process: a fork child has none of them.
static WAITING: AtomicU32 = AtomicU32::new(0);
static PROCESS: AtomicU64 = AtomicU64::new(0);
/// Called at each panic, under the rules of the hook.
static WAKE: OnceBox<fn()> = OnceBox::new();

/// The number of the hook that is called, and of the last one that was made; 0: none.
static HOOK: AtomicU32 = AtomicU32::new(0);
static HOOKS: AtomicU32 = AtomicU32::new(0);

/// How many panics there were, while somebody waited.
static COUNT: AtomicU64 = AtomicU64::new(0);
static LAST_PANIC: LastPanic = LastPanic::new();

/// The process in which the next panic has a file at once; 0: it comes too soon.
static READY: AtomicU64 = AtomicU64::new(0);
/// Moves with each file of a panic that is written, or cannot be.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

/// Whether panics are left alone, because dormouse is asleep.
static PAUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The task whose guard sees next the panic that the thread has noted last; 0: none.
    static NEXT: Cell<u64> = const { Cell::new(0) };
    /// Whether the thread is in our hook: a hook in between may call an older one of ours.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A panic that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenPanic {
    pub(crate) task: u64,
    pub(crate) group: u32,
    pub(crate) tid: u32,
    /// 0 if it is not known.
    pub(crate) line: u32,
}

/// The last panic.
#[derive(Debug)]
struct LastPanic {
    sequence: Sequence,
    task: AtomicU64,
    group: AtomicU32,
    tid: AtomicU32,
    line: AtomicU32,
}

impl LastPanic {
    const fn new() -> Self {
        Self {
            sequence: Sequence::new(),
            task: AtomicU64::new(0),
            group: AtomicU32::new(0),
            tid: AtomicU32::new(0),
            line: AtomicU32::new(0),
        }
    }

    fn write(&self, panic: SeenPanic) {
        let _written = self.sequence.try_write(|| {
            self.task.store(panic.task, Ordering::Relaxed);
            self.group.store(panic.group, Ordering::Relaxed);
            self.tid.store(panic.tid, Ordering::Relaxed);
            self.line.store(panic.line, Ordering::Relaxed);
        });
    }

    /// `None` while it is being written.
    fn read(&self) -> Option<SeenPanic> {
        let (panic, is_whole) = self.sequence.read(|| SeenPanic {
            task: self.task.load(Ordering::Relaxed),
            group: self.group.load(Ordering::Relaxed),
            tid: self.tid.load(Ordering::Relaxed),
            line: self.line.load(Ordering::Relaxed),
        });
        is_whole.then_some(panic)
    }
}

/// A trigger that waits for panics, as long as it lives.
#[derive(Debug)]
pub(crate) struct PanicWait(());

impl PanicWait {
    /// Begins. `wake` is called at each panic.
    ///
    /// # Errors
    ///
    /// When this object is being unloaded: its code has to stay.
    pub(crate) fn begin(wake: fn()) -> Result<Self, PinError> {
        dormouse_sys::loader::pin_self()?;
        WAKE.get_or_init(|| Box::new(wake));
        if PROCESS.load(Ordering::Relaxed) != identity::id() {
            WAITING.store(0, Ordering::Relaxed);
            // A thread of the parent's may have been in the midst of it.
            LAST_PANIC.sequence.reset();
            // Release: pairs with the load in `is_awaited`.
            PROCESS.store(identity::id(), Ordering::Release);
        }
        WAITING.fetch_add(1, Ordering::Relaxed);
        Ok(Self(()))
    }

    /// How many panics were seen so far.
    pub(crate) fn count() -> u64 {
        // Acquire: pairs with the addition in `note`.
        COUNT.load(Ordering::Acquire)
    }

    /// How many panics were seen so far, and the last one; `None` while that is being written.
    pub(crate) fn seen() -> Option<(u64, SeenPanic)> {
        let count = Self::count();
        LAST_PANIC.read().map(|last| (count, last))
    }
}

impl Drop for PanicWait {
    fn drop(&mut self) {
        if WAITING.fetch_sub(1, Ordering::Relaxed) == 1 {
            READY.store(0, Ordering::Relaxed);
        }
        written();
    }
}

/// From now on a panic has a file at once, and its thread waits for that.
pub(crate) fn ready() {
    // Release: pairs with the exchange in `note`.
    READY.store(identity::id(), Ordering::Release);
}

/// The file of a panic is written, or will not be.
pub(crate) fn written() {
    // Release: pairs with the load in `wait`. The file is in its place.
    WRITTEN.fetch_add(1, Ordering::Release);
    futex::wake(&WRITTEN, i32::MAX as u32);
}

/// Leaves panics alone from now on, or no longer. A thread that waits for its file goes on.
pub(crate) fn pause(paused: bool) {
    PAUSED.store(paused, Ordering::Relaxed);
    written();
}

/// Whether somebody waits for panics of this process.
pub(crate) fn is_awaited() -> bool {
    // Acquire: pairs with the store in `begin`. The other two are of this process.
    PROCESS.load(Ordering::Acquire) == identity::id()
        && !PAUSED.load(Ordering::Relaxed)
        && WAITING.load(Ordering::Relaxed) != 0
}

/// Puts a hook before the host's, unless it is there. For calls that the host itself makes.
pub(crate) fn put_first() {
    if HOOK.load(Ordering::Relaxed) != 0 || std::thread::panicking() {
        return;
    }
    // The hook stays, and its code has to.
    if dormouse_sys::loader::pin_self().is_err() {
        return;
    }
    let own = Hook(HOOKS.fetch_add(1, Ordering::Relaxed) + 1);
    HOOK.store(own.0, Ordering::Relaxed);
    let hosts = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| own.call(info, &hosts)));
}

/// The reason why some panics are not seen, and what to do about it.
pub(crate) fn warning() -> Option<(&'static str, &'static str)> {
    (is_awaited() && HOOK.load(Ordering::Relaxed) == 0).then_some((
        "the host's hook has replaced dormouse's: panics outside of tasks are not seen",
        "call dormouse::init() after the host's hook is set, or let that call the one before it",
    ))
}

/// Whether panics are seen, while somebody waits for them.
pub(crate) fn capability() -> Option<Capability> {
    is_awaited().then(|| match warning() {
        None => Capability::ok("panics", "dormouse's hook is set, for the triggers that wait for a panic"),
        Some((why, fix)) => Capability::limited("panics", why).with_fix(fix),
    })
}

/// A hook of ours, with its number. The host drops it by setting another one in its place.
struct Hook(u32);

impl Hook {
    fn call(&self, info: &PanicHookInfo<'_>, hosts: &(dyn Fn(&PanicHookInfo<'_>) + Sync + Send)) {
        if IS_INSIDE.replace(true) {
            return hosts(info);
        }
        if HOOK.load(Ordering::Relaxed) == 0 {
            HOOK.store(self.0, Ordering::Relaxed);
        }
        ends::panic_seen(dormouse_events::current_task());
        if is_awaited() {
            NEXT.set(dormouse_events::nesting().task);
            note(info.location().map_or(0, Location::line));
        }
        hosts(info);
        IS_INSIDE.set(false);
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        // An older hook, which the host has kept until now, is not the one that counts.
        let _older = HOOK.compare_exchange(self.0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Sees a panic that unwinds it. Made inside of the task, and forgotten where nothing panics, so
/// that it costs nothing there.
#[derive(Debug)]
#[must_use = "dropped, it takes its drop for a panic"]
pub(crate) struct Unwound;

impl Unwound {
    /// Runs something, which may unwind.
    #[inline]
    pub(crate) fn unless<T>(f: impl FnOnce() -> T) -> T {
        let unwound = Self;
        let value = f();
        std::mem::forget(unwound);
        value
    }
}

impl Drop for Unwound {
    #[inline]
    fn drop(&mut self) {
        // Not by its address, for which a poll would need room on its stack.
        passes();
    }
}

/// Does what [`Unwound`] does, as a guard that is always dropped.
#[derive(Debug)]
pub(crate) struct UnwoundGuard {
    /// A guard that begins while its thread unwinds is none that is unwound by this panic.
    was_panicking: bool,
}

impl UnwoundGuard {
    #[inline]
    pub(crate) fn begin() -> Self {
        Self { was_panicking: std::thread::panicking() }
    }
}

impl Drop for UnwoundGuard {
    #[inline]
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            passes();
        }
    }
}

/// A panic passes the guard of the current task.
#[cold]
#[inline(never)]
fn passes() {
    // The C library ends threads by unwinding, too.
    if !std::thread::panicking() {
        return;
    }
    let nesting = dormouse_events::nesting();
    // Where tasks nest too deep, this may be any of those beyond the last that has a place.
    if nesting.is_full || nesting.task == 0 {
        return;
    }
    ends::panic_unwinds(nesting.task);
    // It may be caught there, and answered for.
    ends::panic_seen(nesting.around);
    if WAITING.load(Ordering::Relaxed) == 0 {
        return;
    }
    let is_noted = NEXT.replace(nesting.around) == nesting.task;
    if !is_noted && HOOK.load(Ordering::Relaxed) == 0 {
        note(0);
    }
}

/// There is a panic on this thread.
fn note(line: u32) {
    if !is_awaited() {
        return;
    }
    LAST_PANIC.write(SeenPanic {
        task: dormouse_events::current_task(),
        group: dormouse_events::current_context(),
        tid: identity::tid(),
        line,
    });
    let process = identity::id();
    // Before the lookout sees the panic, and is ready for the next one. Acquire: pairs with the
    // store in `ready`, before which the file of the panic before is counted.
    let waits = READY.compare_exchange(process, 0, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let written = WRITTEN.load(Ordering::Relaxed);
    // Release: a reader that sees it sees this panic above, or a later one.
    COUNT.fetch_add(1, Ordering::Release);
    if let Some(wake) = WAKE.get() {
        wake();
    }
    if waits {
        wait(written);
    }
}

/// Waits until another file is there than the first `written`.
fn wait(written: u32) {
    let begun = Instant::now();
    // Acquire: pairs with the addition in `written`.
    while WRITTEN.load(Ordering::Acquire) == written {
        let Some(left) = PATIENCE.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else { return };
        let Ok(left) = left.try_into() else { return };
        let _ = futex::wait(&WRITTEN, written, Some(&left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_waits_a_moment_for_its_file() {
        dormouse_testkit::in_child(|| {
            let _waits = PanicWait::begin(|| ()).unwrap();
            let time = || {
                let begun = Instant::now();
                note(0);
                begun.elapsed()
            };
            ready();
            // Nobody writes it.
            let first = time();
            assert!((PATIENCE..20 * PATIENCE).contains(&first), "{first:?}");
            // Those that follow have none, however busy the machine.
            let next = (0..20).map(|_| time()).min().unwrap();
            assert!(next < PATIENCE, "{next:?}");
        });
    }

    #[test]
    fn the_last_panic_is_never_torn() {
        let (last, over) = (LastPanic::new(), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            for first in [1, 2, 3] {
                let (last, over) = (&last, &over);
                scope.spawn(move || {
                    for n in (first..).step_by(3) {
                        last.write(SeenPanic { task: u64::from(n), group: n, tid: n, line: n });
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            let (mut changes, mut before) = (0, 0);
            // Processors that take turns, as an emulator's may, show few changes in a second.
            let end = Instant::now() + Duration::from_secs(1);
            while changes < 10 || changes < 10_000 && Instant::now() < end {
                let Some(SeenPanic { task, group, tid, line }) = last.read() else { continue };
                if [u64::from(group), u64::from(tid), u64::from(line)] != [task; 3] {
                    over.store(true, Ordering::Relaxed);
                    panic!("{task} {group} {tid} {line}");
                }
                changes += u32::from(task != before);
                before = task;
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

//! Panics of the host, for a trigger that waits for one.
//!
//! Two things see them. A **hook**, which the first such trigger puts before the host's, is called
//! as each panic begins. The **guards** of tasks see a panic that unwinds them, so panics in tasks
//! are seen also if the hook is not called. Both note thread, task and group, and wake the lookout.
//!
//! The process may end by the panic: on the main thread, under `panic = "abort"`, or by a hook of
//! the host's that ends it. None of this is known when the panic begins. So the thread that panics
//! waits for the file, for 100 ms at most, and once in the time that the rule has between two
//! files.
//!
//! # The hook
//!
//! | the hook is | event | next |
//! |---|---|---|
//! | there | the host sets another hook that keeps it, to call it | there |
//! | there | the host sets another hook in its place: ours is dropped | replaced |
//! | there | a guard sees a panic of which the hook was not told | replaced |
//! | replaced | a trigger is armed, or `init` is called: a new one is put first | there |
//! | replaced | it is called all the same | there |
//!
//! Between taking the host's hook and setting ours there is a moment with std's.
//!
//! # One panic, many guards
//!
//! A panic passes the guards of its thread's tasks from the innermost to the outermost. The
//! hook, or the first guard, notes it and stores the task of the next guard on its way ([`NEXT`]),
//! and so does each guard.
//!
//! # Async-signal-safety
//!
//! A panic may come anywhere, over the allocator too: noting one allocates nothing, takes no lock,
//! and waits in a futex alone.

use std::cell::Cell;
use std::panic::{Location, PanicHookInfo};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_sys::Capability;
use dormouse_sys::loader::PinError;
use dormouse_sys::process::identity;
use once_cell::race::OnceBox;
use rustix::thread::futex;

/// How long a thread that panics waits for its file.
const PATIENCE: Duration = Duration::from_millis(100);

/// How many triggers wait for a panic, and in which process: a fork child has none of them.
static WAITING: AtomicU32 = AtomicU32::new(0);
static PROCESS: AtomicU64 = AtomicU64::new(0);
/// Called at each panic, under the rules of the hook.
static WAKE: OnceBox<fn()> = OnceBox::new();

/// The number of the hook that is called, and of the last one that was made; 0: none.
static HOOK: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicU32 = AtomicU32::new(0);

/// How many panics there were, while somebody waited.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Of the last one.
static TASK: AtomicU64 = AtomicU64::new(0);
static GROUP: AtomicU32 = AtomicU32::new(0);
static THREAD: AtomicU32 = AtomicU32::new(0);
static LINE: AtomicU32 = AtomicU32::new(0);

/// The process in which the next panic has a file at once; 0: it comes too soon.
static READY: AtomicU64 = AtomicU64::new(0);
/// Moves with each file of a panic that is written, or cannot be.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The task whose guard sees next the panic that the thread has noted last; 0: none.
    static NEXT: Cell<u64> = const { Cell::new(0) };
    /// Whether the thread is in our hook: a hook in between may call an older one of ours.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Panics that were seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenPanics {
    pub(crate) count: u64,
    /// Of the last one.
    pub(crate) task: u64,
    pub(crate) group: u32,
    pub(crate) tid: u32,
    /// 0 if it is not known.
    pub(crate) line: u32,
}

/// A trigger that waits for panics, as long as it lives.
#[derive(Debug)]
pub(crate) struct PanicWait(());

impl PanicWait {
    /// Begins. `wake` is called at each panic.
    ///
    /// # Errors
    ///
    /// When this object is being unloaded: the hook stays, and its code has to.
    pub(crate) fn begin(wake: fn()) -> Result<Self, PinError> {
        dormouse_sys::loader::pin_self()?;
        WAKE.get_or_init(|| Box::new(wake));
        if PROCESS.swap(identity::id(), Ordering::Relaxed) != identity::id() {
            WAITING.store(0, Ordering::Relaxed);
        }
        WAITING.fetch_add(1, Ordering::Relaxed);
        put_first();
        Ok(Self(()))
    }

    /// The panics that were seen so far.
    pub(crate) fn seen() -> SeenPanics {
        SeenPanics {
            // Acquire: pairs with the addition in `note`.
            count: COUNT.load(Ordering::Acquire),
            task: TASK.load(Ordering::Relaxed),
            group: GROUP.load(Ordering::Relaxed),
            tid: THREAD.load(Ordering::Relaxed),
            line: LINE.load(Ordering::Relaxed),
        }
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
    READY.store(identity::id(), Ordering::Relaxed);
}

/// The file of a panic is written, or will not be.
pub(crate) fn written() {
    // Release: pairs with the load in `wait`. The file is in its place.
    WRITTEN.fetch_add(1, Ordering::Release);
    let _ = futex::wake(&WRITTEN, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Whether somebody waits for panics of this process.
fn is_awaited() -> bool {
    WAITING.load(Ordering::Relaxed) != 0 && PROCESS.load(Ordering::Relaxed) == identity::id()
}

/// Puts a hook before the host's, if somebody waits for panics and the one before was replaced.
pub(crate) fn put_first() {
    if !is_awaited() || HOOK.load(Ordering::Relaxed) != 0 || std::thread::panicking() {
        return;
    }
    let own = Hook(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    HOOK.store(own.0, Ordering::Relaxed);
    let hosts = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| own.call(info, &hosts)));
}

/// The reason why some panics are not seen, and what to do about it.
pub(crate) fn complaint() -> Option<(&'static str, &'static str)> {
    (is_awaited() && HOOK.load(Ordering::Relaxed) == 0).then_some((
        "the host's hook has replaced dormouse's, or a panic was passed on by resume_unwind, which calls \
         none: panics outside of tasks may not be seen",
        "call dormouse::init() after the host's hook is set, or let that call the one before it",
    ))
}

/// Whether panics are seen, while somebody waits for them.
pub(crate) fn capability() -> Option<Capability> {
    is_awaited().then(|| match complaint() {
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
        NEXT.set(dormouse_events::nesting().task);
        note(info.location().map_or(0, Location::line));
        hosts(info);
        IS_INSIDE.set(false);
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        // Of an older one nobody is told any more.
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

/// As [`Unwound`], for a guard that is dropped in any case.
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
    // Of tasks that nest too deep nobody knows which one this is.
    if nesting.is_full || nesting.task == 0 || WAITING.load(Ordering::Relaxed) == 0 {
        return;
    }
    if NEXT.replace(nesting.around) != nesting.task {
        HOOK.store(0, Ordering::Relaxed);
        note(0);
    }
}

/// There is a panic on this thread.
fn note(line: u32) {
    if !is_awaited() {
        return;
    }
    TASK.store(dormouse_events::current_task(), Ordering::Relaxed);
    GROUP.store(dormouse_events::current_context(), Ordering::Relaxed);
    THREAD.store(identity::tid(), Ordering::Relaxed);
    LINE.store(line, Ordering::Relaxed);
    let written = WRITTEN.load(Ordering::Relaxed);
    let process = identity::id();
    // Before the lookout sees the panic, and is ready for the next one.
    let waits = READY.compare_exchange(process, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    // Release: who sees it sees the rest, or that of a later one.
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
        let _ = futex::wait(&WRITTEN, futex::Flags::PRIVATE, written, Some(&left));
    }
}

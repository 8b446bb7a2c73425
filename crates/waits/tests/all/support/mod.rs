//! Things that the tests share: a future as a task with times, and a runtime that counts its
//! wakers.
#![allow(unsafe_code)]

pub(crate) mod stacks;

use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use dormouse_waits::{LivingTask, TaskWaits, Who, living};

/// A number that no other task of the process has.
pub(crate) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A future with times.
pub(crate) struct Timed<F> {
    future: Pin<Box<F>>,
    pub(crate) who: Who,
    waits: TaskWaits,
}

impl<F> Timed<F> {
    pub(crate) fn new(group: u32, future: F) -> Self {
        Self::numbered(number(), group, future)
    }

    /// With a number that [`number`] gave.
    pub(crate) fn numbered(task: u64, group: u32, future: F) -> Self {
        let who = Who { task, group };
        Self { future: Box::pin(future), who, waits: TaskWaits::begun(who) }
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.waits.poll(this.who, cx, |cx| this.future.as_mut().poll(cx))
    }
}

/// A future as a task of a group of its own.
pub(crate) fn timed<F: Future>(future: F) -> Timed<F> {
    Timed::new(3, future)
}

/// The task of that number, which is there.
pub(crate) fn living_task(number: u64) -> LivingTask {
    living().find(|task| task.task == number).unwrap()
}

/// A runtime's task that counts its wakers, and how often they wake it.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    pub(crate) alive: AtomicUsize,
    pub(crate) wakes: AtomicUsize,
    /// The next clone panics.
    pub(crate) panics: AtomicBool,
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

impl Counting {
    /// A waker that does not count.
    pub(crate) fn waker(self: &Arc<Self>) -> ManuallyDrop<Waker> {
        let data = Arc::as_ptr(self).cast();
        // SAFETY: the vtable is of these, which tests keep; a clone counts the Arc.
        ManuallyDrop::new(unsafe { Waker::from_raw(RawWaker::new(data, &VTABLE)) })
    }

    pub(crate) fn alive(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }

    pub(crate) fn wakes(&self) -> usize {
        self.wakes.load(Ordering::SeqCst)
    }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    let runtime = data.cast::<Counting>();
    // SAFETY: a waker's data, whose Arc is counted or kept.
    unsafe {
        assert!(!(*runtime).panics.swap(false, Ordering::SeqCst), "as the test wants it");
        Arc::increment_strong_count(runtime);
        (*runtime).alive.fetch_add(1, Ordering::SeqCst);
    }
    RawWaker::new(data, &VTABLE)
}

unsafe fn wake(data: *const ()) {
    // SAFETY: as above.
    unsafe {
        wake_by_ref(data);
        drop_waker(data);
    }
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: as above.
    unsafe { &*data.cast::<Counting>() }.wakes.fetch_add(1, Ordering::SeqCst);
}

unsafe fn drop_waker(data: *const ()) {
    let runtime = data.cast::<Counting>();
    // SAFETY: as above.
    unsafe {
        assert_ne!((*runtime).alive.fetch_sub(1, Ordering::SeqCst), 0, "dropped twice");
        Arc::decrement_strong_count(runtime);
    }
}

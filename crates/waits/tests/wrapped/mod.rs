//! A future whose polls are seen.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use dormouse_waits::{LivingTask, TaskWaits, Who, living};

pub(crate) struct Wrapped<F> {
    future: Pin<Box<F>>,
    who: Who,
    waits: TaskWaits,
}

impl<F> Wrapped<F> {
    pub(crate) fn new(task: u64, group: u32, future: F) -> Self {
        let who = Who { task, group };
        Self { future: Box::pin(future), who, waits: TaskWaits::begun(who) }
    }
}

impl<F: Future> Future for Wrapped<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.waits.poll(this.who, cx, |cx| this.future.as_mut().poll(cx))
    }
}

/// The task of that number, which is there.
pub(crate) fn task(number: u64) -> LivingTask {
    living().find(|task| task.task == number).unwrap()
}

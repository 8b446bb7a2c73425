//! Requests that begin in a task of the runtime other than the connection's.

use std::pin::Pin;
use std::task::{Context, Poll};

use dormouse_waits::Arrival;
use pin_project_lite::pin_project;

use crate::core::arrival::noted_in;

pin_project! {
    /// A future in which a request begins that the connection's task has read: made there, and
    /// polled by any task.
    #[derive(Debug)]
    pub struct Arrived<F> {
        #[pin]
        future: F,
        arrival: Option<Arrival>,
    }
}

impl<F> Arrived<F> {
    pub(super) fn new(future: F, arrival: Option<Arrival>) -> Self {
        Self { future, arrival }
    }
}

impl<F: Future> Future for Arrived<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Some(arrival) = *this.arrival else { return this.future.poll(cx) };
        let (polled, has_begun) = noted_in(arrival, || this.future.poll(cx));
        if has_begun {
            // Requests that begin later in the same stream have come later.
            *this.arrival = None;
        }
        polled
    }
}

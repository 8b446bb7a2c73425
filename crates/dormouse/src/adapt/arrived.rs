//! Requests that begin in a task of the runtime other than the connection's.

use std::pin::Pin;
use std::task::{Context, Poll};

use dormouse_waits::{Arrival, are_times_taken, around};
use pin_project_lite::pin_project;

use crate::core::arrival::arrival;
#[cfg(any(feature = "axum", feature = "hyper"))]
use crate::core::arrival::noted_in;

/// When a request came that begins here; `None` while times are not taken.
#[inline]
pub(super) fn arrival_here() -> Option<Arrival> {
    if are_times_taken() { around().and_then(|around| arrival(around, None)) } else { None }
}

/// When the request came that a clone of a service answers: hyper clones a service where it has
/// read a request, and calls the clone in the task of the request. A sleeping instruction for each
/// clone while times are not taken.
#[derive(Debug, Default)]
pub(super) struct ClonedFor(Option<Arrival>);

impl Clone for ClonedFor {
    #[inline]
    fn clone(&self) -> Self {
        Self(arrival_here())
    }
}

impl ClonedFor {
    /// The clone is called. If it were called again, that request came later.
    pub(super) fn take(&mut self) -> Option<Arrival> {
        self.0.take()
    }
}

#[cfg(any(feature = "axum", feature = "hyper"))]
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

#[cfg(any(feature = "axum", feature = "hyper"))]
impl<F> Arrived<F> {
    pub(super) fn new(future: F, arrival: Option<Arrival>) -> Self {
        Self { future, arrival }
    }
}

#[cfg(any(feature = "axum", feature = "hyper"))]
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

//! Arrivals of requests that a clone of a service answers.

use dormouse_waits::Arrival;

use crate::core::arrival::arrival_here;

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

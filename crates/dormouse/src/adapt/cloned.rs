//! Arrivals of requests that a clone of a service answers.

use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_waits::Arrival;

use crate::core::arrival::{is_outside, noted};

/// When the request came that a clone of a service answers, if that was noted: hyper clones a
/// service where it has read a request. It calls the clone in the task of the request, or later,
/// when the note is another connection's; and middleware may clone the clone by then. A sleeping
/// instruction for each clone while times are not taken.
#[derive(Debug, Default)]
pub(super) struct ClonedFor {
    arrival: Option<Arrival>,
    /// It was cloned for a later request. Middleware may call it for that one, and keep the clone.
    is_old: AtomicBool,
}

impl Clone for ClonedFor {
    #[inline]
    fn clone(&self) -> Self {
        if is_outside() { self.cloned_outside() } else { Self::default() }
    }
}

impl ClonedFor {
    #[inline(never)]
    fn cloned_outside(&self) -> Self {
        let noted = noted();
        if noted.is_some() && self.arrival.is_some() && self.arrival != noted {
            self.is_old.store(true, Ordering::Relaxed);
        }
        Self { arrival: noted.or(self.known()), is_old: AtomicBool::new(false) }
    }

    fn known(&self) -> Option<Arrival> {
        self.arrival.filter(|_| !self.is_old.load(Ordering::Relaxed))
    }

    /// The clone is called. If it were called again, that request came later.
    pub(super) fn take(&mut self) -> Option<Arrival> {
        let known = self.known();
        self.arrival = None;
        known
    }
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use dormouse_waits::Waiting;

    use super::*;
    use crate::core::arrival::note;

    #[test]
    fn an_arrival_is_of_one_request() {
        let one = ::tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _waiting = Waiting::start().unwrap();
        let [first, second] = [1, 2].map(|woken| Some(Arrival { received: None, woken }));
        one.block_on(async {
            let request = async move {
                note(first);
                let mut service = ClonedFor::default().clone();
                note(None);
                assert_eq!(service.clone().take(), first, "by a later clone");
                note(second);
                let mut other = service.clone();
                note(None);
                assert_eq!(service.clone().take(), None, "a later request has come");
                assert_eq!((service.take(), other.take(), other.take()), (None, second, None));
            };
            ::tokio::spawn(request).await.unwrap();
        });
    }
}

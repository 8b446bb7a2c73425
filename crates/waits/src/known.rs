//! The places where a task waits, from those in its registrations.

use std::sync::atomic::Ordering;

use crate::primitive::AtomicU64;
use crate::registration::PART;
use crate::slot::{PLACES, STAMP_BITS, Slot, wake_stamp};

/// See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Their numbers; 0 for none.
    pub(crate) places: [u32; PLACES],
    /// How many entries of `places` to search for one of them: mostly one.
    first: usize,
    /// How many polls ago its leaves have taken wakers there.
    pub(crate) polls_ago: u32,
    /// Leaves have found no registration since.
    pub(crate) has_more: bool,
}

/// The registration whose waker has woken a task, by the wake.
pub(crate) fn woken_by(woken: u64) -> Option<usize> {
    ((woken >> STAMP_BITS) as usize).checked_sub(1)
}

/// Whether the task was woken in its last poll, by the lent waker, at `woken`; `since` is the end
/// of that poll.
pub(crate) fn is_yield(woken: u64, since: u64) -> bool {
    woken != 0 && woken_by(woken).is_none() && wake_stamp(woken) <= since
}

impl Known {
    /// The places of the task's present wait; none while it is in a poll.
    pub(crate) fn now(slot: &Slot) -> Self {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        match (load(&slot.polling), load(&slot.woken)) {
            (0, woken) if woken == 0 || is_yield(woken, load(&slot.since)) => Self::of(slot),
            (0, woken) => Self::woken(slot, woken),
            // A wait that is over has no place any more.
            _ => Self::default(),
        }
    }

    /// Those where a task awaits something that has been polled: of the last poll that has taken
    /// wakers that are out.
    pub(crate) fn of(slot: &Slot) -> Self {
        let polls = slot.polls.load(Ordering::Relaxed) as u32;
        let mut known = Self { polls_ago: u32::MAX / 2, ..Self::default() };
        let mut has_any = false;
        for (registration, to) in slot.registrations.iter().zip(0..) {
            let polls_ago = match registration.poll() {
                // Registrations are filled in order, so those behind an unused one are
                // unused, too.
                0 if registration.place() == 0 => break,
                0 => continue,
                PART => 0,
                // If the task is polled meanwhile, the registration's poll has not ended yet: the
                // number of polls since wraps around, and the registration is not taken.
                poll => polls.wrapping_sub(poll),
            };
            if polls_ago > known.polls_ago || !registration.is_taken() {
                continue;
            }
            if polls_ago < known.polls_ago {
                known.places = [0; PLACES];
            }
            has_any = true;
            known.polls_ago = polls_ago;
            known.places[to] = registration.place();
            known.first = to + 1;
        }
        if !has_any {
            return Self::default();
        }
        let crowded = slot.crowded.load(Ordering::Relaxed);
        known.has_more = crowded != 0 && polls.wrapping_sub(crowded) <= known.polls_ago;
        known
    }

    /// The place of the waker that has woken the task; none if that waker has no registration.
    pub(crate) fn woken(slot: &Slot, woken: u64) -> Self {
        let mut known = Self::default();
        if let Some(n) = woken_by(woken) {
            (known.places[0], known.first) = (slot.registrations[n].place(), 1);
        }
        known
    }

    /// The places that the time of a wait, present or ended, is charged to.
    pub(crate) fn charged(self) -> impl Iterator<Item = u32> + Clone {
        self.places.into_iter().take(if self.polls_ago == 0 { self.first } else { 0 })
    }
}

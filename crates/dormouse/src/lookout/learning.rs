//! Functions are learned while threads of the service walk their own stacks, where wakers are
//! taken.
//!
//! Such a walk notes the functions of which nothing has been learned. The lookout has them be
//! learned: soon after others were met, and else five times a second. (Samplers of profiles, and
//! readers of watches, do the same.) It does so while places are requested, which the process knows
//! and not the thread: a lookout that begins after another was killed goes on. With each pass it
//! forgets cancelled requests that are old.

use std::time::{Duration, Instant};

use dormouse_waits::forget_old_cancelled;
use dormouse_waits::places::{are_asked, learn};

/// The times between two passes of what walks have met.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// The pause after the last pass.
#[derive(Debug, Default)]
pub(super) struct Learning(Duration);

impl Learning {
    pub(super) fn is_needed() -> bool {
        are_asked()
    }

    /// Learns, and gives the moment of the next pass.
    pub(super) fn step(&mut self) -> Option<Instant> {
        if !Self::is_needed() {
            return None;
        }
        let (shortest, longest) = PAUSES;
        forget_old_cancelled();
        self.0 = if learn() { shortest } else { (self.0 * 2).clamp(shortest, longest) };
        Some(Instant::now() + self.0)
    }
}

#[cfg(all(test, target_os = "linux", not(any(dormouse_fallback, miri))))]
#[allow(unsafe_code, reason = "a thread that ends in the midst")]
mod tests {
    use std::io;

    use dormouse_sys::keeper::Duty as _;
    use dormouse_waits::Placing;

    use super::super::{LOOKOUT, Watched};

    #[test]
    fn the_next_lookout_goes_on_learning() {
        dormouse_testkit::in_child(|| {
            let placing = Placing::start().unwrap();
            // SAFETY: ends the lookout's thread alone, as a filter would.
            let killed = LOOKOUT.ask(|_| unsafe { libc::syscall(libc::SYS_exit, 0) });
            assert!(killed.is_err(), "{killed:?}");
            // Another feature begins it again, and ends.
            LOOKOUT.begin(|_| Ok::<_, io::Error>(())).unwrap().unwrap();
            LOOKOUT.end(Watched::NOTHING);
            let has_work = || LOOKOUT.ask(|engines| !engines.is_empty()).unwrap();
            assert!(has_work(), "functions are to be learned");
            drop(placing);
            assert!(!has_work());
        });
    }
}

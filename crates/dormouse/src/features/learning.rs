//! Functions are learned while threads of the service walk their own stacks, where wakers are
//! taken.
//!
//! Such a walk notes the functions of which nothing has been learned. The lookout learns them: soon
//! after others were met, and else five times a second. (Profiles, and readers of watches, learn by
//! themselves.)

use std::io;
use std::time::{Duration, Instant};

use dormouse_sys::process::identity;
use dormouse_waits::Placing;
use dormouse_waits::places::learn;

use crate::lookout::{Engine, LOOKOUT, Watched};

/// The times between two looks at what walks have met.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Functions are learned as long as it lives.
#[derive(Debug)]
pub(crate) struct Learner {
    process: u64,
}

impl Learner {
    /// Begins to learn. Without the lookout nothing is learned.
    pub(crate) fn begin() -> Option<Self> {
        let begun = LOOKOUT.begin_later(|engines| engines.get::<Learning>().users += 1);
        begun.is_ok().then(|| Self { process: identity::id() })
    }
}

impl Drop for Learner {
    fn drop(&mut self) {
        // A child of a fork has no lookout.
        if self.process == identity::id() {
            LOOKOUT.end(Watched::by::<Learning>(0));
        }
    }
}

/// Places that are recorded, and learned.
#[derive(Debug)]
pub(crate) struct Placed {
    _placing: Placing,
    _learner: Option<Learner>,
}

impl Placed {
    /// Begins to record places.
    ///
    /// # Errors
    ///
    /// Those of [`Placing::start`].
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Self { _placing: Placing::start()?, _learner: Learner::begin() })
    }
}

/// The engine that learns.
#[derive(Debug, Default)]
struct Learning {
    users: usize,
    pause: Duration,
}

impl Engine for Learning {
    fn is_empty(&self) -> bool {
        self.users == 0
    }

    fn step(&mut self, now: Instant, _: &mut [Box<dyn Engine>]) -> Option<Instant> {
        if self.users == 0 {
            return None;
        }
        let (shortest, longest) = PAUSES;
        let has_learned = learn();
        self.pause = if has_learned { shortest } else { (self.pause * 2).clamp(shortest, longest) };
        // At most a tenth of a CPU.
        Some(Instant::now() + self.pause.max(now.elapsed() * 9))
    }

    fn end(&mut self, _: u64) {
        // The lookout may have been killed since, and begun again.
        self.users = self.users.saturating_sub(1);
    }
}

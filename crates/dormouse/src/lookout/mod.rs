//! The lookout: the thread `dormouse-look`, which looks at the service while somebody wants it
//! looked at, and writes the files of what it saw, so that the agent never waits for a disk.
//!
//! Each line relies on those above it alone.
//!
//! | module | is |
//! |---|---|
//! | `long_polls` | the tasks that do not come back from a poll |
//! | `recording` | the flight recorders, each with the newest records |
//! | `triggers` | the rules by which a recorder's file is written |
//!
//! Each has a `step`, which does what is due and gives the moment of its next look, and an `end`,
//! which ends what its number stands for.

pub(crate) mod long_polls;
pub(crate) mod recording;
pub(crate) mod triggers;

use std::time::{Duration, Instant};

use dormouse_sys::keeper::{Duty, Keeper};
use dormouse_sys::process::fork::Phase;

use self::long_polls::LongPollWatches;
use self::recording::Recording;
use self::triggers::Triggers;

/// The name of the thread.
const NAME: &str = "dormouse-look";

/// The thread lists `/proc`, and writes files.
const STACK: usize = 256 * 1024;

/// The memory that a step may take, beside that of queues and files, which ask by themselves.
const STEP: usize = 512 * 1024;

/// The longest sleep.
const ASLEEP: Duration = Duration::from_secs(10);

/// The lookout of this process.
pub(crate) static LOOKOUT: Keeper<Watchman> = Keeper::new(Phase::Lookout, NAME, STACK, STEP);

/// The duty of the lookout: all that somebody wants looked at.
#[derive(Debug, Default)]
pub(crate) struct Watchman {
    pub(crate) long_polls: LongPollWatches,
    pub(crate) recording: Recording,
    pub(crate) triggers: Triggers,
}

/// One thing that is looked at, by its number among those of its kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Watched {
    LongPolls(u64),
    Recorder(u64),
    Trigger(u64),
}

impl Duty for Watchman {
    type Id = Watched;

    fn is_empty(&self) -> bool {
        self.long_polls.is_empty() && self.recording.is_empty() && self.triggers.is_empty()
    }

    fn step(&mut self) -> Duration {
        let Self { long_polls, recording, triggers } = self;
        let now = Instant::now();
        let looks = [long_polls.step(now), recording.step(now)];
        // Last: it judges what the others have just seen.
        let next = looks.into_iter().chain([triggers.step(now, recording)]).flatten().min();
        next.map_or(ASLEEP, |next| next.saturating_duration_since(Instant::now()).min(ASLEEP))
    }

    fn end(&mut self, watched: Watched) {
        match watched {
            Watched::LongPolls(number) => self.long_polls.end(number),
            Watched::Recorder(number) => self.recording.end(number),
            Watched::Trigger(number) => self.triggers.end(number),
        }
    }
}

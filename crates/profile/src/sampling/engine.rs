//! The interface of the engines: each takes the samples of one kind, on the keeper's thread.

use std::fmt::Debug;
use std::time::Duration;

use dormouse_protocol::profile::{Profile, ProfileKind};

use crate::Error;
use crate::options::Options;

/// An engine, with the profiles that it takes, each by its number.
pub(super) trait Engine: Debug {
    /// The kind of its samples.
    fn kind(&self) -> ProfileKind;

    /// Begins a profile, whose reader is to be told `note`.
    fn start(&mut self, number: u64, options: &Options, note: Option<&str>) -> Result<(), Error>;

    /// Upper bound for the bytes that [`Engine::read`] allocates.
    fn size(&self, number: u64) -> usize;

    /// The profile so far; `None` if there is none of this number.
    fn read(&mut self, number: u64) -> Option<Profile>;

    /// Ends a profile. The last one takes all timers, events and listeners with it.
    fn end(&mut self, number: u64);

    /// Reads the samples that threads have left, and from time to time looks for new threads.
    /// Returns the time until the next step; `None` while no profile is taken.
    fn step(&mut self) -> Option<Duration>;
}

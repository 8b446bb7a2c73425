//! The keeper of watches: the thread `dormouse-watch`, which runs the [`Duty`], because a signal
//! handler must not arm and disarm, and a host thread should not. It starts with the first watch
//! and ends with the last.

use std::io;

use dormouse_sys::keeper::{Keeper, KeeperError};
use dormouse_sys::process::fork::Phase;
use dormouse_sys::trap::PerfTrap;

use super::duty::Duty;
use super::entry;
use crate::Error;

/// The thread makes system calls, and reads lines of `/proc`.
const STACK: usize = 256 * 1024;

/// The memory that an errand or a step takes where a thousand threads are armed.
const STEP: usize = 64 * 1024;

pub(super) static KEEPER: Keeper<Duty> = Keeper::new(Phase::Arming, "dormouse-watch", STACK, STEP);

/// The watcher of this copy: a hit. Signal-safe.
pub(super) fn on_trap(trap: &PerfTrap) {
    if entry::on_trap(trap) {
        KEEPER.wake();
    }
}

impl From<KeeperError> for Error {
    fn from(error: KeeperError) -> Self {
        let reason = match error {
            KeeperError::Reentrant | KeeperError::Forked => return Self::Reentrant,
            KeeperError::Thread(source) => return Self::Keeper(source),
            KeeperError::NoMemory => return Self::Keeper(io::ErrorKind::OutOfMemory.into()),
            KeeperError::Killed => "it was killed".to_owned(),
            KeeperError::Ended => "it has ended".to_owned(),
            other => other.to_string(),
        };
        Self::Keeper(io::Error::other(reason))
    }
}

//! A profile that is being taken, of any kind.

use dormouse_sys::Capability;

use crate::sampling::{self, Session};
use crate::{Error, Options, Profile, ProfileKind};

/// Whether this process can be profiled: a line of the report of what works here.
pub fn capability() -> Capability {
    sampling::capability()
}

/// CPU time that this process's threads have spent in the handler that samples their CPU time since
/// the process began, in nanoseconds. The kernel's part of such a signal is not in it.
pub fn spent_ns() -> u64 {
    sampling::spent_ns()
}

/// A profile that is being taken. It ends when this is dropped.
#[derive(Debug)]
pub struct Profiling {
    kind: ProfileKind,
    session: Session,
}

impl Profiling {
    /// Begins to take samples.
    ///
    /// # Cost
    ///
    /// [`ProfileKind::Cpu`]: starts a thread if nobody profiles yet, which makes a timer for each
    /// thread of the process: some microseconds each. Returns when all are made. The others: see
    /// [`Options`].
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`]: this system, or a limit of this process, does not allow any samples.
    /// If only some threads are left out, the profile contains their number
    /// ([`Profile::coverage`]).
    pub fn start(options: &Options) -> Result<Self, Error> {
        let session = Session::start(options)?;
        Ok(Self { kind: options.kind, session })
    }

    /// The profile so far. Groups have only numbers ([`crate::ProfileGroup::id`]): the caller fills
    /// in their names and accounts. In a child of a fork, and if the sampler was killed, the
    /// profile is empty, with a note of the reason.
    pub fn read(&self) -> Profile {
        self.session.read().unwrap_or_else(|error| {
            let mut empty = Profile { kind: self.kind, ..Profile::default() };
            empty.coverage.notes.push(error.to_string());
            empty
        })
    }
}

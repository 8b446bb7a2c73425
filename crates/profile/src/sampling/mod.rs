//! Samples of this process, of each kind.
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | `arch` | everything that differs between processors |
//! | `walk` | the callers of interrupted code |
//! | `copy` | a copy of its stack, for callers by tables |
//! | `queue` | records on their way to the sampler |
//! | `sum` | what profiles of allocations and faults have in common |
//! | `engine` | what the engines of all kinds have in common |
//! | `cpu`, `alloc`, `faults` | the engines, one for each kind |
//! | `duty`, `keeper` | all engines, and their thread |
//! | `asleep`, `chain` | a thread that sleeps, and the callers on its stack |
//! | `stack_reader` | the stack of one thread |

mod alloc;
mod arch;
mod asleep;
mod chain;
mod copy;
mod cpu;
mod duty;
mod engine;
mod faults;
mod keeper;
mod queue;
mod stack_reader;
mod sum;
mod walk;

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_protocol::profile::ProfileKind;
use dormouse_sys::process::identity;

use crate::options::Options;
use crate::{Error, Profile};

pub(crate) use cpu::{capability, spent_ns};
pub(crate) use stack_reader::StackSource;

/// A profile that is being taken. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    kind: ProfileKind,
    number: u64,
    /// The process that takes it.
    process: u64,
}

impl Session {
    /// Begins to take samples.
    pub(crate) fn start(options: &Options) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (kind, options) = (options.kind, options.clone());
        keeper::KEEPER.begin(move |duty| duty.start(number, &options))??;
        Ok(Self { kind, number, process: identity::id() })
    }

    /// The profile so far; none if the sampler is gone.
    pub(crate) fn read(&self) -> Result<Profile, Error> {
        let (kind, number) = (self.kind, self.number);
        if self.process != identity::id() {
            return Err(Error::Unavailable("the profile is the parent's".into()));
        }
        keeper::KEEPER.ask(move |duty| duty.read(kind, number))?
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (kind, number) = (self.kind, self.number);
        if self.process == identity::id() {
            keeper::KEEPER.end((kind, number));
        }
    }
}

//! The protocol by which text changes. [`Protocol::Flip`] is the default and all that most readers
//! need; the other is in `text/int3/`.

use std::num::NonZero;
use std::time::Duration;

use dormouse_sys::environment::variables;
use dormouse_sys::loader;

use crate::Error;

/// How often a batch by int3 is tried again while threads block SIGTRAP for a moment.
const RETRIES: u32 = 100;

/// The first pause between two tries, and the longest: each is twice as long as the one before.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(2)];

/// The protocol by which a batch changes the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Protocol {
    /// One byte for each site and one barrier. No trap, no handler: safe for threads that block
    /// every signal.
    ///
    /// Other threads may fetch a site between the store and the barrier. No vendor guarantees that
    /// they run either the old instruction or the new one; just-in-time compilers have relied on it
    /// for decades (`docs/design/keys.md`).
    #[default]
    Flip,
    /// The kernel's, and the only one that Intel has stood by (`DORMOUSE_KEYS=int3`): `int3` at
    /// every site, then the tails, then the first bytes, a barrier after each. Threads that come by
    /// meanwhile trap, and go on where the new instruction leads.
    ///
    /// A batch is refused while a thread blocks SIGTRAP. If a thread blocks it a moment later and
    /// runs into an `int3`, the kernel kills that thread, and the process with it. A batch is also
    /// refused while SIGTRAP has another handler than this crate's, because that handler may not
    /// pass our traps on. A program that needs a handler installs it first; then it gets all other
    /// traps.
    Int3 {
        /// Sites that are written under the same three barriers.
        capacity: NonZero<usize>,
    },
}

impl Protocol {
    /// Int3 with room for 256 sites, as in the kernel's own vector.
    pub const INT3: Self = Self::Int3 { capacity: NonZero::new(256).unwrap() };

    /// The protocol of batches that name none: flip, or the one in the environment variable
    /// `DORMOUSE_KEYS`.
    pub fn of_process() -> Self {
        named().unwrap_or_default()
    }

    /// The fault in the value of `DORMOUSE_KEYS`, or `None`. If it is wrong, the default is used.
    pub fn config_error() -> Option<String> {
        named().err()
    }

    /// Carries out `change`, which takes the patch lock and gives it up again.
    ///
    /// By int3 threads come back into this copy's code long after a batch, so its object is pinned
    /// before. And a thread that is just being made, that makes a process, or that is in a handler
    /// of ours, blocks every signal for a moment; so a change that is refused for that is tried
    /// again, without the patch lock meanwhile, because forks and other batches wait for it.
    pub(crate) fn carry_out<T>(self, mut change: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        if self == Self::Flip {
            return change();
        }
        loader::pin_self()?;
        let [mut pause, longest] = PAUSES;
        for _ in 0..RETRIES {
            match change() {
                Err(Error::TrapsBlocked { threads }) if threads.iter().all(|thread| thread.for_a_moment) => {
                    std::thread::sleep(pause);
                    pause = longest.min(2 * pause);
                }
                done => return done,
            }
        }
        change()
    }
}

/// The protocol that `DORMOUSE_KEYS` named when the environment was read.
fn named() -> Result<Protocol, String> {
    variables().keys.as_deref().map_or(Ok(Protocol::Flip), |name| parse(&name.to_string_lossy()))
}

/// The protocol of this name, or the fault in the name.
fn parse(name: &str) -> Result<Protocol, String> {
    match name {
        "" | "flip" => Ok(Protocol::Flip),
        "int3" => Ok(Protocol::INT3),
        other => Err(format!("DORMOUSE_KEYS={other} is no protocol: use flip or int3")),
    }
}

#[cfg(all(test, not(loom)))]
#[allow(unsafe_code, reason = "an environment that changes")]
mod tests {
    use super::*;

    #[test]
    fn names_of_protocols_are_parsed_or_complained_about() {
        assert_eq!(parse("flip"), Ok(Protocol::Flip));
        assert_eq!(parse("int3"), Ok(Protocol::INT3));
        assert!(parse("sledgehammer").unwrap_err().contains("sledgehammer"));
    }

    #[test]
    fn a_variable_that_changes_later_changes_nothing() {
        dormouse_testkit::in_child(|| {
            assert_eq!((Protocol::of_process(), Protocol::config_error()), (Protocol::Flip, None));
            // SAFETY: the other threads of this child look at no environment.
            unsafe { std::env::set_var("DORMOUSE_KEYS", "sledgehammer") };
            assert_eq!((Protocol::of_process(), Protocol::config_error()), (Protocol::Flip, None));
        });
    }
}

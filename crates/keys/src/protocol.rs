//! By which protocol text changes.

use std::num::NonZero;
use std::sync::OnceLock;

/// By which protocol a batch changes the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Protocol {
    /// One byte a site and one barrier. No trap, no handler: safe for threads that block every signal. Sites that
    /// differ in more than a byte (5-byte nops, in objects built elsewhere) are changed by int3 all the same.
    #[default]
    Flip,
    /// The kernel's: `int3` at every site, then the tails, then the first bytes, a barrier after each. Threads
    /// that come by meanwhile trap, and go on where the new instruction leads. Refused while a thread
    /// blocks SIGTRAP; one that blocks it a moment later and runs into an `int3` is killed by the kernel,
    /// and the process with it. Refused, too, while another handler than this crate's has SIGTRAP: there is no
    /// asking whether it would pass on what is ours. Whoever needs one installs it first, and gets what is not ours.
    Int3 {
        /// Sites that are written under the same three barriers.
        capacity: NonZero<usize>,
    },
}

impl Protocol {
    /// The kernel's, with room for as many sites as its own vector has.
    pub const INT3: Self = Self::Int3 { capacity: Self::CAPACITY };

    /// Also for those sites of other batches that only int3 can change.
    pub(crate) const CAPACITY: NonZero<usize> = NonZero::new(256).unwrap();

    /// What this process uses where a batch says nothing: flip, or what `DORMOUSE_KEYS` names.
    pub fn of_process() -> Self {
        *OF_PROCESS.get_or_init(|| {
            std::env::var("DORMOUSE_KEYS").ok().as_deref().map_or(Ok(Self::Flip), parse).unwrap_or_default()
        })
    }

    /// What is wrong with `DORMOUSE_KEYS`, if anything; then the default is used.
    pub fn complaint() -> Option<String> {
        parse(&std::env::var("DORMOUSE_KEYS").ok()?).err()
    }
}

static OF_PROCESS: OnceLock<Protocol> = OnceLock::new();

/// What `DORMOUSE_KEYS` says, or what is wrong with it.
fn parse(name: &str) -> Result<Protocol, String> {
    match name {
        "" | "flip" => Ok(Protocol::Flip),
        "int3" => Ok(Protocol::INT3),
        other => Err(format!("DORMOUSE_KEYS={other} is no protocol: use flip or int3")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_a_protocol_or_is_complained_about() {
        assert_eq!(parse("flip"), Ok(Protocol::Flip));
        assert_eq!(parse("int3"), Ok(Protocol::INT3));
        assert!(parse("sledgehammer").unwrap_err().contains("sledgehammer"));
    }
}

//! Operations: their names, answers and bounds.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// An operation of the agent. The type of its request implements this.
///
/// ```
/// use dormouse_protocol::{KeysRequest, Verb};
///
/// assert_eq!(KeysRequest::NAME, "keys");
/// ```
pub trait Verb: Into<crate::Op> + Serialize + DeserializeOwned + Send + 'static {
    /// Its name on the wire, as in `"op":"keys"`.
    const NAME: &'static str;

    /// The name under which [`Hello::ops`](crate::Hello::ops) lists it: its own, or that of the
    /// verb that begins the activity on which it reports.
    const ANNOUNCED_AS: &'static str = Self::NAME;

    /// How messages describe a service that is too old for it, such as "knows no profiles".
    const LACKS: &'static str;

    /// The memory that has to be there before the agent begins. A client whose request finds less
    /// is disconnected: an allocation that fails would end the service.
    const MEMORY: Memory;

    /// The longest answer that a client reads, in bytes.
    const LONGEST_ANSWER: usize = LONG_ANSWER;

    /// Whether an agent that is asleep carries it out.
    const WHILE_ASLEEP: bool = false;

    /// The answer.
    type Answer: Serialize + DeserializeOwned + Send + 'static;
}

/// The bound of answers that list keys, groups, tasks or threads: far above a hundred thousand
/// of them, far below a machine's memory.
pub(crate) const LONG_ANSWER: usize = 64 << 20;

/// The bound of all others.
pub(crate) const SHORT_ANSWER: usize = 4 << 20;

/// Memory that a request takes in the service, as data structures and as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// A fixed number of bytes.
    pub bytes: usize,
    /// Things of which each one takes more memory.
    pub each: &'static [Each],
}

/// Things of which a service may have many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Each {
    /// Keys.
    Key,
    /// Groups.
    Group,
    /// Threads.
    Thread,
    /// Groups whose times are taken for this client.
    GroupTimes,
    /// Groups with times, whether times are being taken now or not.
    GroupWithTimes,
    /// Lines that take locks, by group.
    LockLine,
}

impl Memory {
    /// For a request and an answer without long lists.
    pub(crate) const SOME: Self = Self { bytes: 512 * 1024, each: &[] };

    /// No fixed memory, only some for each of these.
    pub(crate) const fn each(each: &'static [Each]) -> Self {
        Self { each, ..Self::SOME }
    }

    /// A fixed number of bytes, and nothing more.
    pub(crate) const fn bytes(bytes: usize) -> Self {
        Self { bytes, each: &[] }
    }
}

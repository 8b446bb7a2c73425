//! Stalled time of a group by its causes: a part of the answer to `stat`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The stalled time of one group by its causes, as far as these are known: lower bounds, in
/// nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StallsRow {
    /// Polls of the group waited for a CPU.
    pub cpu_wait_ns: u64,
    /// The part of that for which a CPU limit may be the reason, an upper bound; absent where no
    /// limit can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_ns: Option<u64>,
    /// Polls of the group slept in the kernel.
    pub asleep_ns: u64,
    /// The part of that in which they waited for block devices; absent where the kernel does not
    /// count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_io_ns: Option<u64>,
    /// The names of the system calls in which they slept, `page fault`, and `other`; each with its
    /// time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<(Cow<'static, str>, u64)>,
}

impl StallsRow {
    pub(super) fn since(&self, before: &Self) -> Self {
        let part = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before.unwrap_or(0)));
        let within = self.within.iter().map(|(name, ns)| {
            let before = before.within.iter().find(|(of, _)| of == name);
            (name.clone(), ns.saturating_sub(before.map_or(0, |(_, ns)| *ns)))
        });
        Self {
            cpu_wait_ns: self.cpu_wait_ns.saturating_sub(before.cpu_wait_ns),
            throttled_ns: part(self.throttled_ns, before.throttled_ns),
            asleep_ns: self.asleep_ns.saturating_sub(before.asleep_ns),
            block_io_ns: part(self.block_io_ns, before.block_io_ns),
            within: within.filter(|(_, ns)| *ns > 0).collect(),
        }
    }

    /// The call or state in which the polls slept most, with its time.
    pub fn most(&self) -> Option<&(Cow<'static, str>, u64)> {
        self.within.iter().max_by_key(|(_, ns)| *ns)
    }
}

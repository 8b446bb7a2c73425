//! Pressure: for how long nothing could go on for want of memory, I/O or a CPU.

use serde::{Deserialize, Serialize};

/// The pressure of the host and of the service's control group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pressure {
    /// The pressure on all tasks of the control group. Absent where the kernel does not show it:
    /// the group is of version 1, or the outermost one, or the kernel keeps no such account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<PressureRow>,
    /// The pressure on all tasks of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<PressureRow>,
}

/// For how long all tasks that had something to do waited for a resource at once, in nanoseconds.
/// An absent one is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PressureRow {
    /// A CPU. The kernel does not count it for the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// Memory: it was reclaimed, or read again from a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_ns: Option<u64>,
    /// I/O.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_ns: Option<u64>,
}

impl Pressure {
    /// The pressure since `before`, an earlier reading. A figure that was not known then is not
    /// known.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let since = |now: Option<PressureRow>, before: Option<PressureRow>| Some(now?.since(before?));
        Self { group: since(self.group, before.group), host: since(self.host, before.host) }
    }
}

impl PressureRow {
    fn since(self, before: Self) -> Self {
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            cpu_ns: since(self.cpu_ns, before.cpu_ns),
            memory_ns: since(self.memory_ns, before.memory_ns),
            io_ns: since(self.io_ns, before.io_ns),
        }
    }

    /// The resources for which all waited at some time, with that time.
    pub fn notable(self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [("a CPU", self.cpu_ns), ("memory", self.memory_ns), ("I/O", self.io_ns)];
        all.into_iter().filter_map(|(name, ns)| Some((name, ns.filter(|ns| *ns > 0)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_pressure_stays_unknown() {
        let row = |memory_ns| Some(PressureRow { memory_ns, ..PressureRow::default() });
        let (before, now) = (
            Pressure { group: row(Some(5)), host: None },
            Pressure { group: row(Some(9)), host: row(Some(3)) },
        );
        let since = now.since(before);
        assert_eq!((since.group, since.host), (row(Some(4)), None));
        assert_eq!(since.group.unwrap().notable().collect::<Vec<_>>(), [("memory", 4)]);
    }
}

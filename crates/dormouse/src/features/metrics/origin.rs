//! The process to which metrics belong.

use std::time::{SystemTime, UNIX_EPOCH};

use dormouse_protocol::Hello;

use crate::core::group::cut;
use crate::features::hello::hello;

/// A second.
const NANOSECONDS: u128 = 1_000_000_000;

/// A process, as its metrics identify it.
///
/// Made once for each process: counters with another start are other counters, and a value made
/// later has another start if the clock was set meanwhile.
///
/// ```
/// let own = dormouse::metrics::Origin::own();
/// assert_eq!(own.pid, std::process::id());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The process's name.
    pub name: String,
    /// The process id in the reader's namespace.
    pub pid: u32,
    /// The process's user, if that is another one than the reader's: a label of its points.
    pub user: Option<String>,
    /// The version of dormouse in the process.
    pub version: String,
    /// When the process started, and its counters were zero, in nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// An id that is unique among all processes, also of other hosts and times.
    pub instance: String,
}

impl Origin {
    /// This process.
    pub fn own() -> Self {
        let hello = hello();
        Self::of(hello.pid, hello.start_ticks, &hello)
    }

    /// The process that has sent `hello`, on this host. Its name is cut to 128 bytes, because each
    /// of its points contains it.
    ///
    /// `pid` and `start_ticks` (field 22 of `/proc/PID/stat`) come from the reader's kernel. Those
    /// in `hello` identify nothing: each container has a process 1, and an agent may lie.
    pub fn of(pid: u32, start_ticks: u64, hello: &Hello) -> Self {
        let host = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = String::from_utf8_lossy(&host);
        Self {
            name: cut(&hello.name).to_owned(),
            pid,
            user: None,
            version: cut(&hello.version).to_owned(),
            start_unix_ns: start_unix_ns(start_ticks),
            instance: format!("{}:{pid}:{start_ticks}", host.trim_end()),
        }
    }

    /// Whether `hello` comes from a process with its name and version.
    pub fn is_of(&self, hello: &Hello) -> bool {
        self.name == cut(&hello.name) && self.version == cut(&hello.version)
    }
}

/// The time that is this many ticks after boot: the same for all readers, until the clock is set.
fn start_unix_ns(ticks: u64) -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<u64>().ok());
    let Some(boot) = boot else { return unix_ns() };
    let start = u128::from(ticks) * NANOSECONDS / u128::from(rustix::param::clock_ticks_per_second().max(1));
    u64::try_from(u128::from(boot) * NANOSECONDS + start).unwrap_or(u64::MAX)
}

/// Now, in nanoseconds since 1970.
pub(super) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

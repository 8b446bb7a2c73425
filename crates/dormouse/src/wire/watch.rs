//! Watches: what to watch, what came of it, and who holds the debug registers.
//!
//! A client asks for a watch, and then for its report as often as it likes. The watch is the
//! connection's and ends with it, as a lease of `on` does. Addresses are the service's own; names
//! of variables, functions and lines are the client's business, which has the files.

use dormouse_breakpoints::{Access, Coverage, WatchHit, WatchReport, WatchSite, WatchSpec, WatchState};
use serde::{Deserialize, Serialize};

/// Memory to watch, and the hits to report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchWish {
    /// Its first byte.
    pub addr: u64,
    /// How many bytes.
    pub len: u64,
    /// The kind of access.
    pub access: WireAccess,
    /// A name for reports and for others whom it is in the way of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Only hits after which the value is another one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// Only hits after which the value, under `mask`, is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equals: Option<u64>,
    /// The bits that `changed` and `equals` look at; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<u64>,
    /// Only hits of tasks of the group of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The watch ends with so many hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hits: Option<u64>,
    /// Hits per second over which it rests for a while; absent: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<u32>,
    /// Takes turns with others in the registers that are left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flexible: bool,
    /// Reports have single hits, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
}

impl WatchWish {
    /// The wish in the words of the mechanism, with the number of its group.
    pub fn spec(&self, group: Option<u32>) -> WatchSpec {
        // An address or a length that does not fit is refused there as any other that is none.
        let [addr, len] = [self.addr, self.len].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let mut spec = WatchSpec::new(addr, len, self.access.into());
        if !self.name.is_empty() {
            spec = spec.named(&self.name);
        }
        if self.changed {
            spec = spec.changed();
        }
        if let Some(value) = self.equals {
            spec = spec.equals(value);
        }
        if let Some(mask) = self.mask {
            spec = spec.masked(mask);
        }
        if let Some(group) = group {
            spec = spec.in_group(group);
        }
        if let Some(most) = self.max_hits {
            spec = spec.max_hits(most);
        }
        if let Some(rate) = self.rate_per_s {
            spec = spec.rate(rate);
        }
        if self.flexible { spec.flexible() } else { spec }
    }
}

/// A kind of access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WireAccess {
    /// Writes.
    #[default]
    #[serde(rename = "w")]
    Write,
    /// Reads and writes.
    #[serde(rename = "rw")]
    ReadWrite,
    /// Execution of the instruction at the address.
    #[serde(rename = "x")]
    Execute,
}

impl From<WireAccess> for Access {
    fn from(of: WireAccess) -> Self {
        match of {
            WireAccess::Write => Self::Write,
            WireAccess::ReadWrite => Self::ReadWrite,
            WireAccess::Execute => Self::Execute,
        }
    }
}

impl From<Access> for WireAccess {
    fn from(of: Access) -> Self {
        match of {
            Access::Write => Self::Write,
            Access::ReadWrite => Self::ReadWrite,
            Access::Execute => Self::Execute,
        }
    }
}

/// Answer to `watch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watching {
    /// The number of the watch, which no other watch of the process has now.
    pub number: u32,
}

/// Answer to `watch-report`: what a watch has seen so far, and what it could not see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WatchRow {
    /// Its name.
    pub name: String,
    /// The first byte that is watched.
    pub addr: u64,
    /// How many bytes.
    pub len: u64,
    /// The kind of access.
    pub access: WireAccess,
    /// Whether it goes on.
    pub state: WireState,
    /// Hits that the kernel has counted.
    pub hits: u64,
    /// Hits that were looked at, one by one.
    pub delivered: u64,
    /// Hits of these that the filters let through.
    pub passed: u64,
    /// Hits that were counted and not looked at.
    pub lost: u64,
    /// The share that was seen.
    pub coverage: CoverageRow,
    /// Why it was disarmed for good before its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_because: Option<String>,
    /// The places in the code that the hits came from, with the most first.
    pub sites: Vec<SiteRow>,
    /// Hits at places for which there was no room in `sites`.
    #[serde(default)]
    pub other_sites: u64,
    /// Single hits since the last answer, the oldest first, if the client asked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stream: Vec<HitRow>,
}

/// Whether a watch goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WireState {
    /// Armed, or taking turns.
    Armed,
    /// Disarmed for a while, because there were too many hits.
    Resting,
    /// At its end.
    Over,
    /// A state that this side does not know.
    #[serde(other)]
    Unknown,
}

/// The share of what happened that a watch could see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageRow {
    /// Threads on which it is armed.
    pub threads_armed: u32,
    /// Threads that there are.
    pub threads_alive: u32,
    /// How long it was armed, in nanoseconds.
    pub armed_ns: u64,
    /// How long it has been there, in nanoseconds.
    pub wall_ns: u64,
    /// How often it rested.
    pub rests: u32,
    /// Hits that a thread learned of later than they happened, because it blocked the signal.
    #[serde(default)]
    pub late: u64,
    /// Hits whose value could not be read.
    #[serde(default)]
    pub unread: u64,
}

/// A place in the code, in one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteRow {
    /// How many hits.
    pub hits: u64,
    /// The last of them.
    #[serde(flatten)]
    pub last: HitRow,
}

/// One hit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HitRow {
    /// The address at which the thread went on: after the instruction, for a watch of execution at
    /// it.
    pub ip: u64,
    /// The group of the task that ran; absent: no group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The value that the watch had seen before; absent where nobody could look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<u64>,
    /// The value after the hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<u64>,
    /// The thread, by its number in the service's own namespace.
    pub tid: u32,
    /// The task; 0: none.
    #[serde(default)]
    pub task: u64,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub mono_ns: u64,
    /// Return addresses, the innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<u64>,
}

/// Answer to `slots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotsAnswer {
    /// Debug registers that a thread has.
    pub registers: u32,
    /// How many of them no watch takes unless it asks for all: those of debuggers.
    pub spare: u32,
    /// The watches, and the registers that each takes.
    pub held: Vec<SlotRow>,
}

/// A watch that takes registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRow {
    /// Its number.
    pub number: u32,
    /// Its name, or its address.
    pub name: String,
    /// How many registers it takes of each thread.
    pub registers: u32,
    /// The group while whose tasks run it takes them; absent: always, on all threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether it takes turns with others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flexible: bool,
    /// Its holder.
    #[serde(flatten)]
    pub holder: SlotOwner,
}

/// The holder of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotOwner {
    /// The kind of holder.
    #[serde(default)]
    pub by: super::HeldBy,
    /// The user.
    pub uid: u32,
    /// The client process; 0 if it is the service itself.
    pub pid: u32,
}

impl WatchRow {
    /// The row of a report and of single hits, with the names that `group` has for numbers.
    pub fn new(report: WatchReport, hits: Vec<WatchHit>, group: impl Fn(u32) -> Option<String>) -> Self {
        Self {
            name: report.name,
            addr: report.addr as u64,
            len: report.len as u64,
            access: report.access.into(),
            state: report.state.into(),
            // The kernel's count was read a moment before.
            hits: report.hits.max(report.delivered),
            delivered: report.delivered,
            passed: report.passed,
            lost: report.lost,
            over_because: report.coverage.over_because.map(str::to_owned),
            coverage: report.coverage.into(),
            sites: report.sites.into_iter().map(|site| SiteRow::new(site, &group)).collect(),
            other_sites: report.other_sites,
            stream: hits.into_iter().map(|hit| HitRow::new(hit, &group)).collect(),
        }
    }
}

impl SiteRow {
    fn new(of: WatchSite, group: &impl Fn(u32) -> Option<String>) -> Self {
        let WatchSite { ip, group: id, hits, old, new, tid, task, mono_ns, stack } = of;
        Self {
            hits,
            last: HitRow::new(WatchHit { ip, group: id, tid, task, mono_ns, old, new, stack }, group),
        }
    }
}

impl HitRow {
    fn new(of: WatchHit, group: &impl Fn(u32) -> Option<String>) -> Self {
        Self {
            ip: of.ip as u64,
            group: group(of.group),
            old: of.old,
            new: of.new,
            tid: of.tid,
            task: of.task,
            mono_ns: of.mono_ns,
            stack: of.stack.into_iter().map(|addr| addr as u64).collect(),
        }
    }
}

impl From<WatchState> for WireState {
    fn from(of: WatchState) -> Self {
        match of {
            WatchState::Armed => Self::Armed,
            WatchState::Resting => Self::Resting,
            WatchState::Over => Self::Over,
        }
    }
}

impl From<Coverage> for CoverageRow {
    fn from(of: Coverage) -> Self {
        let Coverage { threads_armed, threads_alive, armed_ns, wall_ns, rests, late, unread, .. } = of;
        Self { threads_armed, threads_alive, armed_ns, wall_ns, rests, late, unread }
    }
}

//! A profile as data: addresses, weights, and what is missing.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The kinds of profiles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ProfileKind {
    /// CPU time.
    #[default]
    Cpu,
    /// Allocations.
    Alloc,
    /// Page faults.
    Faults,
    /// Wall time of tasks. The outermost frame of each stack is a [`WallState`].
    Wall,
}

/// A column of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// The column's name, as in pprof.
    pub name: &'static str,
    /// The column's unit, as in pprof: `count`, `nanoseconds`, `bytes`.
    pub unit: &'static str,
}

impl Column {
    /// Whether its values are what is there at the end, however long the profile took.
    pub fn is_level(&self) -> bool {
        self.name.starts_with("inuse_")
    }
}

/// The values of a sample, one for each of [`ProfileKind::columns`]; the others are 0.
pub type Values = [u64; 4];

impl ProfileKind {
    /// All kinds of profiles.
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Alloc, Self::Faults, Self::Wall];

    /// The names of all kinds.
    pub const NAMES: [&str; 4] = ["cpu", "alloc", "faults", "wall"];

    /// The columns of a sample's values.
    pub fn columns(self) -> &'static [Column] {
        const fn column(name: &'static str, unit: &'static str) -> Column {
            Column { name, unit }
        }
        match self {
            Self::Cpu => const { &[column("samples", "count"), column("cpu", "nanoseconds")] },
            Self::Alloc => {
                const {
                    &[
                        column("alloc_objects", "count"),
                        column("alloc_space", "bytes"),
                        column("inuse_objects", "count"),
                        column("inuse_space", "bytes"),
                    ]
                }
            }
            Self::Faults => const { &[column("samples", "count"), column("faults", "count")] },
            Self::Wall => const { &[column("samples", "count"), column("wall", "nanoseconds")] },
        }
    }

    /// The index of the column in whose unit samples, totals and coverage are.
    pub fn main_column(self) -> usize {
        1
    }

    /// The kind's name, as in options and URLs.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for ProfileKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|kind| kind.name() == name);
        named.ok_or_else(|| format!("it is {name:?}, and must be cpu, alloc, faults or wall"))
    }
}

/// The state of a task while time passes: the outermost frame of each stack of a wall profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WallState {
    /// In a poll, on a CPU. The stacks are samples.
    OnCpu,
    /// In a poll, but not on a CPU: the kernel runs another thread, or the poll blocks. There are
    /// no stacks.
    Stalled,
    /// Woken, and not polled yet. There are no stacks.
    Runnable,
    /// Neither. The stacks are those at which leaves took wakers; the time is counted, not sampled.
    Awaiting,
}

impl WallState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::OnCpu, Self::Stalled, Self::Runnable, Self::Awaiting];

    /// The address that stands for this state, at which there can be no code.
    pub fn address(self) -> u64 {
        u64::MAX - 15 + self as u64
    }

    /// The state for which an address stands.
    pub fn at(address: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.address() == address)
    }

    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnCpu => "on CPU",
            Self::Stalled => "stalled",
            Self::Runnable => "runnable",
            Self::Awaiting => "awaiting",
        }
    }
}

/// The index, in [`Profile::groups`], of work that was in no group.
pub const NO_GROUP: u32 = 0;

/// A profile: stacks with weights, by group and thread. Addresses are not resolved to names yet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Profile {
    /// The kind of samples.
    pub kind: ProfileKind,
    /// When the profile began, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// How long the profile took, in nanoseconds.
    pub duration_ns: u64,
    /// The average distance between two samples in the unit of the main column: nanoseconds of a
    /// thread's CPU time, bytes, or faults.
    pub period: u64,
    /// The process id.
    pub pid: u32,
    /// The path of the process's executable.
    pub program: String,
    /// Groups; the first one stands for work in no group.
    pub groups: Vec<ProfileGroup>,
    /// Threads that were sampled.
    pub threads: Vec<Thread>,
    /// All stacks as one tree: a node after its parent.
    pub stacks: Vec<Node>,
    /// Samples that agree in group, thread and stack, added up.
    pub samples: Vec<Sample>,
    /// The files that were mapped at the addresses.
    pub mappings: Vec<MappedRange>,
    /// When each single sample was taken, if that was requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Moment>,
    /// Whether allocations that are still live were requested: they are what is shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// How much is missing, and why.
    pub coverage: ProfileCoverage,
}

/// A group in a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfileGroup {
    /// The group's number in the service; 0 for work in no group.
    pub id: u32,
    /// The group's name; empty for work in no group.
    pub name: String,
    /// The group's real use, in the unit of the main column, by the account of groups. Except for
    /// rounding, the samples of the group add up to this. `None` if it is unknown; then the samples
    /// are not adjusted.
    pub total: Option<u64>,
}

/// A thread in a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Thread {
    /// The thread id.
    pub tid: u32,
    /// The thread's name.
    pub name: String,
}

/// A node in the tree of stacks: a frame, and the path to the outermost one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Node {
    /// One more than the index of the caller's node; 0 for the outermost frame.
    pub parent: u32,
    /// An address inside the instruction that ran, or that called: for callers one less than the
    /// return address.
    pub address: u64,
}

/// All samples with the same group, thread and stack, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sample {
    /// The index of the group.
    pub group: u32,
    /// The index of the thread.
    pub thread: u32,
    /// One more than the index of the innermost frame's node; 0 if the time is known but the stack
    /// is not.
    pub stack: u32,
    /// The values, one for each column.
    pub values: Values,
}

/// A mapping of the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MappedRange {
    /// The first address of the mapping.
    pub start: u64,
    /// The address after the last one of the mapping.
    pub end: u64,
    /// The offset of the mapping in its file.
    pub offset: u64,
    /// The file's path as the kernel reports it, or a name such as `[vdso]`.
    pub path: String,
    /// The file's build id, in hexadecimal digits; empty if it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_id: String,
}

/// When a sample was taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Moment {
    /// Nanoseconds since the profile began.
    pub at_ns: u64,
    /// The index of the sample's row in [`Profile::samples`].
    pub sample: u32,
    /// The sample's own weight, in the unit of the main column.
    pub value: u64,
}

/// How complete a profile is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProfileCoverage {
    /// The use of the whole process while the profile was taken, in the unit of the main column; 0
    /// if it is unknown.
    pub total: u64,
    /// The part of `total` that was in groups.
    pub in_groups: u64,
    /// Number of threads that were seen.
    pub threads: u64,
    /// Number of threads that were sampled.
    pub armed: u64,
    /// Number of threads for which the kernel refused a timer or an event.
    pub refused: u64,
    /// Number of threads that block the signal by which samples are taken.
    pub blocking: u64,
    /// Number of samples taken.
    pub samples: u64,
    /// Number of samples for which there was no room, or that came after a later one of their
    /// thread. In profiles of time their weight is in their thread's next sample; in others what
    /// they stood for is missing.
    pub dropped: u64,
    /// Number of timer expiries that were merged with others. Their weight is in the sample.
    pub overruns: u64,
    /// Number of stacks that were followed to their end.
    pub ended: u64,
    /// Number of stacks that were longer than there is room for.
    pub cut: u64,
    /// Number of stacks whose innermost function belongs to a system library without frame
    /// pointers. In these the function that called the library is missing.
    pub in_library: u64,
    /// Number of stacks for which there was no room to be copied, and that were followed by frame
    /// pointers instead ([`ProfileRequest::unwind`](crate::ProfileRequest::unwind)).
    pub uncopied: u64,
    /// Number of samples whose stack found no room in the table of stacks; they are counted without
    /// a stack.
    pub merged: u64,
    /// Other limits that the reader should know: one sentence each.
    pub notes: Vec<String>,
}

impl Profile {
    /// The index of the column that tables and graphs show.
    pub fn main_column(&self) -> usize {
        let live = self.kind.columns().iter().rposition(Column::is_level);
        live.filter(|_| self.live).unwrap_or(self.kind.main_column())
    }

    /// The addresses of a stack, the innermost first. Empty for an unknown stack.
    pub fn stack(&self, stack: u32) -> impl Iterator<Item = u64> + '_ {
        let mut next = stack;
        std::iter::from_fn(move || {
            let node = self.stacks.get(next.checked_sub(1)? as usize)?;
            // A node comes after its parent: what another process wrote cannot lead in circles.
            next = if node.parent < next { node.parent } else { 0 };
            Some(node.address)
        })
    }

    /// The mapping that contains an address.
    pub fn mapping(&self, address: u64) -> Option<&MappedRange> {
        self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address))
    }
}

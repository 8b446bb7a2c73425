//! Requests: a number of slots of one kind, for a task or for a processor.

use std::fmt;

/// The most registers of one kind that any processor has (arm64).
pub const MOST_SLOTS: u32 = 16;

/// How many kinds of registers there can be.
pub(crate) const CLASSES: usize = 2;

/// Something that runs on one processor at a time: a thread, an async task, a request.
///
/// The caller chooses the number. Counters are best: tasks with close numbers are kept close in
/// memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// Something that has registers and runs one task at a time: a processor, or a worker thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpu(pub u32);

/// The kind of access on which a breakpoint traps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotKind {
    /// Reads or writes of memory.
    Data,
    /// Execution of an instruction.
    Execute,
}

/// The tasks and processors that a breakpoint covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Every task that runs on this processor.
    Cpu(Cpu),
    /// This task, on any processor.
    Task(TaskId),
    /// This task, while it runs on this processor.
    TaskOnCpu(TaskId, Cpu),
}

/// A request for the slots (debug registers) that one breakpoint takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotRequest {
    /// The tasks and processors that the slots cover.
    pub target: Target,
    /// The kind of access, which determines the kind of slots.
    pub kind: SlotKind,
    /// How many registers the breakpoint takes; 1 unless the architecture has wide ones.
    pub weight: u32,
}

impl SlotRequest {
    /// A request for one slot.
    pub fn new(target: Target, kind: SlotKind) -> Self {
        Self { target, kind, weight: 1 }
    }
}

/// The registers of one processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registers {
    /// That many registers, each for either kind.
    Shared(u32),
    /// Some for data, others for instructions.
    Separate {
        /// Registers for data.
        data: u32,
        /// Registers for instructions.
        execute: u32,
    },
}

impl Registers {
    /// The debug registers of x86.
    pub const X86: Self = Self::Shared(4);

    /// The number of slots of this kind.
    pub fn slots(self, kind: SlotKind) -> u32 {
        match (self, kind) {
            (Self::Shared(slots), _)
            | (Self::Separate { data: slots, .. }, SlotKind::Data)
            | (Self::Separate { execute: slots, .. }, SlotKind::Execute) => slots,
        }
    }

    /// Whether a breakpoint of one kind takes a slot from those of the other.
    fn are_shared(self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Kinds that share registers are of one class.
    pub(crate) fn class(self, kind: SlotKind) -> usize {
        match kind {
            SlotKind::Execute if !self.are_shared() => 1,
            _ => 0,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(Cpu(cpu)) => write!(f, "processor {cpu}"),
            Self::Task(TaskId(task)) => write!(f, "task {task}"),
            Self::TaskOnCpu(TaskId(task), Cpu(cpu)) => write!(f, "task {task} on processor {cpu}"),
        }
    }
}

impl fmt::Display for SlotKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "data",
            Self::Execute => "execute",
        })
    }
}

impl fmt::Display for SlotRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} slots for {}", self.weight, self.kind, self.target)
    }
}

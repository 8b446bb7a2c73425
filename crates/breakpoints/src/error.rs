//! Why a request was refused. The accounting and the threads are as they were before.

use std::io;

use dormouse_sys::perf;
use dormouse_sys::rendezvous::Conflict;

use crate::{Cpu, MOST_SLOTS, SlotRequest, Target};

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too few registers are free.
    #[error("no space for {requested}: {free} are free; release one of {}", listed(.holders))]
    NoSpace {
        /// The request.
        requested: SlotRequest,
        /// Slots that are free, on the busiest of the processors that it was asked for.
        free: u32,
        /// The holders of the others there. Of many tasks with equal claims to the registers of one
        /// processor eight are named: it has room when all of them have released.
        holders: Vec<SlotHolder>,
    },
    /// There is no such processor.
    #[error("there is no processor {}: they are numbered from 0, and there are {cpus}", .cpu.0)]
    NoCpu {
        /// The processor that was asked for.
        cpu: Cpu,
        /// How many there are.
        cpus: u32,
    },
    /// A breakpoint without weight would be accounted nowhere.
    #[error("a breakpoint of {} takes no slot: ask for a weight of at least 1", .target)]
    NoWeight {
        /// For whom it was asked for.
        target: Target,
    },
    /// No processor has that many registers.
    #[error("{slots} registers of one kind are more than is supported; give at most {MOST_SLOTS}")]
    TooManyRegisters {
        /// The number that was asked for.
        slots: u32,
    },
    /// No register watches such a range.
    #[error("{len} bytes at {addr:#x} cannot be watched: {reason}")]
    Unwatchable {
        /// The first byte.
        addr: usize,
        /// How many bytes.
        len: usize,
        /// The reason.
        reason: &'static str,
    },
    /// Other watches have the registers.
    #[error("{name} needs {asked} debug registers of each thread, and {free} are free: release one of {}",
        named(.holders))]
    NoRegister {
        /// The watch.
        name: String,
        /// Registers that it needs.
        asked: u32,
        /// Registers that are free for it.
        free: u32,
        /// The watches that have the others.
        holders: Vec<HeldSlot>,
    },
    /// A thread cannot be watched, so no thread is.
    #[error("thread {tid} ({thread}) cannot be watched, so no thread is: {source}")]
    Thread {
        /// The thread's id.
        tid: u32,
        /// The thread's name.
        thread: String,
        /// The kernel's answer.
        #[source]
        source: perf::Error,
    },
    /// Threads start and end faster than they can be armed.
    #[error("threads start and end too fast: not all were armed in {0:?}, so none is")]
    Unsteady(std::time::Duration),
    /// A filter may end the process for the system calls of a watch.
    #[error(
        "system calls of this process pass a filter (seccomp), which may end it for perf_event_open: watch it \
         from outside, as root of the host"
    )]
    Filtered,
    /// The processor stops before what is watched, and no signal handler gets past it: on arm64 an
    /// instruction that is watched, on unknown processors anything.
    #[error(
        "on this processor a thread cannot get past an instruction at which a watch of its own process stops it: \
         watch the process from outside, as root"
    )]
    Processor,
    /// A hit is a SIGTRAP, and our handler cannot get that signal.
    #[error("the handler of SIGTRAP cannot be dormouse's: {0}")]
    Signal(String),
    /// Another copy of dormouse leads this process, and this one cannot follow it.
    #[error(transparent)]
    Copies(#[from] Conflict),
    /// The limit of watches is reached.
    #[error("there are {0} watches, as many as there can be: drop one")]
    TooManyWatches(usize),
    /// The thread that arms watches could not be started.
    #[error("the thread that arms watches cannot be started: {0}")]
    Keeper(#[source] io::Error),
    /// There is no such process (any more).
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process's id.
        pid: u32,
    },
    /// A process cannot be examined.
    #[error("process {pid} cannot be looked at: {source}")]
    Process {
        /// The process's id.
        pid: u32,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A thread of another process has too few registers, so no thread is watched.
    #[error(
        "thread {tid} ({thread}) has {free} free debug registers, and {asked} are asked for{}: end another \
         watch of it, or the debugger that is attached", if *.leave_one { " beside the one that is left to debuggers" } else { "" }
    )]
    TooFewRegisters {
        /// The thread's id.
        tid: u32,
        /// The thread's name.
        thread: String,
        /// Registers that are asked for.
        asked: usize,
        /// Registers that are free.
        free: usize,
        /// Whether one must stay free.
        leave_one: bool,
    },
    /// A watch from outside cannot do this.
    #[error("{name} cannot be watched from outside with {what}: that needs dormouse in the process")]
    OnlyInside {
        /// The watch.
        name: String,
        /// The thing asked for.
        what: &'static str,
    },
    /// The caller interrupts a watch's own work, is in the middle of a fork, or is a signal handler
    /// that interrupted either.
    #[error("watches cannot be armed from here: the thread is in the middle of a fork or of arming")]
    Reentrant,
}

/// Debug registers that a watch of this process holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSlot {
    /// The watch's number.
    pub number: u32,
    /// The watch's name.
    pub name: String,
    /// The group during whose tasks the watch holds the registers; `None` if it holds them always,
    /// on every thread.
    pub group: Option<u32>,
    /// The number of registers.
    pub slots: u32,
    /// Whether the watch takes turns with other watches.
    pub is_flexible: bool,
}

/// A task or a processor whose breakpoints take slots, in [`Error::NoSpace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotHolder {
    /// The task or processor that the breakpoints are for.
    pub target: Target,
    /// The number of slots that these breakpoints take.
    pub slots: u32,
}

fn listed(holders: &[SlotHolder]) -> String {
    let names: Vec<String> =
        holders.iter().map(|holder| format!("{} ({})", holder.target, holder.slots)).collect();
    match names.as_slice() {
        [] => "none: there are fewer registers than that".to_owned(),
        names => names.join(", "),
    }
}

fn named(holders: &[HeldSlot]) -> String {
    let names: Vec<String> =
        holders.iter().map(|holder| format!("{} ({})", holder.name, holder.slots)).collect();
    if names.is_empty() {
        "those of other processes' watches, or of a debugger".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SlotKind, TaskId};

    #[test]
    fn a_refusal_names_request_free_slots_and_holders() {
        let requested = SlotRequest::new(Target::TaskOnCpu(TaskId(7), Cpu(1)), SlotKind::Data);
        let holders = vec![
            SlotHolder { target: Target::Task(TaskId(7)), slots: 3 },
            SlotHolder { target: Target::Cpu(Cpu(1)), slots: 1 },
        ];
        assert_eq!(
            Error::NoSpace { requested, free: 0, holders }.to_string(),
            "no space for 1 data slots for task 7 on processor 1: 0 are free; \
             release one of task 7 (3), processor 1 (1)"
        );
    }
}

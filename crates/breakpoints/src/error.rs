//! Why a request was refused. Whatever it says, the accounting is as it was.

use crate::{Cpu, MOST_SLOTS, Request, Target};

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too few registers are free.
    #[error("no space for {requested}: {free} are free; release one of {}", listed(.holders))]
    NoSpace {
        /// What was asked for.
        requested: Request,
        /// Slots that are free, on the busiest of the processors that it was asked for.
        free: u32,
        /// Who holds the others there. Of many tasks with equal claims to the registers of one processor
        /// eight are named: it has room when all of them have released.
        holders: Vec<Holder>,
    },
    /// There is no such processor.
    #[error("there is no processor {}: they are numbered from 0, and there are {cpus}", .cpu.0)]
    NoCpu {
        /// What was asked for.
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
    /// No processor has so many registers.
    #[error("{slots} registers of one kind are more than is supported; give at most {MOST_SLOTS}")]
    TooManyRegisters {
        /// What was asked for.
        slots: u32,
    },
}

/// Who holds slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Whose breakpoints they are.
    pub target: Target,
    /// How many slots they take.
    pub slots: u32,
}

fn listed(holders: &[Holder]) -> String {
    let names: Vec<String> =
        holders.iter().map(|holder| format!("{} ({})", holder.target, holder.slots)).collect();
    match names.as_slice() {
        [] => "none: there are fewer registers than that".to_owned(),
        names => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Task};

    #[test]
    fn a_refusal_names_request_free_slots_and_holders() {
        let requested = Request::new(Target::TaskOnCpu(Task(7), Cpu(1)), Kind::Data);
        let holders = vec![
            Holder { target: Target::Task(Task(7)), slots: 3 },
            Holder { target: Target::Cpu(Cpu(1)), slots: 1 },
        ];
        assert_eq!(
            Error::NoSpace { requested, free: 0, holders }.to_string(),
            "no space for 1 data slots for task 7 on processor 1: 0 are free; \
             release one of task 7 (3), processor 1 (1)"
        );
    }
}

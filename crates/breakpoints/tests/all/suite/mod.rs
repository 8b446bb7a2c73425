//! The kernel's own cases (`kernel/events/hw_breakpoint_test.c`) as a table, for any accounting of
//! slots.

/// The slots of x86, which the table is written for.
pub(crate) const SLOTS: usize = 4;

/// A task of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Current,
    Other,
}

/// Whose breakpoint: of a task anywhere, of a task on a processor, of a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    All(Who),
    On(u32, Who),
    Cpu(u32),
}

/// One line of a case.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// All slots except this many can be taken.
    Fill(Place, usize),
    /// One slot can be taken.
    Take(Place),
    /// None can be taken.
    Refused(&'static [Place]),
    /// The breakpoint that was taken at this number is given back.
    Release(usize),
}

/// Something that accounts slots of two processors or more.
pub(crate) trait Accounting {
    type Held;

    /// A data breakpoint; `None`: no space.
    fn take(&mut self, place: Place) -> Option<Self::Held>;

    fn release(&mut self, held: Self::Held);
}

use Place::{All, Cpu, On};
use Step::{Fill, Refused, Release, Take};
use Who::{Current, Other};

pub(crate) const CASES: [(&str, &[Step]); 9] = [
    ("one_cpu", &[Fill(Cpu(0), 0), Refused(&[All(Current), Cpu(0)])]),
    ("many_cpus", &[Fill(Cpu(0), 0), Fill(Cpu(1), 0), Refused(&[Cpu(0), Cpu(1)])]),
    (
        "one_task_on_all_cpus",
        &[Fill(All(Current), 0), Refused(&[All(Current), On(0, Current), Cpu(0)]), Release(0), Take(Cpu(0))],
    ),
    (
        "two_tasks_on_all_cpus",
        &[
            Fill(All(Current), 0),
            Fill(All(Other), 0),
            Refused(&[All(Current), All(Other), On(0, Current), On(0, Other), Cpu(0)]),
            Release(0),
            // The other task still uses all.
            Refused(&[Cpu(0)]),
        ],
    ),
    (
        "one_task_on_one_cpu",
        &[
            Fill(On(0, Current), 0),
            Refused(&[All(Current), On(0, Current), Cpu(0)]),
            Release(0),
            Take(Cpu(0)),
        ],
    ),
    (
        "one_task_mixed",
        &[
            Take(On(0, Current)),
            Fill(All(Current), 1),
            Refused(&[All(Current), On(0, Current), Cpu(0)]),
            // From bound to one processor back to none.
            Release(0),
            Release(1),
            Take(Cpu(0)),
            Take(Cpu(0)),
            Refused(&[Cpu(0)]),
        ],
    ),
    (
        "two_tasks_on_one_cpu",
        &[
            Fill(On(0, Current), 0),
            Fill(On(0, Other), 0),
            Refused(&[All(Current), All(Other), On(0, Current), On(0, Other), Cpu(0)]),
            Fill(Cpu(1), 0),
        ],
    ),
    (
        "two_tasks_on_one_all_cpus",
        &[
            Fill(On(0, Current), 0),
            Fill(All(Other), 0),
            Refused(&[All(Current), All(Other), On(0, Current), On(0, Other), Cpu(0), Cpu(1)]),
        ],
    ),
    (
        "task_on_all_and_one_cpu",
        &[
            Fill(All(Current), 2),
            Take(On(0, Current)),
            Take(All(Current)),
            Refused(&[All(Current), On(0, Current), Cpu(0)]),
            Take(Cpu(1)),
            Refused(&[Cpu(1)]),
            Release(2),
            // Processor 1 is full still.
            Refused(&[All(Current)]),
            Release(4),
            Take(All(Current)),
            Refused(&[All(Current), On(0, Current), Cpu(0), Cpu(1)]),
        ],
    ),
];

/// Runs a case and gives everything back.
pub(crate) fn run<A: Accounting>(accounting: &mut A, (name, steps): (&str, &[Step])) {
    let mut held: Vec<Option<A::Held>> = Vec::new();
    for (number, &step) in steps.iter().enumerate() {
        let at = || format!("{name}, step {number}: {step:?}");
        match step {
            Fill(place, but) => {
                for _ in but..SLOTS {
                    held.push(Some(accounting.take(place).unwrap_or_else(|| panic!("{}", at()))));
                }
            }
            Take(place) => held.push(Some(accounting.take(place).unwrap_or_else(|| panic!("{}", at())))),
            Refused(places) => {
                for &place in places {
                    assert!(accounting.take(place).is_none(), "{}: {place:?} was let in", at());
                }
            }
            Release(index) => accounting.release(held[index].take().unwrap()),
        }
    }
    for held in held.into_iter().flatten() {
        accounting.release(held);
    }
}

//! The kernel's nine cases, against the slots and against the list they replace.

use crate::suite;

use dormouse_breakpoints::oracle::SlotList;
use dormouse_breakpoints::{
    Cpu, Error, Registers, Reservation, SlotKind, SlotRequest, Slots, Target, TaskId,
};
use suite::{Accounting, CASES, Place, Who, run};

fn request(place: Place) -> SlotRequest {
    let task = |who| TaskId(if who == Who::Current { 1 } else { 2 });
    let target = match place {
        Place::All(who) => Target::Task(task(who)),
        Place::On(cpu, who) => Target::TaskOnCpu(task(who), Cpu(cpu)),
        Place::Cpu(cpu) => Target::Cpu(Cpu(cpu)),
    };
    SlotRequest::new(target, SlotKind::Data)
}

impl<'s> Accounting for &'s Slots {
    type Held = Reservation<'s>;

    fn take(&mut self, place: Place) -> Option<Reservation<'s>> {
        match self.reserve(request(place)) {
            Ok(held) => Some(held),
            Err(Error::NoSpace { holders, .. }) => {
                assert!(!holders.is_empty(), "refused, and nobody is named");
                None
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn release(&mut self, held: Self::Held) {
        drop(held);
    }
}

impl Accounting for SlotList {
    type Held = usize;

    fn take(&mut self, place: Place) -> Option<usize> {
        self.reserve(request(place))
    }

    fn release(&mut self, held: usize) {
        SlotList::release(self, held);
    }
}

#[test]
fn the_slots_decide_as_the_kernels_cases_say() {
    for cpus in [2, 3, 256] {
        let slots = Slots::new(Registers::X86, cpus).unwrap();
        // One after the other on the same slots: slots that a case leaves behind fail a later one.
        for case in CASES {
            run(&mut &slots, case);
            assert_eq!(slots.tasks(), 0, "{}", case.0);
        }
    }
}

#[test]
fn the_list_decides_as_the_kernels_cases_say() {
    for cpus in [2, 3, 256] {
        let mut list = SlotList::new(Registers::X86, cpus);
        for case in CASES {
            run(&mut list, case);
        }
    }
}

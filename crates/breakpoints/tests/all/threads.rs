//! Many threads at once: no slot is lost, none is given away twice.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use dormouse_breakpoints::{Cpu, Registers, SlotKind, SlotRequest, Slots, Target, TaskId};
use dormouse_testkit::stress_rounds;

const CPUS: u32 = 3;
const THREADS: u64 = 4;

/// Rounds of each thread.
fn rounds() -> u64 {
    stress_rounds(4000, 40_000)
}

fn reserve_all_of_cpu(slots: &Slots, cpu: u32) -> bool {
    slots
        .reserve(SlotRequest { weight: 4, ..SlotRequest::new(Target::Cpu(Cpu(cpu)), SlotKind::Data) })
        .is_ok()
}

#[test]
fn slots_are_never_given_twice() {
    let slots = Slots::new(Registers::X86, CPUS).unwrap();
    // The slots that each processor's own breakpoints are known to hold.
    let own: [AtomicU32; CPUS as usize] = Default::default();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (slots, own) = (&slots, &own);
            scope.spawn(move || {
                for round in 0..rounds() {
                    let task = TaskId(thread + round * THREADS);
                    let cpu = Cpu((round % u64::from(CPUS)) as u32);
                    let all = slots.reserve(SlotRequest::new(Target::Task(task), SlotKind::Data));
                    let bound = slots.reserve(SlotRequest::new(Target::TaskOnCpu(task, cpu), SlotKind::Data));
                    let taken = u32::from(all.is_ok()) + u32::from(bound.is_ok());
                    // A processor's slots cannot grow past what this task leaves while it holds its
                    // own.
                    let beside = own[cpu.0 as usize].load(Ordering::SeqCst);
                    assert!(taken + beside <= 4, "{taken} of the task, {beside} of {cpu:?}");
                    drop((all, bound));
                    if round % 8 > 0 {
                        continue;
                    }
                    let wide =
                        SlotRequest { weight: 3, ..SlotRequest::new(Target::Cpu(cpu), SlotKind::Data) };
                    if let Ok(held) = slots.reserve(wide) {
                        own[cpu.0 as usize].fetch_add(3, Ordering::SeqCst);
                        assert!(!reserve_all_of_cpu(slots, cpu.0));
                        own[cpu.0 as usize].fetch_sub(3, Ordering::SeqCst);
                        drop(held);
                    }
                }
            });
        }
    });
    assert_eq!(slots.tasks(), 0);
    assert!((0..CPUS).all(|cpu| reserve_all_of_cpu(&slots, cpu)));
}

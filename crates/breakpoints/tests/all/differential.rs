//! The slots against the list that they replace: both decide alike about random requests.

use dormouse_breakpoints::oracle::SlotList;
use dormouse_breakpoints::{
    Cpu, Error, Registers, Reservation, SlotHolder, SlotKind, SlotRequest, Slots, Target, TaskId,
};
use proptest::prelude::*;

const CPUS: u32 = 3;

#[derive(Debug, Clone, Copy)]
enum Op {
    Reserve(SlotRequest),
    /// The number of a reservation, modulo how many are held.
    Release(usize),
}

fn request() -> impl Strategy<Value = SlotRequest> {
    // Few tasks and processors, so that they meet; two of the tasks share a shard.
    let task = prop_oneof![Just(TaskId(1)), Just(TaskId(2)), (3..40_u64).prop_map(TaskId)];
    let cpu = (0..CPUS).prop_map(Cpu);
    let target = prop_oneof![
        3 => task.clone().prop_map(Target::Task),
        3 => (task, cpu.clone()).prop_map(|(task, cpu)| Target::TaskOnCpu(task, cpu)),
        1 => cpu.prop_map(Target::Cpu),
    ];
    let kind = prop_oneof![Just(SlotKind::Data), Just(SlotKind::Execute)];
    (target, kind, prop_oneof![4 => Just(1_u32), 1 => Just(2)])
        .prop_map(|(target, kind, weight)| SlotRequest { target, kind, weight })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![3 => request().prop_map(Op::Reserve), 2 => any::<usize>().prop_map(Op::Release)]
}

fn registers() -> impl Strategy<Value = Registers> {
    prop_oneof![
        Just(Registers::X86),
        Just(Registers::Separate { data: 4, execute: 2 }),
        Just(Registers::Separate { data: 1, execute: 0 }),
    ]
}

/// Free slots and named holders must add up to the registers, for one task and one processor at a
/// time.
fn check(registers: Registers, requested: SlotRequest, free: u32, holders: &[SlotHolder]) {
    assert!(free < requested.weight, "refused with {free} free: {requested}");
    let limit = registers.slots(requested.kind);
    let named: u32 = match requested.target {
        Target::Cpu(_) => {
            let (own, tasks): (Vec<&SlotHolder>, Vec<&SlotHolder>) =
                holders.iter().partition(|holder| matches!(holder.target, Target::Cpu(_)));
            assert!(tasks.iter().all(|task| task.slots == tasks[0].slots), "{holders:?}");
            own.iter().chain(tasks.first()).map(|holder| holder.slots).sum()
        }
        _ => holders.iter().map(|holder| holder.slots).sum(),
    };
    assert_eq!(named + free, limit, "{requested}: {holders:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_and_list_decide_alike(
        registers in registers(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let slots = Slots::new(registers, CPUS).unwrap();
        let mut list = SlotList::new(registers, CPUS);
        let mut held: Vec<(Reservation<'_>, usize)> = Vec::new();
        for op in ops {
            match op {
                Op::Reserve(request) => match (slots.reserve(request), list.reserve(request)) {
                    (Ok(ours), Some(theirs)) => held.push((ours, theirs)),
                    (Err(Error::NoSpace { requested, free, holders }), None) => {
                        check(registers, requested, free, &holders);
                    }
                    (ours, theirs) => prop_assert!(false, "{request}: {ours:?}, the list {theirs:?}"),
                },
                Op::Release(_) if held.is_empty() => {}
                Op::Release(index) => {
                    let (_ours, theirs) = held.swap_remove(index % held.len());
                    list.release(theirs);
                }
            }
        }
        held.clear();
        prop_assert_eq!(slots.tasks(), 0);
        // Nothing is left in any histogram: each processor has all its registers again.
        for cpu in 0..CPUS {
            for kind in [SlotKind::Data, SlotKind::Execute] {
                let weight = registers.slots(kind);
                let all = SlotRequest { target: Target::Cpu(Cpu(cpu)), kind, weight };
                prop_assert!(weight == 0 || slots.reserve(all).is_ok());
            }
        }
    }
}

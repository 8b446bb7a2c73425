use dormouse_profile::{Moment, Node, ProfileCoverage, ProfileKind};
use dormouse_protocol::{CountRow, GroupRow};
use proptest::prelude::*;

use super::*;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn used(id: u32, cpu_ns: u64) -> GroupRow {
    GroupRow { id, name: NAMES[id as usize - 1].into(), cpu_ns, ..GroupRow::default() }
}

fn account(groups: Vec<GroupRow>, process: Option<u64>, own: u64) -> Account {
    Account { groups, is_counted: true, process, own, ..Account::default() }
}

fn sample(group: u32, stack: u32, value: u64) -> Sample {
    Sample { group, thread: 0, stack, values: [1, value, 0, 0] }
}

fn profile(ids: &[u32], samples: &[Sample]) -> Profile {
    let nodes = samples.iter().map(|sample| sample.stack).max().unwrap_or(0);
    Profile {
        groups: ids.iter().map(|&id| ProfileGroup { id, ..ProfileGroup::default() }).collect(),
        threads: vec![Thread { tid: 7, name: "worker".into() }],
        stacks: (0..nodes).map(|n| Node { parent: n, address: u64::from(n) }).collect(),
        samples: samples.to_vec(),
        coverage: ProfileCoverage { armed: 1, ..ProfileCoverage::default() },
        ..Profile::default()
    }
}

fn sums(of: &Profile) -> Vec<(String, u64)> {
    let sum = |group: usize| -> u64 {
        of.samples.iter().filter(|s| s.group as usize == group).map(|s| s.values[1]).sum()
    };
    of.groups.iter().enumerate().map(|(at, group)| (group.name.clone(), sum(at))).collect()
}

#[test]
fn samples_add_up_to_the_account() {
    let mut of =
        profile(&[0, 2, 1], &[sample(0, 1, 50), sample(1, 1, 10), sample(1, 2, 20), sample(2, 2, 5)]);
    let used_so_far = account(vec![used(1, 7), used(2, 100), used(3, 9)], Some(200), 4);
    scale(&mut of, &used_so_far);
    let expected = [("", 80), ("a", 7), ("b", 100), ("c", 9), ("(dormouse)", 4)];
    assert_eq!(sums(&of), expected.map(|(name, sum)| (name.to_owned(), sum)));
    assert_eq!((of.coverage.total, of.coverage.in_groups), (200, 116));
    // A group without a sample has a row without a stack, of no thread.
    let bare: Vec<_> = of.samples.iter().filter(|s| s.stack == 0).map(|s| (s.group, s.thread)).collect();
    assert_eq!((bare, of.threads.len()), (vec![(3, 1), (4, 1)], 2));
    // By the largest remainder: 33.3 and 66.7.
    assert_eq!(of.samples.iter().filter(|s| s.group == 2).map(|s| s.values[1]).collect::<Vec<_>>(), [33, 67]);
}

#[test]
fn unsampled_time_scales_nobody_up() {
    const SECOND: u64 = 1_000_000_000;
    let mut of = profile(&[0, 1], &[sample(1, 1, SECOND)]);
    // Threads that this group has no samples of lack none.
    of.coverage.armed = 100;
    // A thread in no group that blocks signals, half of whose time is in the group.
    of.samples.push(Sample { values: [0, 3 * SECOND, 0, 0], ..sample(0, 0, 0) });
    scale(&mut of, &account(vec![used(1, 2 * SECOND)], Some(4 * SECOND), 0));
    let rows: Vec<_> = of.samples.iter().map(|s| (s.group, s.stack, s.values)).collect();
    let slack = LONGEST_TICK;
    let right =
        [(1, 1, [1, SECOND + slack, 0, 0]), (0, 0, [0, 2 * SECOND, 0, 0]), (1, 0, [0, SECOND - slack, 0, 0])];
    assert_eq!(rows, right);
}

#[test]
fn groups_beyond_their_process_are_refused() {
    let mut of = profile(&[0, 1], &[sample(1, 1, 5)]);
    scale(&mut of, &account(vec![used(1, 86_400_000_000_000)], Some(100), 0));
    assert!(of.coverage.notes.iter().any(|note| note.contains("a clock is false")), "{:?}", of.coverage);
    scale(&mut of, &account(vec![used(1, 90)], Some(100), 0));
}

#[test]
fn other_contexts_are_work_in_no_group() {
    let mut of = profile(&[0, 900, 1], &[sample(0, 1, 1), sample(1, 1, 3), sample(1, 2, 4), sample(2, 1, 1)]);
    of.timeline = (0..4).map(|sample| Moment { at_ns: 0, sample, value: 10 }).collect();
    scale(&mut of, &account(vec![used(1, 1)], Some(17), 0));
    assert_eq!(of.groups.iter().map(|group| &*group.name).collect::<Vec<_>>(), ["", "a"]);
    assert_eq!(of.samples.len(), 3);
    assert_eq!(of.samples[0], Sample { values: [2, 8, 0, 0], ..sample(0, 1, 0) });
    assert_eq!(of.timeline.iter().map(|moment| moment.sample).collect::<Vec<_>>(), [0, 0, 1, 2]);
    assert_eq!(of.timeline[0].value, 20);
}

#[test]
fn groups_that_nobody_counts_keep_their_samples() {
    let mut of = profile(&[0, 1], &[sample(0, 1, 50), sample(1, 1, 30)]);
    let mut used_so_far = account(vec![used(1, 7)], Some(100), 0);
    used_so_far.is_counted = false;
    scale(&mut of, &used_so_far);
    assert_eq!(sums(&of), [(String::new(), 70), ("a".to_owned(), 30)]);
    assert_eq!((of.groups[1].total, of.coverage.in_groups), (None, 30));
}

#[test]
fn counts_that_stood_still_scale_nothing() {
    let whole = account(vec![used(1, 7)], Some(100), 0);
    let stopped = Account { stopped: 1, ..whole.clone() };
    let uncounted = Account { is_counted: false, ..whole.clone() };
    let is_counted = |now: &Account, before: &Account| now.since(before).is_counted;
    assert!(is_counted(&whole, &whole) && is_counted(&stopped, &stopped));
    assert!(!is_counted(&stopped, &whole) && !is_counted(&whole, &uncounted));
}

#[test]
fn live_allocations_are_scaled_with_all() {
    let mut of = profile(&[0, 1], &[]);
    of.kind = ProfileKind::Alloc;
    of.samples = vec![
        Sample { group: 1, values: [10, 1000, 5, 500], ..Sample::default() },
        Sample { group: 0, values: [10, 1000, 5, 500], ..Sample::default() },
    ];
    let counts = [("alloc-count", 20), ("alloc-bytes", 4000)].map(|(event, value)| CountRow {
        event: event.into(),
        value,
        ..CountRow::default()
    });
    let group = GroupRow { counts: counts.into(), ..used(1, 0) };
    scale(&mut of, &account(vec![group], None, 0));
    assert_eq!(of.samples[0].values, [20, 4000, 10, 2000]);
    // Nobody counts what is in no group.
    assert_eq!(of.samples[1].values, [10, 1000, 5, 500]);
    assert_eq!((of.groups[0].total, of.coverage.total, of.coverage.in_groups), (None, 0, 4000));
}

#[test]
fn what_is_not_wanted_goes_with_its_stacks() {
    let mut of = profile(&[0, 1, 2], &[sample(0, 1, 50), sample(1, 3, 10), sample(2, 4, 20)]);
    // 1 ← 2 ← 3, and 1 ← 4.
    of.stacks[3].parent = 1;
    of.timeline = (0..3).map(|sample| Moment { at_ns: 0, sample, value: 1 }).collect();
    scale(&mut of, &account(vec![used(1, 10), used(2, 20)], Some(80), 0));
    retain(&mut of, |name| name == "b");
    assert_eq!(of.groups.iter().map(|group| &*group.name).collect::<Vec<_>>(), ["", "b"]);
    assert_eq!(of.stacks, [Node { parent: 0, address: 0 }, Node { parent: 1, address: 3 }]);
    assert_eq!(of.samples, [Sample { group: 1, stack: 2, ..sample(0, 0, 20) }]);
    // Its weight is scaled as its row's is.
    assert_eq!(of.timeline, [Moment { at_ns: 0, sample: 0, value: 1 }]);
    assert_eq!((of.groups[0].total, of.coverage.total), (None, 80));
}

proptest! {
    #[test]
    fn whatever_was_sampled_adds_up(
        samples in proptest::collection::vec((0_u32..6, 0_u32..4, 0_u64..1 << 40), 0..40),
        cpu in proptest::array::uniform5(0_u64..1 << 50),
        beside in 0_u64..1 << 50,
        own in 0_u64..1 << 30,
    ) {
        let samples: Vec<_> = samples.into_iter().map(|(g, stack, value)| sample(g, stack, value)).collect();
        let mut of = profile(&[0, 5, 4, 3, 2, 1], &samples);
        let groups: Vec<_> = (1..).zip(cpu).map(|(id, cpu)| used(id, cpu)).collect();
        let in_groups: u64 = cpu.iter().sum();
        scale(&mut of, &account(groups, Some(in_groups + own + beside), own));
        let sums = sums(&of);
        for (group, (_, sum)) in of.groups.iter().zip(&sums) {
            prop_assert_eq!(group.total, Some(*sum));
        }
        prop_assert_eq!(sums.iter().map(|(_, sum)| sum).sum::<u64>(), of.coverage.total);
        retain(&mut of, |name| name == "c");
        let left: u64 = of.samples.iter().map(|sample| sample.values[1]).sum();
        prop_assert_eq!(left, cpu[2]);
        for sample in &of.samples {
            prop_assert_eq!(sample.group, 1);
            prop_assert!(sample.stack as usize <= of.stacks.len());
        }
    }
}

//! One shard of the tasks: their items, and histograms of their use.
//!
//! # Invariants
//!
//! For each class of registers a task is counted either in `anywhere` (none of its items is bound
//! to a processor) or in all of `bound`, never in both. So the most that any task uses on a
//! processor is the larger of two maxima, and a task without bound items costs one update for any
//! number of processors.

use super::histogram::Histogram;
use super::table::{Item, Table};
use crate::request::CLASSES;
use crate::{Cpu, TaskId};

/// The tasks behind one lock.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    table: Table,
    anywhere: [Histogram; CLASSES],
    /// By processor; empty until there is the first bound item, which many programs never have.
    bound: [Vec<Histogram>; CLASSES],
}

/// The use that a task makes of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Slots wherever it runs.
    pub(crate) anywhere: u32,
    /// Items that are bound to a processor.
    pub(crate) bound: usize,
}

impl Shard {
    /// The items of a task.
    pub(crate) fn items(&self, task: TaskId) -> impl Iterator<Item = &Item> {
        self.table.items(task)
    }

    /// How many tasks have items.
    pub(crate) fn tasks(&self) -> usize {
        self.table.len()
    }

    /// The use that a task makes of a class.
    pub(crate) fn usage(&self, task: TaskId, class: usize) -> Usage {
        let mut usage = Usage::default();
        for item in self.of_class(task, class) {
            match item.cpu {
                None => usage.anywhere += u32::from(item.weight),
                Some(_) => usage.bound += 1,
            }
        }
        usage
    }

    /// Slots that a task uses on one processor.
    pub(crate) fn used_on(&self, task: TaskId, class: usize, cpu: Cpu) -> u32 {
        on(self.of_class(task, class), cpu)
    }

    /// Slots that a task uses, by processor.
    pub(crate) fn used_on_each(&self, task: TaskId, class: usize, cpus: u32) -> Vec<u32> {
        let mut used = vec![self.usage(task, class).anywhere; cpus as usize];
        for item in self.of_class(task, class) {
            if let Some(Cpu(cpu)) = item.cpu {
                used[cpu as usize] += u32::from(item.weight);
            }
        }
        used
    }

    /// The most slots that any task uses on one processor.
    pub(crate) fn most_on(&self, class: usize, cpu: Cpu) -> u32 {
        let bound = self.bound[class].get(cpu.0 as usize).map_or(0, Histogram::most);
        bound.max(self.anywhere[class].most())
    }

    /// The tasks that use exactly `slots` slots on one processor.
    pub(crate) fn tasks_with(&self, class: usize, cpu: Cpu, slots: u32) -> impl Iterator<Item = TaskId> {
        self.table.tasks().filter_map(move |(task, items)| {
            let items = items.filter(|item| usize::from(item.class) == class);
            (on(items, cpu) == slots).then_some(task)
        })
    }

    /// Adds an item to a task that uses `usage`: its place.
    pub(crate) fn insert(&mut self, task: TaskId, item: Item, usage: Usage, cpus: u32) -> usize {
        self.account(task, item, usage, cpus, true);
        self.table.insert(task, item)
    }

    /// Removes the item of a task at `place`.
    pub(crate) fn remove(&mut self, task: TaskId, place: usize, cpus: u32) {
        let item = self.table.remove(task, place);
        debug_assert!(
            item.is_some(),
            "{task:?} has no item at {place}: its reservation was given back twice"
        );
        let Some(item) = item else { return };
        let usage = self.usage(task, usize::from(item.class));
        self.account(task, item, usage, cpus, false);
    }

    /// Brings the histograms up to date with an item that comes or goes; `usage` and the table are
    /// without it.
    ///
    /// | case | item | the task's other items | counted |
    /// |---|---|---|---|
    /// | 1 | anywhere | none bound | one more in `anywhere` |
    /// | 2 | bound | none bound | moves from `anywhere` to every processor, with one more on the item's |
    /// | 3 | bound | some bound | one more on the item's processor |
    /// | 4 | anywhere | some bound | one more on every processor |
    ///
    /// An item that goes is the same backwards.
    fn account(&mut self, task: TaskId, item: Item, usage: Usage, cpus: u32, comes: bool) {
        let (class, weight) = (usize::from(item.class), u32::from(item.weight));
        // The task uses `with` slots with the item and `without` without it.
        let shift = |histogram: &mut Histogram, without, with| {
            let (from, to) = if comes { (without, with) } else { (with, without) };
            histogram.shift(from, to);
        };
        match (item.cpu, usage.bound) {
            // Case 1.
            (None, 0) => shift(&mut self.anywhere[class], usage.anywhere, usage.anywhere + weight),
            // Case 2.
            (Some(cpu), 0) => {
                shift(&mut self.anywhere[class], usage.anywhere, 0);
                for (index, histogram) in self.bound_on_each(class, cpus).iter_mut().enumerate() {
                    let here = if index == cpu.0 as usize { weight } else { 0 };
                    shift(histogram, 0, usage.anywhere + here);
                }
            }
            // Case 3.
            (Some(cpu), _) => {
                let used = self.used_on(task, class, cpu);
                shift(&mut self.bound_on_each(class, cpus)[cpu.0 as usize], used, used + weight);
            }
            // Case 4.
            (None, _) => {
                let used = self.used_on_each(task, class, cpus);
                for (histogram, used) in self.bound_on_each(class, cpus).iter_mut().zip(used) {
                    shift(histogram, used, used + weight);
                }
            }
        }
    }

    fn bound_on_each(&mut self, class: usize, cpus: u32) -> &mut [Histogram] {
        let bound = &mut self.bound[class];
        bound.resize(cpus as usize, Histogram::default());
        bound
    }

    fn of_class(&self, task: TaskId, class: usize) -> impl Iterator<Item = &Item> {
        self.items(task).filter(move |item| usize::from(item.class) == class)
    }
}

/// Slots that `items` of one task use on a processor.
fn on<'a>(items: impl Iterator<Item = &'a Item>, cpu: Cpu) -> u32 {
    items.filter(|item| item.cpu.is_none_or(|at| at == cpu)).map(|item| u32::from(item.weight)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SlotKind;

    const CPUS: u32 = 3;
    const TASK: TaskId = TaskId(1);

    fn add(shard: &mut Shard, cpu: Option<u32>) -> usize {
        let item = Item { cpu: cpu.map(Cpu), kind: SlotKind::Data, class: 0, weight: 1 };
        let usage = shard.usage(TASK, 0);
        shard.insert(TASK, item, usage, CPUS)
    }

    fn most(shard: &Shard) -> [u32; CPUS as usize] {
        std::array::from_fn(|cpu| shard.most_on(0, Cpu(cpu as u32)))
    }

    #[test]
    fn each_case_and_its_reverse_are_right() {
        let mut shard = Shard::default();
        let anywhere = add(&mut shard, None);
        assert_eq!((most(&shard), shard.bound[0].len()), ([1, 1, 1], 0), "case 1");
        let bound = add(&mut shard, Some(1));
        assert_eq!((most(&shard), shard.anywhere[0].most()), ([1, 2, 1], 0), "case 2");
        let second = add(&mut shard, Some(2));
        assert_eq!(most(&shard), [1, 2, 2], "case 3");
        let fourth = add(&mut shard, None);
        assert_eq!(most(&shard), [2, 3, 3], "case 4");
        for (place, left) in
            [(anywhere, [1, 2, 2]), (bound, [1, 1, 2]), (second, [1, 1, 1]), (fourth, [0; 3])]
        {
            shard.remove(TASK, place, CPUS);
            assert_eq!(most(&shard), left);
        }
        let empty = Histogram::default();
        assert!(shard.anywhere[0] == empty && shard.bound[0].iter().all(|histogram| *histogram == empty));
    }

    #[test]
    fn task_with_most_slots_is_found() {
        let mut shard = Shard::default();
        add(&mut shard, Some(1));
        add(&mut shard, None);
        assert_eq!(shard.tasks_with(0, Cpu(1), 2).collect::<Vec<_>>(), [TASK]);
        assert_eq!(shard.tasks_with(0, Cpu(0), 2).count(), 0);
        assert_eq!(shard.tasks_with(1, Cpu(1), 2).count(), 0);
    }
}

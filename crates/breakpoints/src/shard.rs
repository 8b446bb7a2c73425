//! One shard of the tasks: their items, and histograms of what they use.
//!
//! # Invariants
//!
//! For each class of registers a task is counted either in `anywhere` (none of its items is bound to a
//! processor) or in all of `bound`, never in both. So the most that any task uses on a processor is the
//! greater one of two maxima, and a task without bound items costs one update however many processors
//! there are.

use std::mem::swap;

use crate::histogram::Histogram;
use crate::request::CLASSES;
use crate::table::{Item, Table};
use crate::{Cpu, Task};

/// What lies behind one lock.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    table: Table,
    anywhere: [Histogram; CLASSES],
    /// By processor; empty until there is the first bound item, which many programs never have.
    bound: [Vec<Histogram>; CLASSES],
}

/// What a task uses of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Slots wherever it runs.
    pub(crate) anywhere: u32,
    /// Items that are bound to a processor.
    pub(crate) bound: usize,
}

/// Whether an item comes or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Add,
    Remove,
}

impl Shard {
    /// The items of a task.
    pub(crate) fn items(&self, task: Task) -> impl Iterator<Item = &Item> {
        self.table.items(task)
    }

    /// How many tasks have items.
    pub(crate) fn tasks(&self) -> usize {
        self.table.len()
    }

    /// What a task uses.
    pub(crate) fn usage(&self, task: Task, class: usize) -> Usage {
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
    pub(crate) fn used_on(&self, task: Task, class: usize, cpu: Cpu) -> u32 {
        on(self.of_class(task, class), cpu)
    }

    /// Slots that a task uses, by processor.
    pub(crate) fn used_on_each(&self, task: Task, class: usize, cpus: u32) -> Vec<u32> {
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

    /// The tasks that use exactly so many slots on one processor.
    pub(crate) fn tasks_with(&self, class: usize, cpu: Cpu, slots: u32) -> impl Iterator<Item = Task> {
        self.table.tasks().filter_map(move |(task, items)| {
            let items = items.filter(|item| usize::from(item.class) == class);
            (on(items, cpu) == slots).then_some(task)
        })
    }

    /// Adds an item to a task that uses `usage`: its place.
    pub(crate) fn insert(&mut self, task: Task, item: Item, usage: Usage, cpus: u32) -> usize {
        self.account(task, item, usage, cpus, Change::Add);
        self.table.insert(task, item)
    }

    /// Removes the item of a task at `place`.
    pub(crate) fn remove(&mut self, task: Task, place: usize, cpus: u32) {
        // A reservation is given back once, by its owner; there is nothing to do for what is not there.
        let Some(item) = self.table.remove(task, place) else { return };
        let usage = self.usage(task, usize::from(item.class));
        self.account(task, item, usage, cpus, Change::Remove);
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
    fn account(&mut self, task: Task, item: Item, usage: Usage, cpus: u32, change: Change) {
        let class = usize::from(item.class);
        let weight = u32::from(item.weight);
        match (item.cpu, usage.bound) {
            // Case 1.
            (None, 0) => change.apply(&mut self.anywhere[class], usage.anywhere, usage.anywhere + weight),
            // Case 2.
            (Some(cpu), 0) => {
                change.apply(&mut self.anywhere[class], usage.anywhere, 0);
                for (index, histogram) in self.bound_on_each(class, cpus).iter_mut().enumerate() {
                    let here = if index == cpu.0 as usize { weight } else { 0 };
                    change.apply(histogram, 0, usage.anywhere + here);
                }
            }
            // Case 3.
            (Some(cpu), _) => {
                let used = self.used_on(task, class, cpu);
                change.apply(&mut self.bound_on_each(class, cpus)[cpu.0 as usize], used, used + weight);
            }
            // Case 4.
            (None, _) => {
                let used = self.used_on_each(task, class, cpus);
                for (histogram, used) in self.bound_on_each(class, cpus).iter_mut().zip(used) {
                    change.apply(histogram, used, used + weight);
                }
            }
        }
    }

    fn bound_on_each(&mut self, class: usize, cpus: u32) -> &mut [Histogram] {
        let bound = &mut self.bound[class];
        bound.resize(cpus as usize, Histogram::default());
        bound
    }

    fn of_class(&self, task: Task, class: usize) -> impl Iterator<Item = &Item> {
        self.items(task).filter(move |item| usize::from(item.class) == class)
    }
}

impl Change {
    /// One task uses `with` slots with the item and `without` without it.
    fn apply(self, histogram: &mut Histogram, mut without: u32, mut with: u32) {
        if self == Self::Remove {
            swap(&mut without, &mut with);
        }
        histogram.shift(without, with);
    }
}

/// Slots that `items` of one task use on a processor.
fn on<'a>(items: impl Iterator<Item = &'a Item>, cpu: Cpu) -> u32 {
    items.filter(|item| item.cpu.is_none_or(|at| at == cpu)).map(|item| u32::from(item.weight)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    const CPUS: u32 = 3;
    const TASK: Task = Task(1);

    fn add(shard: &mut Shard, cpu: Option<u32>) -> usize {
        let item = Item { cpu: cpu.map(Cpu), kind: Kind::Data, class: 0, weight: 1 };
        let usage = shard.usage(TASK, 0);
        shard.insert(TASK, item, usage, CPUS)
    }

    fn most(shard: &Shard) -> [u32; CPUS as usize] {
        std::array::from_fn(|cpu| shard.most_on(0, Cpu(cpu as u32)))
    }

    #[test]
    fn the_four_cases_and_their_reverses_leave_the_histograms_right() {
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
    fn who_reaches_a_maximum_is_found() {
        let mut shard = Shard::default();
        add(&mut shard, Some(1));
        add(&mut shard, None);
        assert_eq!(shard.tasks_with(0, Cpu(1), 2).collect::<Vec<_>>(), [TASK]);
        assert_eq!(shard.tasks_with(0, Cpu(0), 2).count(), 0);
        assert_eq!(shard.tasks_with(1, Cpu(1), 2).count(), 0);
    }
}

//! A hash table that holds several items per task.
//!
//! The items of a task are a list that starts at one entry (the kernel's `rhltable`), so finding
//! all of them costs one look-up in a table of any size. The items lie in one array whose free
//! places are reused last in, first out: a task that comes and goes finds them in the cache.
//!
//! The hash keeps tasks with close numbers close in memory, four to a line: tasks are numbered by
//! counters, so neighbours come and go together, and the cold line that a new task meets in a big
//! table is met once for four. Collisions cannot be provoked: the numbers are this process's own.
//!
//! # Invariants
//!
//! 1. A task has an entry if and only if it has an item.
//! 2. Each place of `items` is in exactly one list: a task's, or the list of free places.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::{Cpu, SlotKind, TaskId};

/// The end of a list.
const NONE: usize = usize::MAX;

/// One breakpoint of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    /// Where alone it counts; `None`: wherever the task runs.
    pub(crate) cpu: Option<Cpu>,
    pub(crate) kind: SlotKind,
    pub(crate) class: u8,
    pub(crate) weight: u8,
}

#[derive(Debug)]
struct Node {
    next: usize,
    item: Item,
}

/// Items by task.
#[derive(Debug)]
pub(crate) struct Table {
    heads: HashMap<TaskId, usize, BuildHasherDefault<NearHash>>,
    nodes: Vec<Node>,
    free: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self { heads: HashMap::default(), nodes: Vec::new(), free: NONE }
    }
}

impl Table {
    /// The items of a task, the youngest first.
    pub(crate) fn items(&self, task: TaskId) -> impl Iterator<Item = &Item> {
        self.list(self.heads.get(&task).copied().unwrap_or(NONE))
    }

    /// Adds an item: where it lies until it is removed.
    pub(crate) fn insert(&mut self, task: TaskId, item: Item) -> usize {
        let place = self.free;
        let head = self.heads.entry(task).or_insert(NONE);
        let node = Node { next: *head, item };
        *head = if let Some(free) = self.nodes.get_mut(place) {
            self.free = free.next;
            *free = node;
            place
        } else {
            self.nodes.push(node);
            self.nodes.len() - 1
        };
        *head
    }

    /// Takes the item of a task that lies at `place` out; `None` if the task has none there.
    pub(crate) fn remove(&mut self, task: TaskId, place: usize) -> Option<Item> {
        let head = self.heads.get_mut(&task)?;
        let next = self.nodes.get(place)?.next;
        if *head != place {
            let mut before = *head;
            while self.nodes.get(before)?.next != place {
                before = self.nodes[before].next;
            }
            self.nodes[before].next = next;
        } else if next != NONE {
            *head = next;
        } else {
            self.heads.remove(&task);
        }
        self.nodes[place].next = self.free;
        self.free = place;
        Some(self.nodes[place].item)
    }

    /// All tasks with their items.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (TaskId, impl Iterator<Item = &Item>)> {
        self.heads.iter().map(|(&task, &head)| (task, self.list(head)))
    }

    /// How many tasks have items.
    pub(crate) fn len(&self) -> usize {
        self.heads.len()
    }

    fn list(&self, head: usize) -> impl Iterator<Item = &Item> {
        let mut at = head;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at)?;
            at = node.next;
            Some(&node.item)
        })
    }
}

/// The hash of a task's number within its shard.
#[derive(Debug, Default)]
pub(crate) struct NearHash(u64);

impl Hasher for NearHash {
    fn write_u64(&mut self, number: u64) {
        let number = number >> SHARD_BITS;
        let near = number & 3;
        let mixed = fold(number >> 2);
        // The low bits choose the place; the high ones, which are compared first, tell neighbours
        // apart.
        self.0 = (mixed & !3 | near) ^ near << 57;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = fold(self.0 ^ u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Shards are 2 to this power.
pub(crate) const SHARD_BITS: u32 = 6;

/// The shard of a task. Sixty-four neighbours are in sixty-four shards, so that threads that start
/// tasks at the same time do not meet at one lock; which is in which changes from one sixty-four to
/// the next, so that strides spread too.
pub(crate) fn shard_of(task: TaskId) -> usize {
    let shards = (1 << SHARD_BITS) - 1;
    ((task.0 ^ fold(task.0 >> SHARD_BITS)) & shards) as usize
}

/// Both halves of a product: every bit of the result depends on every bit of the number.
fn fold(number: u64) -> u64 {
    let product = u128::from(number ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15_u128;
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    use super::*;

    fn item(weight: u8) -> Item {
        Item { cpu: None, kind: SlotKind::Data, class: 0, weight }
    }

    fn weights(table: &Table, task: TaskId) -> Vec<u8> {
        table.items(task).map(|item| item.weight).collect()
    }

    #[test]
    fn places_of_removed_items_are_used_again() {
        let mut table = Table::default();
        let (one, two) = (TaskId(1), TaskId(65));
        let places: Vec<_> = (1..=4).map(|weight| table.insert(one, item(weight))).collect();
        table.insert(two, item(9));
        assert_eq!(weights(&table, one), [4, 3, 2, 1]);
        for (place, left) in [(1, vec![4, 3, 1]), (3, vec![3, 1]), (0, vec![3]), (2, vec![])] {
            assert_eq!(table.remove(one, places[place]), Some(item(place as u8 + 1)));
            assert_eq!(weights(&table, one), left);
        }
        assert_eq!((table.len(), table.remove(one, places[0])), (1, None));
        assert_eq!(table.insert(two, item(5)), places[2]);
        assert_eq!(weights(&table, two), [5, 9]);
        assert_eq!(table.nodes.len(), 5);
    }

    #[test]
    fn a_place_of_another_task_is_not_removed() {
        let mut table = Table::default();
        let place = table.insert(TaskId(1), item(1));
        table.insert(TaskId(2), item(2));
        assert_eq!(table.remove(TaskId(2), place), None);
        assert_eq!(weights(&table, TaskId(1)), [1]);
    }

    /// The number of different values that `of` gives for 4096 tasks in steps of `stride`, divided
    /// by the number that chance would give with that many values to choose from.
    fn spread(stride: u64, values: usize, of: impl Fn(TaskId) -> usize) -> f64 {
        let seen: HashSet<usize> = (0..4096_u64).map(|n| of(TaskId(n.wrapping_mul(stride)))).collect();
        let by_chance = values as f64 * (1.0 - (1.0 - 1.0 / values as f64).powi(4096));
        seen.len() as f64 / by_chance
    }

    #[test]
    fn neither_counters_nor_strides_nor_addresses_pile_up() {
        let hash = |task: TaskId| BuildHasherDefault::<NearHash>::default().hash_one(task);
        for stride in [1, 2, 3, 16, 64, 256, 1000, 4096, 1 << 20, 1 << 32, 1 << 44] {
            assert!(spread(stride, 64, shard_of) > 0.95, "shards, stride {stride}");
            // The table probes groups of 16 places.
            let groups = spread(stride << SHARD_BITS, 256, |task| (hash(task) >> 4) as usize % 256);
            assert!(groups > 0.95, "places, stride {stride}: {groups}");
        }
    }

    #[test]
    fn neighbours_of_a_shard_lie_side_by_side() {
        let hash = |task: TaskId| {
            let mut hasher = NearHash::default();
            task.hash(&mut hasher);
            hasher.finish() & 0xff
        };
        let four: Vec<u64> = (0..4).map(|n| hash(TaskId(n << SHARD_BITS))).collect();
        assert_eq!(four, [four[0], four[0] + 1, four[0] + 2, four[0] + 3]);
    }
}

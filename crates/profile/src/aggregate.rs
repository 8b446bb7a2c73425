//! Adds samples up: a tree of stacks, and a row for each group, thread and stack.
//!
//! The table is bounded, whatever a program does: a stack that finds no room is counted without its
//! frames, and the profile contains their number ([`Aggregate::merged`]). Without memory for a row
//! of its own, such a sample is counted in a row that stands for all others, without a group.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use dormouse_protocol::profile::{NO_GROUP, Node, ProfileGroup, Sample, Thread, Values};

/// The most nodes of stacks: some 15 MB.
const MOST_NODES: usize = 200_000;
/// The most rows with a stack: some 15 MB.
const MOST_ROWS: usize = 100_000;
/// The most threads that are counted separately.
const MOST_THREADS: usize = 10_000;
/// The most groups: there are fewer, but a program may have numbers of its own.
const MOST_GROUPS: usize = 10_000;

/// Samples that are added up.
#[derive(Debug)]
pub(crate) struct Aggregate {
    groups: HashMap<u32, u32>,
    group_ids: Vec<u32>,
    /// With room for one more, which stands for all others.
    threads: Vec<Thread>,
    has_others: bool,
    nodes: HashMap<Node, u32>,
    stacks: Vec<Node>,
    rows: HashMap<(u32, u32, u32), u32>,
    /// With room for one more, which stands for all others.
    samples: Vec<Sample>,
    /// The row of all others, once there was no memory for another one.
    others: Option<u32>,
    merged: u64,
}

impl Aggregate {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            groups: HashMap::from([(0, NO_GROUP)]),
            group_ids: vec![0],
            threads: Vec::with_capacity(1),
            has_others: false,
            nodes: HashMap::new(),
            stacks: Vec::new(),
            rows: HashMap::new(),
            samples: Vec::with_capacity(1),
            others: None,
            merged: 0,
        }
    }

    /// Adds a thread, and gives its index: where there are too many, that of all others.
    pub(crate) fn add_thread(&mut self, thread: Thread) -> u32 {
        if self.has_others || self.threads.len() >= MOST_THREADS || self.threads.try_reserve(2).is_err() {
            return self.other_threads();
        }
        self.threads.push(thread);
        (self.threads.len() - 1) as u32
    }

    /// The index of the thread that stands for all others: the last one.
    pub(crate) fn other_threads(&mut self) -> u32 {
        if !self.has_others {
            self.has_others = true;
            self.threads.push(Thread { tid: 0, name: "other threads".into() });
        }
        (self.threads.len() - 1) as u32
    }

    /// Gives a thread another name, if it has a place of its own.
    pub(crate) fn name_thread(&mut self, index: u32, thread: Thread) {
        if let Some(known) = self.threads.get_mut(index as usize).filter(|known| known.tid == thread.tid) {
            *known = thread;
        }
    }

    /// Adds a sample: the group's number, the thread's index, the frames with the innermost first.
    /// Gives the index of its row.
    pub(crate) fn add(
        &mut self,
        group: u32,
        thread: u32,
        frames: impl DoubleEndedIterator<Item = u64>,
        values: Values,
    ) -> u32 {
        let group = self.group(group);
        let stack = self.stack(frames);
        let has_place = stack == 0 || self.samples.len() < MOST_ROWS;
        let row = match self.rows.get(&(group, thread, stack)).copied() {
            Some(row) => row,
            None if has_place && has_memory(&mut self.samples, &mut self.rows) => {
                let row = self.push(group, thread, stack);
                self.rows.insert((group, thread, stack), row);
                row
            }
            None if stack != 0 => {
                self.merged += 1;
                return self.add(self.group_ids[group as usize], thread, std::iter::empty(), values);
            }
            None => self.other_rows(),
        };
        for (sum, value) in self.samples[row as usize].values.iter_mut().zip(values) {
            *sum += value;
        }
        row
    }

    /// The row of all others, in the room that was kept for it.
    fn other_rows(&mut self) -> u32 {
        if let Some(row) = self.others {
            return row;
        }
        let thread = self.other_threads();
        let row = self.push(NO_GROUP, thread, 0);
        self.others = Some(row);
        row
    }

    fn push(&mut self, group: u32, thread: u32, stack: u32) -> u32 {
        self.samples.push(Sample { group, thread, stack, values: Values::default() });
        (self.samples.len() - 1) as u32
    }

    /// Whether a stack has an address in one of the ranges.
    pub(crate) fn has_any_in(&self, ranges: &[Range<u64>]) -> bool {
        !ranges.is_empty()
            && self.stacks.iter().any(|node| ranges.iter().any(|range| range.contains(&node.address)))
    }

    /// The samples whose stack found no room.
    pub(crate) fn merged(&self) -> u64 {
        self.merged
    }

    /// The threads so far.
    pub(crate) fn threads_mut(&mut self) -> &mut [Thread] {
        &mut self.threads
    }

    /// The bytes that [`Aggregate::parts`] takes.
    pub(crate) fn size(&self) -> usize {
        let names: usize = self.threads.iter().map(|thread| thread.name.len()).sum();
        self.group_ids.len() * size_of::<ProfileGroup>()
            + size_of_val(&self.threads[..])
            + names
            + size_of_val(&self.stacks[..])
            + size_of_val(&self.samples[..])
    }

    /// The groups, threads, stacks and samples of a profile. Groups have numbers only.
    pub(crate) fn parts(&self) -> (Vec<ProfileGroup>, Vec<Thread>, Vec<Node>, Vec<Sample>) {
        let groups =
            self.group_ids.iter().map(|&id| ProfileGroup { id, ..ProfileGroup::default() }).collect();
        (groups, self.threads.clone(), self.stacks.clone(), self.samples.clone())
    }

    fn group(&mut self, id: u32) -> u32 {
        if self.group_ids.len() >= MOST_GROUPS || !has_memory(&mut self.group_ids, &mut self.groups) {
            return self.groups.get(&id).copied().unwrap_or(NO_GROUP);
        }
        let next = self.group_ids.len() as u32;
        *self.groups.entry(id).or_insert_with(|| {
            self.group_ids.push(id);
            next
        })
    }

    /// One more than the index of the innermost frame's node; 0 without frames or room.
    fn stack(&mut self, frames: impl DoubleEndedIterator<Item = u64>) -> u32 {
        let mut parent = 0;
        for address in frames.rev() {
            let node = Node { parent, address };
            parent = match self.nodes.get(&node).copied() {
                Some(known) => known,
                None if self.stacks.len() < MOST_NODES && has_memory(&mut self.stacks, &mut self.nodes) => {
                    self.stacks.push(node);
                    let number = self.stacks.len() as u32;
                    self.nodes.insert(node, number);
                    number
                }
                None => {
                    self.merged += 1;
                    return 0;
                }
            };
        }
        parent
    }
}

/// Whether there is memory for one more in the list and in its index, and for the one that stands
/// for all others. A table that grows may need much at once.
fn has_memory<T, K: Eq + Hash, V>(list: &mut Vec<T>, index: &mut HashMap<K, V>) -> bool {
    list.try_reserve(2).is_ok() && index.try_reserve(1).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_samples_share_a_row() {
        let mut all = Aggregate::new();
        let thread = all.add_thread(Thread { tid: 7, name: "t".into() });
        let first = all.add(5, thread, [3, 2, 1].into_iter(), [1, 10, 0, 0]);
        assert_eq!(all.add(5, thread, [3, 2, 1].into_iter(), [1, 5, 0, 0]), first);
        assert_ne!(all.add(5, thread, [4, 2, 1].into_iter(), [1, 5, 0, 0]), first);
        assert_ne!(all.add(0, thread, [3, 2, 1].into_iter(), [1, 5, 0, 0]), first);
        let (groups, _, stacks, samples) = all.parts();
        assert_eq!(groups.iter().map(|group| group.id).collect::<Vec<_>>(), [0, 5]);
        // One node for each frame, the outermost shared.
        assert_eq!(stacks.len(), 4);
        assert_eq!(samples.len(), 3);
        assert_eq!(samples[first as usize].values, [2, 15, 0, 0]);
    }

    #[test]
    fn a_full_table_keeps_weights() {
        let mut all = Aggregate::new();
        let thread = all.add_thread(Thread::default());
        let count = MOST_NODES.max(MOST_ROWS) as u64 + 1000;
        for address in 0..count {
            all.add(0, thread, [address].into_iter(), [1, 2, 0, 0]);
        }
        let (_, _, stacks, samples) = all.parts();
        assert!(stacks.len() <= MOST_NODES && samples.len() <= MOST_ROWS + 1);
        assert_eq!(samples.iter().map(|row| row.values[1]).sum::<u64>(), 2 * count);
        let without = samples.iter().find(|row| row.stack == 0).unwrap();
        assert_eq!(without.values[0], all.merged());
    }

    /// Samples of 5000 groups or more, of which the tables have no room for another one as soon as
    /// there is no memory, by `is_full`.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn without_memory_others_are_one_row(is_full: fn(&Aggregate) -> bool) {
        use crate::scarce::{limit_memory, rest_of_memory};

        let mut all = Aggregate::new();
        let threads = [1, 2].map(|tid| all.add_thread(Thread { tid, name: String::new() }));
        let add = |all: &mut Aggregate, group, thread| {
            all.add(group, thread, [7].into_iter(), [1, 2, 0, 0]);
        };
        let mut count = 0;
        while count < 5000 || !is_full(&all) {
            count += 1;
            add(&mut all, count, threads[0]);
        }
        let before = all.samples.len();
        limit_memory(1 << 20);
        let rest = rest_of_memory();
        for group in 1..=count {
            add(&mut all, group, threads[1]);
        }
        drop(rest);
        limit_memory(1 << 40);
        let merged = u64::from(count);
        assert_eq!(all.merged(), merged);
        // Rows are made again once there is memory.
        add(&mut all, 1, threads[1]);
        let (_, threads, _, samples) = all.parts();
        assert_eq!(samples.len(), before + 2);
        let others = &samples[before];
        assert_eq!((others.group, others.stack, others.values[0]), (NO_GROUP, 0, merged));
        assert_eq!(threads[others.thread as usize].name, "other threads");
        let weight: u64 = samples.iter().map(|row| row.values[1]).sum();
        assert_eq!(weight, 2 * (2 * merged + 1));
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn without_memory_for_rows_others_are_one() {
        dormouse_testkit::in_child(|| {
            without_memory_others_are_one_row(|all| all.rows.len() == all.rows.capacity());
        });
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn without_memory_for_samples_others_are_one() {
        dormouse_testkit::in_child(|| {
            without_memory_others_are_one_row(|all| all.samples.len() + 1 == all.samples.capacity());
        });
    }

    #[test]
    fn threads_and_groups_are_bounded() {
        let mut all = Aggregate::new();
        let count = 2 * MOST_THREADS.max(MOST_GROUPS) as u32;
        for n in 1..=count {
            let thread = all.add_thread(Thread { tid: n, name: String::new() });
            all.add(n, thread, [1].into_iter(), [1, 2, 0, 0]);
        }
        let (groups, threads, _, samples) = all.parts();
        assert_eq!((groups.len(), threads.len()), (MOST_GROUPS, MOST_THREADS + 1));
        assert_eq!(threads[MOST_THREADS].name, "other threads");
        assert_eq!(samples.iter().map(|row| row.values[1]).sum::<u64>(), 2 * u64::from(count));
        let named = samples.iter().filter(|row| row.group != NO_GROUP).count();
        assert_eq!(named, MOST_GROUPS - 1);
    }
}

//! Adds samples up: a tree of stacks, and a row for each group, thread and stack.
//!
//! The table is bounded, whatever a program does: a stack that finds no room is counted without its
//! frames, and the profile contains their number ([`Aggregate::merged`]).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    samples: Vec<Sample>,
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
            samples: Vec::new(),
            merged: 0,
        }
    }

    /// Adds a thread, and gives its index: where there are too many, that of all others.
    pub(crate) fn add_thread(&mut self, thread: Thread) -> u32 {
        if !self.has_others {
            self.has_others = self.threads.len() >= MOST_THREADS || self.threads.try_reserve(2).is_err();
            let others = || Thread { tid: 0, name: "other threads".into() };
            self.threads.push(if self.has_others { others() } else { thread });
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
        let has_room = self.samples.len() < MOST_ROWS && has_memory(&mut self.samples, &mut self.rows);
        let row = match self.rows.entry((group, thread, stack)) {
            Entry::Occupied(row) => *row.get(),
            Entry::Vacant(place) if has_room || stack == 0 => {
                self.samples.push(Sample { group, thread, stack, values: Values::default() });
                *place.insert((self.samples.len() - 1) as u32)
            }
            Entry::Vacant(_) => {
                self.merged += 1;
                return self.add(self.group_ids[group as usize], thread, std::iter::empty(), values);
            }
        };
        for (sum, value) in self.samples[row as usize].values.iter_mut().zip(values) {
            *sum += value;
        }
        row
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

/// Whether there is memory for one more in the list and in its index. A table that grows may need
/// much at once.
fn has_memory<T, K: Eq + Hash, V>(list: &mut Vec<T>, index: &mut HashMap<K, V>) -> bool {
    list.try_reserve(1).is_ok() && index.try_reserve(1).is_ok()
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

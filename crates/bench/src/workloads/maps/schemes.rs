//! The three ways to answer: the two of the origin, and ours.
//!
//! A fourth says what no cache of this kind can exceed.
//!
//! All keep mappings for each process and whatever they cache for each thread, and are told the same
//! changes. The origin's two run here without the lock that they need when threads run side by side; that is to
//! their advantage.

use std::collections::HashSet;

use dormouse_maps::{Cache, Edit, EditError, Overlap, RangeMap};

use super::tree::Tree;

/// A way to find the mapping of an address.
pub(super) trait Scheme {
    fn new() -> Self;
    /// The next process, with the mappings of `parent`.
    fn process(&mut self, parent: Option<u32>);
    /// The next thread.
    fn thread(&mut self, process: u32);
    fn exit(&mut self, process: u32);
    fn map(&mut self, process: u32, start: u64, last: u64, value: u64);
    fn grow(&mut self, process: u32, start: u64, last: u64);
    /// The value of the mapping that `addr` lies in.
    fn find(&mut self, thread: u32, addr: u64) -> Option<u64>;
    /// Look-ups that a cache answered.
    fn hits(&self) -> u64;
}

/// Before the origin: the mapping that was found last, one for all threads of a process.
#[derive(Debug)]
pub(super) struct Single {
    processes: Vec<(Tree, Option<u32>)>,
    threads: Vec<u32>,
    hits: u64,
}

impl Scheme for Single {
    fn new() -> Self {
        Self { processes: Vec::new(), threads: Vec::new(), hits: 0 }
    }

    fn process(&mut self, parent: Option<u32>) {
        let tree = parent.map_or_else(Tree::new, |parent| self.processes[parent as usize].0.clone());
        self.processes.push((tree, None));
    }

    fn thread(&mut self, process: u32) {
        self.threads.push(process);
    }

    fn exit(&mut self, process: u32) {
        self.processes[process as usize] = (Tree::new(), None);
    }

    fn map(&mut self, process: u32, start: u64, last: u64, value: u64) {
        let (tree, cached) = &mut self.processes[process as usize];
        if tree.map(start, last, value) {
            *cached = None;
        }
    }

    fn grow(&mut self, process: u32, start: u64, last: u64) {
        self.processes[process as usize].0.grow(start, last);
    }

    #[inline]
    fn find(&mut self, thread: u32, addr: u64) -> Option<u64> {
        let (tree, cached) = &mut self.processes[self.threads[thread as usize] as usize];
        if let Some(node) = cached.map(|at| tree.node(at)).filter(|node| node.contains(addr)) {
            self.hits += 1;
            return Some(node.value);
        }
        let at = tree.find(addr)?;
        *cached = Some(at);
        Some(tree.node(at).value)
    }

    fn hits(&self) -> u64 {
        self.hits
    }
}

/// Slots of a thread.
const SLOTS: usize = 4;

/// The origin: four slots for each thread, filled by page number, searched all, emptied when the process's sequence
/// number has moved.
#[derive(Debug)]
pub(super) struct Vmacache {
    processes: Vec<(Tree, u64)>,
    threads: Vec<Slots>,
    hits: u64,
}

#[derive(Debug)]
struct Slots {
    process: u32,
    sequence: u64,
    nodes: [Option<u32>; SLOTS],
}

impl Scheme for Vmacache {
    fn new() -> Self {
        Self { processes: Vec::new(), threads: Vec::new(), hits: 0 }
    }

    fn process(&mut self, parent: Option<u32>) {
        let tree = parent.map_or_else(Tree::new, |parent| self.processes[parent as usize].0.clone());
        self.processes.push((tree, 0));
    }

    fn thread(&mut self, process: u32) {
        self.threads.push(Slots { process, sequence: 0, nodes: [None; SLOTS] });
    }

    fn exit(&mut self, process: u32) {
        self.processes[process as usize] = (Tree::new(), 0);
    }

    fn map(&mut self, process: u32, start: u64, last: u64, value: u64) {
        let (tree, sequence) = &mut self.processes[process as usize];
        if tree.map(start, last, value) {
            *sequence += 1;
        }
    }

    fn grow(&mut self, process: u32, start: u64, last: u64) {
        self.processes[process as usize].0.grow(start, last);
    }

    #[inline]
    fn find(&mut self, thread: u32, addr: u64) -> Option<u64> {
        let slots = &mut self.threads[thread as usize];
        let (tree, sequence) = &self.processes[slots.process as usize];
        if slots.sequence == *sequence {
            for &at in slots.nodes.iter().flatten() {
                let node = tree.node(at);
                if node.contains(addr) {
                    self.hits += 1;
                    return Some(node.value);
                }
            }
        } else {
            slots.sequence = *sequence;
            slots.nodes = [None; SLOTS];
        }
        let at = tree.find(addr)?;
        slots.nodes[(addr >> super::PAGE_BITS) as usize % SLOTS] = Some(at);
        Some(tree.node(at).value)
    }

    fn hits(&self) -> u64 {
        self.hits
    }
}

/// Ours.
#[derive(Debug)]
pub(super) struct Dormouse {
    processes: Vec<RangeMap<u64>>,
    threads: Vec<(u32, Box<Cache<u64>>)>,
}

impl Dormouse {
    fn update(&self, process: u32, edit: impl FnOnce(&mut Edit<u64>) -> Result<(), EditError>) {
        // What is refused makes answers wrong, and the replay compares them.
        let _ = self.processes[process as usize].update(edit);
    }
}

impl Scheme for Dormouse {
    fn new() -> Self {
        Self { processes: Vec::new(), threads: Vec::new() }
    }

    fn process(&mut self, parent: Option<u32>) {
        let inherited = parent.map(|parent| self.processes[parent as usize].mappings());
        let process = self.processes.len() as u32;
        self.processes.push(RangeMap::new());
        if let Some(Ok(inherited)) = inherited {
            self.update(process, |edit| {
                inherited.iter().try_for_each(|m| edit.insert(m.start..=m.last, m.value, Overlap::Reject))
            });
        }
    }

    fn thread(&mut self, process: u32) {
        self.threads.push((process, Box::default()));
    }

    fn exit(&mut self, process: u32) {
        self.update(process, |edit| {
            edit.clear();
            Ok(())
        });
    }

    fn map(&mut self, process: u32, start: u64, last: u64, value: u64) {
        self.update(process, |edit| edit.insert(start..=last, value, Overlap::Split));
    }

    fn grow(&mut self, process: u32, start: u64, last: u64) {
        self.update(process, |edit| edit.grow(start..=last));
    }

    #[inline]
    fn find(&mut self, thread: u32, addr: u64) -> Option<u64> {
        let (process, cache) = &self.threads[thread as usize];
        let answer = self.processes[*process as usize].find_cached(cache, addr);
        answer.ok().flatten().map(|mapping| mapping.value)
    }

    fn hits(&self) -> u64 {
        self.threads.iter().map(|(_, cache)| cache.stats().hits).sum()
    }
}

/// A cache for each thread that keeps everything that was ever looked up and loses it only as the origin's does: what
/// it misses was never asked for by that thread since.
#[derive(Debug)]
pub(super) struct Limit {
    processes: Vec<(Tree, u64)>,
    threads: Vec<(u32, u64, HashSet<u32>)>,
    hits: u64,
}

impl Scheme for Limit {
    fn new() -> Self {
        Self { processes: Vec::new(), threads: Vec::new(), hits: 0 }
    }

    fn process(&mut self, parent: Option<u32>) {
        let tree = parent.map_or_else(Tree::new, |parent| self.processes[parent as usize].0.clone());
        self.processes.push((tree, 0));
    }

    fn thread(&mut self, process: u32) {
        self.threads.push((process, 0, HashSet::new()));
    }

    fn exit(&mut self, process: u32) {
        self.processes[process as usize] = (Tree::new(), 0);
    }

    fn map(&mut self, process: u32, start: u64, last: u64, value: u64) {
        let (tree, sequence) = &mut self.processes[process as usize];
        *sequence += u64::from(tree.map(start, last, value));
    }

    fn grow(&mut self, process: u32, start: u64, last: u64) {
        self.processes[process as usize].0.grow(start, last);
    }

    fn find(&mut self, thread: u32, addr: u64) -> Option<u64> {
        let (process, seen, known) = &mut self.threads[thread as usize];
        let (tree, sequence) = &self.processes[*process as usize];
        if std::mem::replace(seen, *sequence) != *sequence {
            known.clear();
        }
        let at = tree.find(addr)?;
        self.hits += u64::from(!known.insert(at));
        Some(tree.node(at).value)
    }

    fn hits(&self) -> u64 {
        self.hits
    }
}

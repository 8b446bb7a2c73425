//! The three ways to answer: the two of the origin, and ours.
//!
//! A fourth says what no cache of the origin's kind can exceed.
//!
//! All keep mappings for each process and whatever they cache for each thread, and are told the same changes. The
//! origin's two need a lock against changes when threads run side by side: the kernel held the reader's side of one
//! around each look-up and did not count it. They come without it, as the origin counted, and with it, as a program has
//! to use them.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dormouse_maps::{Cache, Edit, EditError, Overlap, RangeMap};

use super::replay::{Fault, each};
use super::tree::{NIL, Tree};

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
    /// Finds the values of mappings as [`each`] does.
    fn look_up(&mut self, faults: &[Fault], answers: u64) -> u64;
    /// Look-ups that a cache answered.
    fn hits(&self) -> u64;
}

/// The mappings of a process and what the origin's schemes keep beside them. What look-ups of other threads could change is
/// atomic, so that it is read each time.
#[derive(Debug)]
struct Space {
    lock: RwLock<()>,
    tree: Tree,
    /// The mapping found last, by whichever thread.
    last: AtomicU32,
    /// How often something was removed.
    sequence: AtomicU64,
}

impl Space {
    fn new(tree: Tree) -> Self {
        Self { lock: RwLock::new(()), tree, last: AtomicU32::new(NIL), sequence: AtomicU64::new(0) }
    }
}

/// The processes of the origin's schemes.
#[derive(Debug, Default)]
struct Spaces(Vec<Space>);

impl Spaces {
    fn process(&mut self, parent: Option<u32>) {
        let tree = parent.map_or_else(Tree::new, |parent| self.0[parent as usize].tree.clone());
        self.0.push(Space::new(tree));
    }

    fn exit(&mut self, process: u32) {
        self.0[process as usize] = Space::new(Tree::new());
    }

    fn map(&mut self, process: u32, start: u64, last: u64, value: u64) {
        let space = &mut self.0[process as usize];
        if space.tree.map(start, last, value) {
            *space.last.get_mut() = NIL;
            *space.sequence.get_mut() += 1;
        }
    }

    fn grow(&mut self, process: u32, start: u64, last: u64) {
        self.0[process as usize].tree.grow(start, last);
    }
}

/// Before the origin: the mapping that was found last, one for all threads of a process.
#[derive(Debug)]
pub(super) struct Single<const LOCKED: bool> {
    spaces: Spaces,
    threads: Vec<u32>,
    hits: u64,
}

impl<const LOCKED: bool> Scheme for Single<LOCKED> {
    fn new() -> Self {
        Self { spaces: Spaces::default(), threads: Vec::new(), hits: 0 }
    }

    fn process(&mut self, parent: Option<u32>) {
        self.spaces.process(parent);
    }

    fn thread(&mut self, process: u32) {
        self.threads.push(process);
    }

    fn exit(&mut self, process: u32) {
        self.spaces.exit(process);
    }

    fn map(&mut self, process: u32, start: u64, last: u64, value: u64) {
        self.spaces.map(process, start, last, value);
    }

    fn grow(&mut self, process: u32, start: u64, last: u64) {
        self.spaces.grow(process, start, last);
    }

    #[inline]
    fn look_up(&mut self, faults: &[Fault], answers: u64) -> u64 {
        let Self { spaces, threads, hits } = self;
        let current = |thread| &spaces.0[threads[thread as usize] as usize];
        each(faults, answers, current, |space, addr| {
            let _reading = LOCKED.then(|| space.lock.read());
            let last = space.last.load(Ordering::Relaxed);
            if last != NIL {
                let node = space.tree.node(last);
                if node.contains(addr) {
                    *hits += 1;
                    return Some(node.value);
                }
            }
            let at = space.tree.find(addr)?;
            space.last.store(at, Ordering::Relaxed);
            Some(space.tree.node(at).value)
        })
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
pub(super) struct Vmacache<const LOCKED: bool> {
    spaces: Spaces,
    threads: Vec<Slots>,
    hits: u64,
}

#[derive(Debug)]
struct Slots {
    process: u32,
    sequence: Cell<u64>,
    nodes: [Cell<u32>; SLOTS],
}

impl<const LOCKED: bool> Scheme for Vmacache<LOCKED> {
    fn new() -> Self {
        Self { spaces: Spaces::default(), threads: Vec::new(), hits: 0 }
    }

    fn process(&mut self, parent: Option<u32>) {
        self.spaces.process(parent);
    }

    fn thread(&mut self, process: u32) {
        self.threads.push(Slots {
            process,
            sequence: Cell::new(0),
            nodes: [const { Cell::new(NIL) }; SLOTS],
        });
    }

    fn exit(&mut self, process: u32) {
        self.spaces.exit(process);
    }

    fn map(&mut self, process: u32, start: u64, last: u64, value: u64) {
        self.spaces.map(process, start, last, value);
    }

    fn grow(&mut self, process: u32, start: u64, last: u64) {
        self.spaces.grow(process, start, last);
    }

    #[inline]
    fn look_up(&mut self, faults: &[Fault], answers: u64) -> u64 {
        let Self { spaces, threads, hits } = self;
        let current = |thread| {
            let slots = &threads[thread as usize];
            (slots, &spaces.0[slots.process as usize])
        };
        each(faults, answers, current, |(slots, space), addr| {
            let _reading = LOCKED.then(|| space.lock.read());
            let sequence = space.sequence.load(Ordering::Relaxed);
            if slots.sequence.get() == sequence {
                for at in slots.nodes.iter().map(Cell::get).filter(|&at| at != NIL) {
                    let node = space.tree.node(at);
                    if node.contains(addr) {
                        *hits += 1;
                        return Some(node.value);
                    }
                }
            } else {
                slots.sequence.set(sequence);
                slots.nodes.iter().for_each(|node| node.set(NIL));
            }
            let at = space.tree.find(addr)?;
            slots.nodes[(addr >> super::PAGE_BITS) as usize % SLOTS].set(at);
            Some(space.tree.node(at).value)
        })
    }

    fn hits(&self) -> u64 {
        self.hits
    }
}

/// Ours. If `TOLD`, the thread that maps something gives its cache along; a trace does not say which of several threads
/// that was, so only where a process has one.
#[derive(Debug)]
pub(super) struct Dormouse<const TOLD: bool> {
    processes: Vec<Process>,
    threads: Vec<(u32, Box<Cache<u64>>)>,
}

#[derive(Debug, Default)]
struct Process {
    map: RangeMap<u64>,
    threads: Vec<u32>,
}

impl<const TOLD: bool> Dormouse<TOLD> {
    fn update(&self, process: u32, edit: impl FnOnce(&mut Edit<u64>) -> Result<(), EditError>) {
        let process = &self.processes[process as usize];
        // What is refused makes answers wrong, and the replay compares them.
        let _ = match process.threads[..] {
            [thread] if TOLD => process.map.update_cached(&self.threads[thread as usize].1, edit),
            _ => process.map.update(edit),
        };
    }
}

impl<const TOLD: bool> Scheme for Dormouse<TOLD> {
    fn new() -> Self {
        Self { processes: Vec::new(), threads: Vec::new() }
    }

    fn process(&mut self, parent: Option<u32>) {
        let inherited = parent.map(|parent| self.processes[parent as usize].map.mappings());
        let process = self.processes.len() as u32;
        self.processes.push(Process::default());
        if let Some(Ok(inherited)) = inherited {
            self.update(process, |edit| {
                inherited.iter().try_for_each(|m| edit.insert(m.start..=m.last, m.value, Overlap::Reject))
            });
        }
    }

    fn thread(&mut self, process: u32) {
        self.processes[process as usize].threads.push(self.threads.len() as u32);
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
    fn look_up(&mut self, faults: &[Fault], answers: u64) -> u64 {
        let current = |thread| {
            let (process, cache) = &self.threads[thread as usize];
            (&self.processes[*process as usize].map, &**cache)
        };
        each(faults, answers, current, |(map, cache), addr| {
            map.find_cached(cache, addr).ok().flatten().map(|mapping| mapping.value)
        })
    }

    fn hits(&self) -> u64 {
        self.threads.iter().map(|(_, cache)| cache.stats().hits).sum()
    }
}

/// A cache for each thread that keeps everything that was ever looked up and loses it only as the origin's does: what
/// it misses was never asked for by that thread since.
#[derive(Debug)]
pub(super) struct Limit {
    spaces: Spaces,
    threads: Vec<(u32, u64, HashSet<u32>)>,
    hits: u64,
}

impl Scheme for Limit {
    fn new() -> Self {
        Self { spaces: Spaces::default(), threads: Vec::new(), hits: 0 }
    }

    fn process(&mut self, parent: Option<u32>) {
        self.spaces.process(parent);
    }

    fn thread(&mut self, process: u32) {
        self.threads.push((process, 0, HashSet::new()));
    }

    fn exit(&mut self, process: u32) {
        self.spaces.exit(process);
    }

    fn map(&mut self, process: u32, start: u64, last: u64, value: u64) {
        self.spaces.map(process, start, last, value);
    }

    fn grow(&mut self, process: u32, start: u64, last: u64) {
        self.spaces.grow(process, start, last);
    }

    fn look_up(&mut self, faults: &[Fault], answers: u64) -> u64 {
        let Self { spaces, threads, hits } = self;
        let mut find = |thread: u32, addr| {
            let (process, seen, known) = &mut threads[thread as usize];
            let space = &spaces.0[*process as usize];
            let sequence = space.sequence.load(Ordering::Relaxed);
            if std::mem::replace(seen, sequence) != sequence {
                known.clear();
            }
            let at = space.tree.find(addr)?;
            *hits += u64::from(!known.insert(at));
            Some(space.tree.node(at).value)
        };
        each(faults, answers, |thread| thread, &mut find)
    }

    fn hits(&self) -> u64 {
        self.hits
    }
}

//! The schemes: the two of the origin, ours, and the upper limit of any cache of the origin's kind.
//!
//! All keep mappings for each process and a cache of their kind for each thread, and get the same
//! changes. The origin's two need a lock against changes when threads run side by side: the kernel
//! held the reader's side of one around each look-up and did not count it. They are measured
//! without it, as the origin counted, and with it, as a program has to use them.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dormouse_maps::{Cache, Edit, EditError, Overlap, RangeMap};

use super::lookups::{Fault, PAGE_BITS, each};
use super::tree::{NIL, Tree};

/// A way to find the mapping of an address.
pub(super) trait Scheme: Default {
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

/// The mappings of a process under the origin's schemes. Look-ups of other threads could change the
/// atomic fields, so these are read each time.
#[derive(Debug, Default)]
pub(super) struct Space {
    lock: RwLock<()>,
    tree: Tree,
    /// The mapping found last, by any thread.
    last: AtomicU32,
    /// How often a mapping was removed.
    sequence: AtomicU64,
}

/// The cache of a thread under one of the origin's schemes.
pub(super) trait Memory: Default {
    const LOCKED: bool;

    /// The value of the mapping of `addr`, and whether the cache answered.
    fn find(&self, space: &Space, addr: u64) -> Option<(u64, bool)>;
}

/// A scheme of the origin's kind.
#[derive(Debug, Default)]
pub(super) struct Origin<M> {
    spaces: Vec<Space>,
    threads: Vec<(u32, M)>,
    hits: u64,
}

impl<M: Memory> Scheme for Origin<M> {
    fn process(&mut self, parent: Option<u32>) {
        let tree = parent.map(|parent| self.spaces[parent as usize].tree.clone()).unwrap_or_default();
        self.spaces.push(Space { tree, ..Space::default() });
    }

    fn thread(&mut self, process: u32) {
        self.threads.push((process, M::default()));
    }

    fn exit(&mut self, process: u32) {
        self.spaces[process as usize] = Space::default();
    }

    fn map(&mut self, process: u32, start: u64, last: u64, value: u64) {
        let space = &mut self.spaces[process as usize];
        if space.tree.map(start, last, value) {
            *space.last.get_mut() = NIL;
            *space.sequence.get_mut() += 1;
        }
    }

    fn grow(&mut self, process: u32, start: u64, last: u64) {
        self.spaces[process as usize].tree.grow(start, last);
    }

    #[inline]
    fn look_up(&mut self, faults: &[Fault], answers: u64) -> u64 {
        let Self { spaces, threads, hits } = self;
        let current = |thread| {
            let (process, memory) = &threads[thread as usize];
            (memory, &spaces[*process as usize])
        };
        each(faults, answers, current, |(memory, space): (&M, &Space), addr| {
            let _reading = M::LOCKED.then(|| space.lock.read());
            let (value, hit) = memory.find(space, addr)?;
            *hits += u64::from(hit);
            Some(value)
        })
    }

    fn hits(&self) -> u64 {
        self.hits
    }
}

/// Before the origin: the mapping that was found last, one for all threads of a process.
pub(super) type Single<const LOCKED: bool> = Origin<Last<LOCKED>>;

#[derive(Debug, Default)]
pub(super) struct Last<const LOCKED: bool>;

impl<const LOCKED: bool> Memory for Last<LOCKED> {
    const LOCKED: bool = LOCKED;

    #[inline]
    fn find(&self, space: &Space, addr: u64) -> Option<(u64, bool)> {
        let last = space.last.load(Ordering::Relaxed);
        if last != NIL {
            let node = space.tree.node(last);
            if node.contains(addr) {
                return Some((node.value, true));
            }
        }
        let at = space.tree.find(addr)?;
        space.last.store(at, Ordering::Relaxed);
        Some((space.tree.node(at).value, false))
    }
}

/// The origin: four slots for each thread, filled by page number, searched all, emptied when the
/// process's sequence number has moved.
pub(super) type Vmacache<const LOCKED: bool> = Origin<Slots<LOCKED>>;

/// Slots of a thread.
const SLOTS: usize = 4;

#[derive(Debug)]
pub(super) struct Slots<const LOCKED: bool> {
    sequence: Cell<u64>,
    nodes: [Cell<u32>; SLOTS],
}

impl<const LOCKED: bool> Default for Slots<LOCKED> {
    fn default() -> Self {
        Self { sequence: Cell::new(0), nodes: [const { Cell::new(NIL) }; SLOTS] }
    }
}

impl<const LOCKED: bool> Memory for Slots<LOCKED> {
    const LOCKED: bool = LOCKED;

    #[inline]
    fn find(&self, space: &Space, addr: u64) -> Option<(u64, bool)> {
        let sequence = space.sequence.load(Ordering::Relaxed);
        if self.sequence.get() == sequence {
            for at in self.nodes.iter().map(Cell::get).filter(|&at| at != NIL) {
                let node = space.tree.node(at);
                if node.contains(addr) {
                    return Some((node.value, true));
                }
            }
        } else {
            self.sequence.set(sequence);
            self.nodes.iter().for_each(|node| node.set(NIL));
        }
        let at = space.tree.find(addr)?;
        self.nodes[(addr >> PAGE_BITS) as usize % SLOTS].set(at);
        Some((space.tree.node(at).value, false))
    }
}

/// A cache for each thread that holds everything that the thread ever looked up and loses it only
/// as the origin's does: a miss was never looked up by that thread since.
pub(super) type Limit = Origin<Everything>;

#[derive(Debug, Default)]
pub(super) struct Everything {
    sequence: Cell<u64>,
    known: RefCell<HashSet<u32>>,
}

impl Memory for Everything {
    const LOCKED: bool = false;

    fn find(&self, space: &Space, addr: u64) -> Option<(u64, bool)> {
        let sequence = space.sequence.load(Ordering::Relaxed);
        if self.sequence.replace(sequence) != sequence {
            self.known.borrow_mut().clear();
        }
        let at = space.tree.find(addr)?;
        Some((space.tree.node(at).value, !self.known.borrow_mut().insert(at)))
    }
}

/// Our scheme. If `TOLD`, the thread that maps something passes its cache along; a trace does not
/// record which of several threads maps, so this is only done where a process has one.
#[derive(Debug, Default)]
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
        // A refused edit makes answers wrong, and the replay compares them.
        let _ = match process.threads[..] {
            [thread] if TOLD => process.map.update_cached(&self.threads[thread as usize].1, edit),
            _ => process.map.update(edit),
        };
    }
}

impl<const TOLD: bool> Scheme for Dormouse<TOLD> {
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
        self.update(process, |edit| edit.remove(..).map(drop));
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
        each(faults, answers, current, |(map, cache): (&RangeMap<u64>, &Cache<u64>), addr| {
            map.find_cached(cache, addr).ok().flatten().map(|mapping| mapping.value)
        })
    }

    fn hits(&self) -> u64 {
        self.threads.iter().map(|(_, cache)| cache.stats().hits).sum()
    }
}

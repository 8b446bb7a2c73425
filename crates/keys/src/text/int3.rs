//! The int3 protocol: the kernel's way to change code under running processors, in batches.
//!
//! Sites are queued in order of address, up to a capacity; a full queue is applied and filled again. To apply
//! a queue takes three barriers however many sites it holds (Linux: `smp_text_poke_batch_finish`):
//!
//! 1. the sorted table of sites is published for the trap handler, and every site's first byte becomes
//!    `int3`; barrier: from here on, who comes by traps, and goes on where the new instruction would;
//! 2. the tails of the new instructions are written; barrier: nobody decodes an old tail;
//! 3. the first bytes of the new instructions are written; barrier: nobody traps any more. The table is
//!    retired.
//!
//! A queue that refuses a site although it was just emptied is warned about once; from then on sites are
//! written one by one ([`fallback`] tells): slow, and right.
//!
//! # Invariants
//!
//! 1. A thread that traps finds the table: it is published before the first `int3`, and retired after the
//!    barrier behind the last.
//! 2. The table is freed when no handler can hold it: handlers count themselves in and out.
//!
//! # Safety
//!
//! The caller has verified the sites and made them writable. The handler reads a table that it has counted
//! itself into.
#![allow(unsafe_code)]

mod midway;

use std::io::Write as _;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dormouse_sys::trap::{self, INT3};

use super::{Patch, Written};
use crate::arch::LENGTH;
use crate::{Error, barrier};

pub use midway::{look_up, midway};

/// How often threads that block SIGTRAP are looked for, a millisecond apart, before the batch is refused.
const PATIENCE: u32 = 20;

/// Where threads go on that have run into a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Resume {
    code: usize,
    target: usize,
}

impl Resume {
    /// As the new instruction does.
    fn of(patch: &Patch) -> Self {
        let code = patch.site.code;
        Self { code, target: if patch.jumps() { patch.site.target } else { code + LENGTH } }
    }
}

/// What the handler looks through: sorted by `code`.
type Table = Vec<Resume>;

static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
/// Handlers that may hold the table.
static HANDLERS: AtomicUsize = AtomicUsize::new(0);
static TRAPS: AtomicU64 = AtomicU64::new(0);
static FALLBACK: AtomicBool = AtomicBool::new(false);

/// Whether a queue has failed, and sites are written one by one since.
pub(crate) fn fallback() -> bool {
    FALLBACK.load(Ordering::Relaxed)
}

/// Installs the handler, and refuses while a thread blocks the signal: the kernel would kill the process.
pub(super) fn prepare() -> Result<(), Error> {
    trap::install(resolve).map_err(|source| Error::Denied {
        what: "a handler for SIGTRAP",
        source,
        setting: "allow rt_sigaction, or use the flip protocol",
    })?;
    // A thread that is just being made blocks every signal for a moment (glibc: `pthread_create`).
    for patience in (0..PATIENCE).rev() {
        let threads = trap::blocking_threads().map_err(|source| Error::Denied {
            what: "looking for threads that block SIGTRAP",
            source,
            setting: "mount /proc, or use the flip protocol",
        })?;
        if threads.is_empty() {
            break;
        }
        if patience == 0 {
            return Err(Error::TrapsBlocked { threads });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Asked by the trap handler; must not allocate, lock or unwind.
fn resolve(address: usize) -> Option<usize> {
    // Both sequentially consistent, as is the pair in `Live::retire`: a handler that still sees the table is
    // seen by who waits to free it.
    HANDLERS.fetch_add(1, Ordering::SeqCst);
    let table = TABLE.load(Ordering::SeqCst);
    // SAFETY: not freed while we are counted in.
    let found = unsafe { table.as_ref() }.and_then(|table| {
        let at = table.binary_search_by_key(&address, |resume| resume.code).ok()?;
        Some(table[at].target)
    });
    // Pairs with the load in `retire`: the table has been read.
    HANDLERS.fetch_sub(1, Ordering::Release);
    if found.is_some() {
        TRAPS.fetch_add(1, Ordering::Relaxed);
    }
    found
}

/// What applying a queue does to the world, so that tests can stand in for it.
trait World {
    fn publish(&mut self, table: Table);
    fn store(&mut self, address: usize, byte: u8);
    fn sync(&mut self) -> Result<(), Error>;
    fn retire(&mut self);
}

/// This process.
struct Live;

impl World for Live {
    fn publish(&mut self, table: Table) {
        TABLE.store(Box::into_raw(Box::new(table)), Ordering::SeqCst);
        trap::begin_round();
    }

    fn store(&mut self, address: usize, byte: u8) {
        // SAFETY: inside a verified site in writable memory, by the caller's promise.
        unsafe { AtomicU8::from_ptr(address as *mut u8) }.store(byte, Ordering::Release);
    }

    fn sync(&mut self) -> Result<(), Error> {
        barrier::sync()
    }

    fn retire(&mut self) {
        let table = TABLE.swap(std::ptr::null_mut(), Ordering::SeqCst);
        // A handler may have been descheduled; it needs no lock of ours to go on.
        while HANDLERS.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        if !table.is_null() {
            // SAFETY: `publish` made it, nobody else takes it, and no handler holds it.
            drop(unsafe { Box::from_raw(table) });
        }
    }
}

/// Sites that wait to be written together.
#[derive(Debug)]
struct Queue<'a> {
    sites: Vec<&'a Patch>,
    capacity: usize,
}

impl<'a> Queue<'a> {
    /// Takes a site; false when it is full, or when the site is not behind the others: the handler searches by halves.
    fn push(&mut self, patch: &'a Patch) -> bool {
        let in_order = self.sites.last().is_none_or(|last| last.site.code < patch.site.code);
        let fits = in_order && self.sites.len() < self.capacity;
        if fits {
            self.sites.push(patch);
        }
        fits
    }
}

/// Changes the (sorted) sites in queues of at most `capacity`.
pub(super) fn write(patches: &[Patch], capacity: NonZero<usize>) -> Result<Written, Error> {
    let traps = TRAPS.load(Ordering::Relaxed);
    let barriers = write_in(&mut Live, patches, capacity.get(), &FALLBACK)?;
    Ok(Written { barriers, traps: TRAPS.load(Ordering::Relaxed) - traps, ..Written::default() })
}

/// Says how many barriers it took; on error all sites are as they were.
fn write_in(
    world: &mut impl World,
    patches: &[Patch],
    capacity: usize,
    fallback: &AtomicBool,
) -> Result<usize, Error> {
    let mut queue = Queue { sites: Vec::with_capacity(capacity.min(patches.len())), capacity };
    let mut run = Run { world, barriers: 0, done: Vec::with_capacity(patches.len()) };
    for patch in patches {
        if fallback.load(Ordering::Relaxed) {
            run.apply(&[patch])?;
            continue;
        }
        if queue.push(patch) {
            continue;
        }
        // Full: apply what is queued, and queue again.
        run.apply(&queue.sites)?;
        queue.sites.clear();
        if !queue.push(patch) {
            if !fallback.swap(true, Ordering::Relaxed) {
                // Not `eprintln!`, which panics into the host when nobody reads.
                let _ = writeln!(
                    std::io::stderr(),
                    "dormouse: the queue of code changes refuses a site: from now on one by one"
                );
            }
            run.apply(&[patch])?;
        }
    }
    run.apply(&queue.sites)?;
    Ok(run.barriers)
}

/// A batch under way.
struct Run<'a, W> {
    world: &'a mut W,
    barriers: usize,
    done: Vec<&'a Patch>,
}

impl<'a, W: World> Run<'a, W> {
    /// Writes some more sites; on error, these and all before them are as they were.
    fn apply(&mut self, sites: &[&'a Patch]) -> Result<(), Error> {
        if sites.is_empty() {
            return Ok(());
        }
        self.done.extend(sites);
        self.world.publish(sites.iter().map(|patch| Resume::of(patch)).collect());
        let written = self.steps(sites);
        if written.is_err() {
            // Our sites' tails are alike before and after, so the first byte alone makes an instruction whole.
            for patch in &self.done {
                self.world.store(patch.site.code, patch.old()[0]);
            }
            // If even this barrier fails, threads may run on what was new for a moment longer.
            let _ = self.world.sync();
        }
        self.world.retire();
        written
    }

    fn steps(&mut self, sites: &[&Patch]) -> Result<(), Error> {
        // Step 1.
        for patch in sites {
            self.world.store(patch.site.code, INT3);
        }
        self.sync()?;
        // Step 2.
        for patch in sites {
            for (at, &byte) in patch.new_bytes().iter().enumerate().skip(1) {
                self.world.store(patch.site.code + at, byte);
            }
        }
        self.sync()?;
        // Step 3.
        for patch in sites {
            self.world.store(patch.site.code, patch.new_bytes()[0]);
        }
        self.sync()
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.barriers += 1;
        self.world.sync()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::registry::Site;

    /// A memory and a log; a barrier that fails when its turn comes.
    #[derive(Default)]
    struct Fake {
        memory: BTreeMap<usize, u8>,
        table: Option<Table>,
        syncs: usize,
        failing_sync: Option<usize>,
        largest: usize,
    }

    impl World for Fake {
        fn publish(&mut self, table: Table) {
            assert!(table.is_sorted_by_key(|r| r.code));
            self.largest = self.largest.max(table.len());
            self.table = Some(table);
        }

        fn store(&mut self, address: usize, byte: u8) {
            if byte == INT3 {
                let table = self.table.as_ref().expect("int3 without a table");
                assert!(table.binary_search_by_key(&address, |r| r.code).is_ok());
            }
            self.memory.insert(address, byte);
        }

        fn sync(&mut self) -> Result<(), Error> {
            self.syncs += 1;
            if self.failing_sync == Some(self.syncs) {
                return Err(Error::Reentrant);
            }
            Ok(())
        }

        fn retire(&mut self) {
            assert!(self.memory.values().all(|&b| b != INT3), "retired under an int3");
            self.table = None;
        }
    }

    fn patches(count: usize) -> Vec<Patch> {
        let site = |n| Site { code: 0x1000 + 16 * n, target: 0x9000, branch: n % 2 == 0, segment: Some(0) };
        (0..count).map(|n| Patch::new(site(n), "k", true).unwrap()).collect()
    }

    fn world_of(patches: &[Patch]) -> Fake {
        let mut fake = Fake::default();
        for patch in patches {
            fake.memory.extend(patch.old().iter().enumerate().map(|(at, &b)| (patch.site.code + at, b)));
        }
        fake
    }

    fn holds(fake: &Fake, patches: &[Patch], bytes: impl Fn(&Patch) -> [u8; LENGTH]) -> bool {
        patches.iter().all(|p| {
            bytes(p).iter().enumerate().all(|(at, b)| fake.memory.get(&(p.site.code + at)) == Some(b))
        })
    }

    #[test]
    fn a_queue_costs_three_barriers_whatever_its_length() {
        for (sites, capacity, expected) in
            [(56, 56, 3), (56, 256, 3), (56, 10, 18), (56, 1, 168), (1, 1, 3), (0, 8, 0)]
        {
            let patches = patches(sites);
            let mut world = world_of(&patches);
            let fallback = AtomicBool::new(false);
            let barriers = write_in(&mut world, &patches, capacity, &fallback).unwrap();
            assert_eq!(
                (barriers, world.syncs),
                (expected, expected),
                "{sites} sites in queues of {capacity}"
            );
            assert!(holds(&world, &patches, Patch::new_bytes));
            assert!(world.largest <= capacity && world.table.is_none());
            assert!(!fallback.load(Ordering::Relaxed));
        }
    }

    #[test]
    fn a_queue_that_refuses_falls_back_for_good_and_completes() {
        let patches = patches(7);
        let fallback = AtomicBool::new(false);
        for _ in 0..2 {
            let mut world = world_of(&patches);
            // A capacity of 0 refuses even when it is empty.
            assert_eq!(write_in(&mut world, &patches, 0, &fallback).unwrap(), 21);
            assert!(holds(&world, &patches, Patch::new_bytes));
            assert!(fallback.load(Ordering::Relaxed));
        }
        let mut world = world_of(&patches);
        assert_eq!(write_in(&mut world, &patches, 56, &fallback).unwrap(), 21, "sticky");
    }

    #[test]
    fn whichever_barrier_fails_the_text_is_as_it_was() {
        let patches = patches(9);
        for failing in 1..=9 {
            let mut world = world_of(&patches);
            world.failing_sync = Some(failing);
            write_in(&mut world, &patches, 3, &AtomicBool::new(false)).unwrap_err();
            assert!(holds(&world, &patches, Patch::old), "barrier {failing}");
            assert!(world.table.is_none());
        }
    }
}

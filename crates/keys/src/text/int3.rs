//! The int3 protocol: the kernel's way to change code under running processors, in batches.
//!
//! Sites are queued in order of address, up to a capacity; a full queue is applied and filled again. To apply
//! a queue takes three barriers however many sites it holds (Linux: `smp_text_poke_batch_finish`). First the sorted
//! table of sites is published for the trap handler. Then:
//!
//! 1. every site's first byte becomes `int3`; barrier 1, *all trap*: from here on, who comes by traps, and goes on
//!    where the new instruction would;
//! 2. the tails of the new instructions are written; barrier 2, *no old tail*: nobody decodes one;
//! 3. the first bytes of the new instructions are written; barrier 3, *no trap*: nobody runs into an `int3` any more.
//!
//! The table is retired. A failure takes the same steps back, under a table that leads where the old instructions did.
//!
//! A queue that refuses a site although it was just emptied is warned about once; from then on sites are
//! written one by one ([`fallback`] tells): slow, and right.
//!
//! # The signal
//!
//! A thread that blocks SIGTRAP and runs into an `int3` is killed by the kernel, and the process with it. So a batch
//! looks for such threads first. What it cannot see:
//!
//! - a thread that blocks the signal a moment later;
//! - a child between `vfork` and `exec`, which shares the text and is no thread of this process: with the signal
//!   unblocked it traps and goes on like a thread, since its handlers are copies of ours; with the signal blocked it
//!   dies alone. (The children of `posix_spawn` run nothing but the C library meanwhile. Its *parent* blocks all
//!   signals until the `exec`, is seen, and waited for.)
//!
//! A debugger that is attached is told of every trap before the handler is.

mod midway;

use std::io::Write as _;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dormouse_sys::trap::{self, Holder, INT3};
use dormouse_sys::{masks, rendezvous};

use super::Patch;
use super::access::Access;
use super::resume::{self, Resume, Rounds};
use crate::{Error, barrier};

pub use midway::{look_up, midway};

/// How often threads that block SIGTRAP are looked for, a millisecond apart, before the batch is refused.
const PATIENCE: u32 = 20;

static FALLBACK: AtomicBool = AtomicBool::new(false);

/// Whether a queue has failed, and sites are written one by one since.
pub(crate) fn fallback() -> bool {
    FALLBACK.load(Ordering::Relaxed)
}

/// Whether the handler has been installed.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Installs the handler, if it has not been.
pub(crate) fn take_signal() -> Result<(), Error> {
    trap::install(resume::resolve).map_err(|source| Error::Denied {
        what: "a handler for SIGTRAP",
        source,
        setting: "allow rt_sigaction, or use the flip protocol",
    })?;
    // Only ever read under the patch lock.
    TAKEN.store(true, Ordering::Relaxed);
    Ok(())
}

/// What is in the way of the protocol now, if anything.
pub(crate) fn obstacle() -> Option<Error> {
    if rendezvous::stuck().load(Ordering::Relaxed) {
        return Some(Error::Stuck);
    }
    if TAKEN.load(Ordering::Relaxed)
        && let Some(error) = taken_since()
    {
        return Some(error);
    }
    match masks::blocking(libc::SIGTRAP) {
        Ok(threads) if threads.is_empty() => None,
        Ok(threads) => Some(Error::TrapsBlocked { threads }),
        Err(source) => {
            let setting = "mount /proc, or use the flip protocol";
            Some(Error::Denied { what: "looking for threads that block SIGTRAP", source, setting })
        }
    }
}

/// Whether somebody has the signal who is not our handler.
fn taken_since() -> Option<Error> {
    match trap::holder() {
        Ok(Holder::Ours) => None,
        Ok(Holder::Default | Holder::Ignored) => Some(Error::SignalTaken { handler: None }),
        Ok(Holder::Other(address)) => {
            // The name is asked for outside of the patch lock: see `Error::outside`.
            Some(Error::SignalTaken { handler: Some((address, String::new())) })
        }
        Err(source) => {
            let setting = "allow rt_sigaction, or use the flip protocol";
            Some(Error::Denied { what: "asking who handles SIGTRAP", source, setting })
        }
    }
}

/// Installs the handler, and refuses where a thread that ran into an `int3` would not reach it.
pub(super) fn prepare() -> Result<(), Error> {
    take_signal()?;
    let mut patience = PATIENCE;
    loop {
        match obstacle() {
            None => return Ok(()),
            // A thread that is just being made, or makes a process, blocks every signal for a moment.
            Some(Error::TrapsBlocked { .. }) if patience > 0 => patience -= 1,
            Some(refused) => return Err(refused),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What applying a queue does to the world, so that tests can stand in for it.
trait World {
    fn publish(&mut self, table: Vec<Resume>);
    fn store(&mut self, address: usize, bytes: &[u8]) -> Result<(), Error>;
    fn sync(&mut self) -> Result<(), Error>;
    /// Stands in for a barrier that is refused.
    fn wait(&mut self);
    fn retire(&mut self);
}

/// This process.
struct Live<'a> {
    access: &'a Access,
    rounds: Rounds,
}

impl World for Live<'_> {
    fn publish(&mut self, table: Vec<Resume>) {
        self.rounds.publish(table);
    }

    fn store(&mut self, address: usize, bytes: &[u8]) -> Result<(), Error> {
        self.access.store(address, bytes)
    }

    fn sync(&mut self) -> Result<(), Error> {
        barrier::sync()
    }

    fn wait(&mut self) {
        // No processor holds on to fetched bytes for so long; one that was interrupted fetches anew.
        std::thread::sleep(Duration::from_millis(1));
    }

    fn retire(&mut self) {
        self.rounds.retire();
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

/// Changes the (sorted, verified) sites in queues of at most `capacity`; says how many barriers and traps it took.
pub(super) fn write(
    access: &Access,
    patches: &[Patch],
    capacity: NonZero<usize>,
) -> Result<(usize, u64), Error> {
    if patches.is_empty() {
        return Ok((0, 0));
    }
    let traps = resume::traps();
    let mut live = Live { access, rounds: Rounds::of(patches) };
    let written = write_in(&mut live, patches, capacity.get(), &FALLBACK);
    if let Err(Error::HalfWritten { .. }) = written {
        rendezvous::stuck().store(true, Ordering::Relaxed);
    }
    Ok((written?, resume::traps() - traps))
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
        self.world.publish(sites.iter().map(|patch| Resume::of(patch, true)).collect());
        if let Err(error) = self.steps(sites) {
            return Err(self.undo(error));
        }
        self.world.retire();
        Ok(())
    }

    fn steps(&mut self, sites: &[&Patch]) -> Result<(), Error> {
        // Step 1: from old to int3.
        for patch in sites {
            self.world.store(patch.site.code, &[INT3])?;
        }
        // Barrier 1: all trap.
        self.sync()?;
        // Step 2: the new tails.
        for patch in sites {
            self.world.store(patch.site.code + 1, &patch.new_bytes()[1..])?;
        }
        // Barrier 2: no old tail.
        self.sync()?;
        // Step 3: from int3 to new.
        for patch in sites {
            self.world.store(patch.site.code, &patch.new_bytes()[..1])?;
        }
        // Barrier 3: no trap.
        self.sync()
    }

    /// Puts back what was written, by the same steps.
    fn undo(&mut self, error: Error) -> Error {
        let sites = std::mem::take(&mut self.done);
        self.world.publish(sites.iter().map(|patch| Resume::of(patch, false)).collect());
        let mut left = 0;
        let mut each =
            |world: &mut W, sites: Vec<&'a Patch>, store: fn(&mut W, &Patch) -> Result<(), Error>| {
                let before = sites.len();
                let sites: Vec<_> = sites.into_iter().filter(|patch| store(world, patch).is_ok()).collect();
                left += before - sites.len();
                if world.sync().is_err() {
                    world.wait();
                }
                sites
            };
        // Steps and barriers 1 to 3, the other way.
        let sites = each(self.world, sites, |world, p| world.store(p.site.code, &[INT3]));
        let sites = each(self.world, sites, |world, p| world.store(p.site.code + 1, &p.old()[1..]));
        each(self.world, sites, |world, p| world.store(p.site.code, &p.old()[..1]));
        if left == 0 {
            self.world.retire();
        }
        error.with_left(left)
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
    use crate::arch::{Form, LENGTH};
    use crate::registry::Site;

    /// A memory and its rules; a barrier or a store that fails when its turn comes.
    #[derive(Default)]
    struct Fake {
        memory: BTreeMap<usize, [u8; LENGTH]>,
        /// Which part of a site was written since the last barrier: the first byte, or the tail.
        unseen: BTreeMap<usize, bool>,
        table: Option<Vec<Resume>>,
        syncs: usize,
        failing_sync: Option<usize>,
        /// Whether no barrier works after the one that has failed.
        for_good: bool,
        stores: usize,
        failing_stores: std::ops::Range<usize>,
        largest: usize,
    }

    impl World for Fake {
        fn publish(&mut self, table: Vec<Resume>) {
            assert!(table.is_sorted_by_key(|r| r.code));
            self.largest = self.largest.max(table.len());
            self.table = Some(table);
        }

        fn store(&mut self, address: usize, bytes: &[u8]) -> Result<(), Error> {
            self.stores += 1;
            if self.failing_stores.contains(&self.stores) {
                return Err(Error::Reentrant);
            }
            let (&code, held) = self.memory.range_mut(..=address).next_back().unwrap();
            let before = *held;
            held[address - code..][..bytes.len()].copy_from_slice(bytes);
            if *held == before {
                return Ok(());
            }
            if bytes == [INT3] {
                let table = self.table.as_ref().expect("int3 without a table");
                assert!(table.binary_search_by_key(&code, |r| r.code).is_ok());
            }
            let is_tail = address > code;
            assert!(!is_tail || held[0] == INT3, "a tail was written under a thread that may run it");
            let other = self.unseen.insert(code, is_tail);
            assert!(other.is_none_or(|other| other == is_tail), "no barrier between first byte and tail");
            Ok(())
        }

        fn sync(&mut self) -> Result<(), Error> {
            self.syncs += 1;
            let fails =
                self.failing_sync.is_some_and(|at| self.syncs == at || self.for_good && self.syncs > at);
            if fails {
                return Err(Error::Reentrant);
            }
            self.unseen.clear();
            Ok(())
        }

        fn wait(&mut self) {
            self.unseen.clear();
        }

        fn retire(&mut self) {
            assert!(self.memory.values().all(|bytes| bytes[0] != INT3), "retired under an int3");
            self.table = None;
        }
    }

    fn patches(count: usize, form: Form) -> Vec<Patch> {
        let site = |n| {
            let (code, branch) = (0x1000 + 16 * n, n % 2 == 0);
            Site { code, target: 0x9000, branch, form, segment: Some(0) }
        };
        (0..count).map(|n| Patch::new(site(n), "k", true).unwrap()).collect()
    }

    fn world_of(patches: &[Patch]) -> Fake {
        let memory = patches.iter().map(|patch| (patch.site.code, patch.old())).collect();
        Fake { memory, ..Fake::default() }
    }

    fn holds(fake: &Fake, patches: &[Patch], bytes: impl Fn(&Patch) -> [u8; LENGTH]) -> bool {
        patches.iter().all(|p| fake.memory[&p.site.code] == bytes(p))
    }

    #[test]
    fn a_queue_costs_three_barriers_whatever_its_length() {
        for (sites, capacity, expected) in
            [(56, 56, 3), (56, 256, 3), (56, 10, 18), (56, 1, 168), (1, 1, 3), (0, 8, 0)]
        {
            for form in [Form::Test, Form::Nop] {
                let patches = patches(sites, form);
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
    }

    #[test]
    fn a_queue_that_refuses_falls_back_for_good_and_completes() {
        let patches = patches(7, Form::Test);
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
        for form in [Form::Test, Form::Nop] {
            let patches = patches(9, form);
            for (failing, for_good) in (1..=9).flat_map(|n| [(n, false), (n, true)]) {
                let mut world = Fake { failing_sync: Some(failing), for_good, ..world_of(&patches) };
                let error = write_in(&mut world, &patches, 3, &AtomicBool::new(false)).unwrap_err();
                assert!(matches!(error, Error::Reentrant), "{error}");
                assert!(holds(&world, &patches, Patch::old), "barrier {failing}");
                assert!(world.table.is_none());
            }
        }
    }

    #[test]
    fn whichever_store_fails_the_text_is_as_it_was() {
        let patches = patches(4, Form::Nop);
        for failing in 1..=12 {
            let mut world = Fake { failing_stores: failing..failing + 1, ..world_of(&patches) };
            write_in(&mut world, &patches, 4, &AtomicBool::new(false)).unwrap_err();
            assert!(holds(&world, &patches, Patch::old), "store {failing}");
            assert!(world.table.is_none());
        }
    }

    #[test]
    fn where_nothing_can_be_put_back_the_table_stays_and_leads_where_the_old_instructions_did() {
        let patches = patches(4, Form::Nop);
        // In the middle of step 2, and from then on.
        let mut world = Fake { failing_stores: 6..usize::MAX, ..world_of(&patches) };
        let error = write_in(&mut world, &patches, 4, &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, Error::HalfWritten { sites: 4, .. }), "{error}");
        let table = world.table.unwrap();
        assert_eq!(table, patches.iter().map(|p| Resume::of(p, false)).collect::<Vec<_>>());
    }
}

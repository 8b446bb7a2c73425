//! The int3 protocol: the kernel's way to change code under running processors, in batches.
//!
//! Sites are queued in order of address, up to a capacity; a full queue is applied and filled
//! again. Applying a queue takes three barriers for any number of sites (Linux:
//! `smp_text_poke_batch_finish`). First the sorted table of sites is published for the trap
//! handler. Then:
//!
//! 1. every site's first byte becomes `int3`; barrier 1, *all trap*: from here on a thread that
//!    reaches a site traps, and continues where the new instruction would;
//! 2. the tails of the new instructions are written; barrier 2, *no old tail*: no processor decodes
//!    one;
//! 3. the first bytes of the new instructions are written; barrier 3, *no trap*: no thread runs
//!    into an `int3` any more.
//!
//! The table is retired. After a failure the same steps are taken backwards, under a table that
//! continues where the old instructions did.
//!
//! If a queue refuses a site although it was just emptied, a warning is printed once, and from then
//! on sites are written one by one ([`fallback`] returns true): slow, and correct. `resume` has the
//! table, `signal` the installation of the handler.
//!
//! # Safety
//!
//! See [`super`]: stores go to sites whose pages are writable.

#[cfg(feature = "bench")]
mod midway;
mod resume;
mod signal;
#[cfg(test)]
mod tests;

use std::collections::TryReserveError;
use std::io::Write as _;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use dormouse_sys::rendezvous;
use dormouse_sys::trap::INT3;

use super::access::{Access, interrupted};
use super::barrier;
use super::patch::Patch;
use crate::Error;
use crate::arch::LENGTH;

#[cfg(feature = "bench")]
pub(crate) use midway::{look_up, midway};
pub(super) use signal::prepare;
pub(crate) use signal::{obstacle, take_signal};

use resume::Resume;

static FALLBACK: AtomicBool = AtomicBool::new(false);

/// Whether a queue has failed, and sites are written one by one since.
pub(crate) fn fallback() -> bool {
    FALLBACK.load(Ordering::Relaxed)
}

/// The effects of a queue that is applied, so that tests can stand in for them.
trait World {
    /// Makes room for rounds of up to `sites` sites.
    fn reserve(&mut self, sites: usize) -> Result<(), TryReserveError>;
    fn publish(&mut self, table: impl ExactSizeIterator<Item = Resume>);
    /// Writes the first byte of a site that holds `from`.
    fn exchange(&mut self, patch: &Patch, from: u8, to: u8) -> Result<(), Error>;
    /// Writes the others.
    fn store_tail(&mut self, patch: &Patch, bytes: [u8; LENGTH]) -> Result<(), Error>;
    fn sync(&mut self) -> Result<(), Error>;
    /// Stands in for a barrier that is refused.
    fn wait(&mut self);
    fn retire(&mut self);
}

/// This process.
struct Live<'a>(&'a Access);

impl World for Live<'_> {
    fn reserve(&mut self, sites: usize) -> Result<(), TryReserveError> {
        resume::reserve(sites)
    }

    fn publish(&mut self, table: impl ExactSizeIterator<Item = Resume>) {
        resume::publish(table);
    }

    fn exchange(&mut self, patch: &Patch, from: u8, to: u8) -> Result<(), Error> {
        self.0.exchange(patch, from, to)
    }

    fn store_tail(&mut self, patch: &Patch, bytes: [u8; LENGTH]) -> Result<(), Error> {
        let (address, Self(access)) = (patch.code + 1, self);
        if let Some(memory) = access.outside(patch.code) {
            return memory.write(address, &bytes[1..]).map_err(interrupted);
        }
        for (at, &byte) in bytes[1..].iter().enumerate() {
            // SAFETY: inside a site whose pages are writable; instruction fetches of other threads
            // are not data accesses.
            unsafe { AtomicU8::from_ptr((address + at) as *mut u8) }.store(byte, Ordering::Release);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        dormouse_sys::barrier::sync_core().map_err(barrier::denied)
    }

    fn wait(&mut self) {
        dormouse_sys::barrier::settle();
    }

    fn retire(&mut self) {
        resume::retire();
    }
}

/// Changes the (sorted, verified) sites in queues of at most `capacity`. Returns the numbers of
/// barriers and traps. On error all sites are as they were, except for those that
/// [`Error::HalfWritten`] counts.
pub(super) fn write(
    access: &Access,
    patches: &[Patch],
    capacity: NonZero<usize>,
) -> Result<(usize, u64), Error> {
    if patches.is_empty() {
        return Ok((0, 0));
    }
    let traps = resume::traps();
    resume::know(patches.iter().map(|patch| patch.code))?;
    let written = write_in(&mut Live(access), patches, capacity.get(), &FALLBACK);
    if let Err(Error::HalfWritten { .. }) = written {
        rendezvous::stuck().store(true, Ordering::Relaxed);
    }
    Ok((written?, resume::traps() - traps))
}

/// Says how many barriers it took; on error all sites are as [`write()`] leaves them.
fn write_in(
    world: &mut impl World,
    patches: &[Patch],
    capacity: usize,
    fallback: &AtomicBool,
) -> Result<usize, Error> {
    // All the memory that it takes is there before the first byte is written.
    let (mut queue, mut done) = (Vec::<&Patch>::new(), Vec::new());
    queue.try_reserve_exact(capacity.min(patches.len()))?;
    done.try_reserve_exact(patches.len())?;
    world.reserve(patches.len())?;
    // The handler searches by halves, so a queue is in order.
    let fits = |queue: &[&Patch], patch: &Patch| {
        queue.len() < capacity && queue.last().is_none_or(|last| last.code < patch.code)
    };
    let mut run = Run { world, barriers: 0, done };
    for patch in patches {
        if !fits(&queue, patch) {
            // Full: apply what is queued, and queue again.
            run.apply(&queue)?;
            queue.clear();
        }
        if fits(&queue, patch) && !fallback.load(Ordering::Relaxed) {
            queue.push(patch);
            continue;
        }
        if !fallback.swap(true, Ordering::Relaxed) {
            // Not `eprintln!`, which would panic into the host when standard error is closed.
            let _ = writeln!(
                std::io::stderr(),
                "dormouse: the queue of code changes refuses a site: from now on one by one"
            );
        }
        run.apply(&[patch])?;
    }
    run.apply(&queue)?;
    Ok(run.barriers)
}

/// A batch under way.
struct Run<'a, W> {
    world: &'a mut W,
    barriers: usize,
    /// Sites that have been written to.
    done: Vec<&'a Patch>,
}

impl<'a, W: World> Run<'a, W> {
    /// Writes some more sites; on error, these and all before them are as they were.
    fn apply(&mut self, sites: &[&'a Patch]) -> Result<(), Error> {
        if sites.is_empty() {
            return Ok(());
        }
        self.world.publish(sites.iter().map(|patch| Resume::of(patch, true)));
        if let Err(error) = self.steps(sites) {
            return Err(self.undo(error));
        }
        self.world.retire();
        Ok(())
    }

    fn steps(&mut self, sites: &[&'a Patch]) -> Result<(), Error> {
        // Step 1: from old to int3.
        for patch in sites {
            self.world.exchange(patch, patch.old()[0], INT3)?;
            self.done.push(patch);
        }
        // Barrier 1: all trap.
        self.sync()?;
        // Step 2: the new tails.
        for patch in sites {
            self.world.store_tail(patch, patch.new_bytes())?;
        }
        // Barrier 2: no old tail.
        self.sync()?;
        // Step 3: from int3 to new.
        for patch in sites {
            self.world.exchange(patch, INT3, patch.new_bytes()[0])?;
        }
        // Barrier 3: no trap.
        self.sync()
    }

    /// Puts back what was written, by the same steps. Sites that were not reached are not touched:
    /// what refused one may be somebody else's `int3`.
    fn undo(&mut self, error: Error) -> Error {
        let sites = std::mem::take(&mut self.done);
        self.world.publish(sites.iter().map(|patch| Resume::of(patch, false)));
        let mut left = 0;
        let mut each =
            |world: &mut W, mut sites: Vec<&'a Patch>, store: fn(&mut W, &Patch) -> Result<(), Error>| {
                let before = sites.len();
                sites.retain(|patch| store(world, patch).is_ok());
                left += before - sites.len();
                if world.sync().is_err() {
                    world.wait();
                }
                sites
            };
        // Steps and barriers 1 to 3, the other way. A site holds its int3 or, behind step 3, its
        // new byte.
        let sites = each(self.world, sites, |world, p| {
            let is_int3 = world.exchange(p, INT3, INT3);
            is_int3.or_else(|_| world.exchange(p, p.new_bytes()[0], INT3))
        });
        let sites = each(self.world, sites, |world, p| world.store_tail(p, p.old()));
        each(self.world, sites, |world, p| world.exchange(p, INT3, p.old()[0]));
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

//! A line: one debug register on every thread of the process.
//!
//! An event is opened for each existing thread, by its id. Threads that start later inherit theirs
//! from the thread that starts them (`inherit_thread`; a fork's child inherits none). The event of
//! a thread that has ended stays open: inherited events would end with it, and its count is part of
//! the sum.
//!
//! # All threads or none
//!
//! A thread that starts while the line is armed may or may not have inherited an event, depending
//! on whether its starter was armed by then. Armed twice, it would count every hit twice.
//!
//! 1. All threads of a first list are armed. The only event before it is the keeper's own, which
//!    starts no thread, so they have inherited none.
//! 2. The kernel copies the events of a starter early in `clone`, and lists the new thread late. So
//!    each thread that was armed here is checked until it is seen outside of starting another one
//!    ([`masks::may_be_starting_a_thread`]): from then on all threads that it has started without
//!    an event are listed.
//! 3. Then the threads are listed again. For each new one the number of free registers is
//!    determined ([`State`]): it has as many as this thread, which is armed, or one more. If it has
//!    one more, it is armed.
//! 4. The line is complete when a complete list ([`threads::list`]) after step 2 had no unarmed
//!    thread. All threads in it are armed, and so are their starts; a thread that is not in it was
//!    started by one that is.
//! 5. A new thread may end before it is checked, and may have started another one by then. So such
//!    a list proves nothing. But an unarmed thread, and those that it starts, would have to be
//!    missed in each list anew: with the probability that others were. Lists are repeated until the
//!    probability of that for all of them is less than [`ODDS`].
//!
//! The registers of a thread are known only if events stay with the thread that inherited them
//! ([`Attr::apart`], Linux 6.13). On older kernels a thread that starts while the line is armed may
//! be armed twice: then the kernel counts its hits twice, and signals each once.
//!
//! A thread that starts others by bare system calls, with its signals not blocked meanwhile, is not
//! detected in step 2. No C library and no runtime does that.
//!
//! If the kernel refuses anything, everything that was opened is closed. A thread id is reused only
//! after all ids were used, which takes longer than this.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use dormouse_sys::masks;
use dormouse_sys::perf::{
    Access, Attr, Breakpoint, Error as Refusal, OpenEvent, Subject, WatchLen, is_filtered, keeps_apart,
};
use dormouse_sys::process::{identity, threads};

use super::holders::registers;
use crate::Error;

/// The longest time for arming, on a machine that has other work: all lines of a watch.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The odds at which an escape is out of the question.
const ODDS: f64 = 1e-9;

#[derive(Debug)]
pub(super) struct Line {
    /// None: it was closed.
    events: Vec<OpenEvent>,
    /// The count when it was given to the present watch.
    base: u64,
    /// The count when it was closed.
    closed: u64,
}

impl Line {
    /// Opens it, armed, until the deadline. `held` returns how many registers a thread holds for
    /// watches of groups.
    pub(super) fn open(attr: &Attr, until: Instant, held: impl Fn(u32) -> u32) -> Result<Self, Error> {
        // One may have come for all threads since the watch was asked for.
        if is_filtered() {
            return Err(Error::Filtered);
        }
        let mut opening = Opening {
            attr: inherited(attr),
            events: Vec::new(),
            known: HashSet::new(),
            unsettled: Vec::new(),
        };
        let own = identity::tid();
        // This thread is the measure of others, so it is the first.
        opening.arm(own)?;
        opening.run(own, until, held)?;
        Ok(Self { events: opening.events, base: 0, closed: 0 })
    }

    /// Disarms it, also on threads to come. Its registers stay taken. Under a filter, which may end
    /// the process for the request, it is closed.
    pub(super) fn disable(&mut self) {
        if is_filtered() {
            self.closed += self.count();
            self.events.clear();
        }
        // An error would mean a closed descriptor, and no other code can close these.
        self.events.iter().for_each(|event| _ = event.disable());
    }

    /// Whether it can be armed again.
    pub(super) fn is_open(&self) -> bool {
        !self.events.is_empty()
    }

    /// Arms it again, unless it was closed. No filter has come: the caller has asked.
    pub(super) fn enable(&self) {
        self.events.iter().for_each(|event| _ = event.enable());
    }

    /// Gives a line that is disarmed to another watch, armed.
    pub(super) fn retarget(&mut self, attr: &Attr) -> Result<(), Error> {
        if is_filtered() {
            return Err(Error::Filtered);
        }
        self.base += self.hits();
        let attr = inherited(attr);
        let refused = self.events.iter().find_map(|event| event.retarget(&attr).err());
        match refused {
            None => Ok(()),
            Some(source) => Err(Error::Thread { tid: 0, thread: "one of them".to_owned(), source }),
        }
    }

    /// The hits of the present watch on all threads, also on those that have ended.
    pub(super) fn hits(&self) -> u64 {
        (self.closed + self.count()).saturating_sub(self.base)
    }

    fn count(&self) -> u64 {
        self.events.iter().filter_map(|event| event.read().ok()).map(|reading| reading.value).sum()
    }
}

/// The number of registers that a new thread has free, compared with this thread, which is armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has as many free registers as this thread.
    Inherited,
    /// It has one more.
    Unarmed,
    /// It has fewer: others are taking some at the moment.
    Unknown,
    /// It has ended.
    Gone,
}

/// The event of a thread, which those that it starts inherit, and keep to themselves if the kernel
/// can do that.
fn inherited(attr: &Attr) -> Attr {
    let attr = attr.inherited_by_threads();
    if keeps_apart() { attr.apart() } else { attr }
}

/// CPU time of a thread, in nanoseconds, beyond which a start of another one that was under way is
/// over.
const START: u64 = 10_000_000;

struct Opening {
    attr: Attr,
    events: Vec<OpenEvent>,
    /// Threads that are armed, or had been when they ended.
    known: HashSet<u32>,
    /// Those armed here that were not seen outside of starting a thread since, each with its CPU
    /// time when it was armed.
    unsettled: Vec<(u32, Option<u64>)>,
}

impl Opening {
    fn run(&mut self, own: u32, until: Instant, held: impl Fn(u32) -> u32) -> Result<(), Error> {
        let mut list = Vec::new();
        threads::list(&mut list).map_err(Error::Keeper)?;
        for &tid in list.iter().filter(|&&tid| tid != own) {
            self.arm_unless_of_kernel(tid)?;
        }
        let mut odds = 1.0;
        while Instant::now() < until {
            self.settle()?;
            let is_settled = self.unsettled.is_empty();
            let is_complete = threads::list(&mut list).map_err(Error::Keeper)?;
            let free = free_registers(own, registers())?.unwrap_or(0);
            let (mut new, mut gone, mut unarmed) = (0, 0, false);
            // The last ones have just begun, and may not live for long.
            for &tid in list.iter().rev() {
                if self.known.contains(&tid) {
                    continue;
                }
                new += 1;
                match state_of(tid, free, held(tid))? {
                    State::Inherited => _ = self.known.insert(tid),
                    State::Gone => gone += 1,
                    State::Unknown => unarmed = true,
                    State::Unarmed => unarmed = self.arm_unless_of_kernel(tid)? || unarmed,
                }
            }
            odds = match gone {
                _ if unarmed || !is_settled => 1.0,
                _ if !is_complete => odds,
                0 => 0.0,
                gone => odds * f64::from(gone) / f64::from(new),
            };
            if odds < ODDS {
                return Ok(());
            }
        }
        Err(Error::Unsteady(PATIENCE))
    }

    /// Arms a thread of the program's. One of the kernel's (`io_uring`) runs none of its code, and
    /// has breakpoints neither of its own nor inherited. Whether it is the program's.
    fn arm_unless_of_kernel(&mut self, tid: u32) -> Result<bool, Error> {
        if threads::is_of_kernel(tid) {
            self.known.insert(tid);
            return Ok(false);
        }
        self.arm(tid).map(|()| true)
    }

    fn arm(&mut self, tid: u32) -> Result<(), Error> {
        // The opening of a line may take seconds, and a filter may come for all threads meanwhile.
        if is_filtered() {
            return Err(Error::Filtered);
        }
        match OpenEvent::open(&self.attr, Subject::Thread(tid)) {
            Ok(event) => {
                self.events.push(event);
                self.known.insert(tid);
                self.unsettled.push((tid, cpu_ns_of(tid)));
                Ok(())
            }
            Err(Refusal::NoSuchThread { .. }) => Ok(()),
            Err(source) => Err(refused(tid, source)),
        }
    }

    /// Step 2: forgets the threads that are outside of starting another one.
    fn settle(&mut self) -> Result<(), Error> {
        let mut refused = None;
        self.unsettled.retain(|&(tid, armed_ns)| {
            let may_start = masks::may_be_starting_a_thread(tid).unwrap_or_else(|error| {
                refused = Some(error);
                true
            });
            // A start that was under way is over: no start takes a thread that long, and one that
            // blocks all signals for ever is never seen outside.
            let has_gone_on =
                cpu_ns_of(tid).zip(armed_ns).is_some_and(|(now, then)| now - then.min(now) > START);
            may_start && !has_gone_on
        });
        refused.map_or(Ok(()), |error| Err(Error::Keeper(error)))
    }
}

fn cpu_ns_of(tid: u32) -> Option<u64> {
    // The clock id of a thread: its complement, then "per thread" and "scheduler time".
    dormouse_sys::clock::ask((!tid.cast_signed() << 3) | 0b110)
}

fn refused(tid: u32, source: Refusal) -> Error {
    let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm"));
    Error::Thread { tid, thread: name.unwrap_or_default().trim().to_owned(), source }
}

fn state_of(tid: u32, free_here: u32, held: u32) -> Result<State, Error> {
    let Some(free) = free_registers(tid, free_here + 1)? else { return Ok(State::Gone) };
    Ok(match (free + held).checked_sub(free_here) {
        None => State::Unknown,
        Some(0) => State::Inherited,
        Some(_) => State::Unarmed,
    })
}

/// How many registers a thread has free, as far as `most`: takes them, and gives them back.
pub(super) fn free_registers(tid: u32, most: u32) -> Result<Option<u32>, Error> {
    // Never armed: registers are taken at the opening.
    let probe = Breakpoint::watch(0, WatchLen::One, Access::Write).map_err(|source| refused(tid, source))?;
    let probe = Attr::breakpoint(probe).disabled();
    let mut taken = Vec::new();
    while (taken.len() as u32) < most {
        // As in `arm`.
        if is_filtered() {
            return Err(Error::Filtered);
        }
        match OpenEvent::open(&probe, Subject::Thread(tid)) {
            Ok(event) => taken.push(event),
            Err(Refusal::NoSlot(_)) => break,
            Err(Refusal::NoSuchThread { .. }) => return Ok(None),
            Err(source) => return Err(refused(tid, source)),
        }
    }
    Ok(Some(taken.len() as u32))
}

#[cfg(test)]
mod tests {
    use dormouse_testkit::{Filter, in_child};

    use super::*;

    #[test]
    fn a_filter_amid_the_opening_ends_it() {
        in_child(|| {
            let (own, value) = (identity::tid(), 0_u64);
            let watched = Breakpoint::watch((&raw const value).addr(), WatchLen::Eight, Access::Write);
            let attr = inherited(&Attr::breakpoint(watched.unwrap()));
            let mut opening =
                Opening { attr, events: Vec::new(), known: HashSet::new(), unsettled: Vec::new() };
            Filter::kill(&[libc::SYS_perf_event_open, libc::SYS_uname]).install();
            assert!(matches!(opening.arm(own), Err(Error::Filtered)));
            assert!(matches!(free_registers(own, 1), Err(Error::Filtered)));
        });
    }
}

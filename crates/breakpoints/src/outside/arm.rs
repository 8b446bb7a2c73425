//! Arming all threads of a process, or none.
//!
//! An event is inherited by threads that its own thread starts later. So each thread that runs
//! already gets events of its own, and threads are listed again until a complete list contains none
//! that had to be armed.
//!
//! A thread that starts meanwhile may have inherited the events of the thread that started it, all
//! of them or those that were open by then. If it were armed once more, each of its hits would
//! count twice. The kernel does not report what a thread has inherited, but a taken debug register
//! can be detected: an event that never counts is opened again and again until the kernel refuses
//! it. It is one of the lines, disabled: some processors have other registers for instructions than
//! for memory. The count is compared with that of the arming thread, so breakpoints of a whole
//! processor, which take a register from both, may come and go. A debugger's breakpoints, which are
//! in each thread of the target, must not: `base` is how many more registers are taken in the first
//! thread before it is armed.
//!
//! Careful with threads that end meanwhile! Where two threads have inherited the same events, the
//! kernel exchanges these when it switches between the two, and each then ends with the events of
//! the other. The kernel accounts registers to the thread for which an event was made, so those of
//! the living thread count as free while they are in use. So all events are [`Attr::apart`]: the
//! kernel cannot exchange them. Before Linux 6.13, which does not support that, a thread that
//! starts while others end and while all this goes on may be armed twice.
//!
//! # Invariants
//!
//! 1. Events of a thread are opened processor by processor, on each in the order of the lines. So a
//!    thread has inherited the first lines of a processor, and only the last ones can be missing.
//! 2. An event that was opened for an id which is not (or no longer) a thread of the process is
//!    closed before the next thread is handled. No other thread was assumed to have inherited it.
//! 3. The events of a thread that has ended since stay open: other threads have inherited them, and
//!    its count is in them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use dormouse_sys::perf::{Access, Attr, Breakpoint, Error as Refusal, OpenEvent, Subject, WatchLen};

use super::rings::Rings;
use super::target::TargetProcess;
use crate::Error;

/// More registers than any processor has.
const MANY: usize = 64;

/// The most that the arming may take.
const LIMIT: Duration = Duration::from_secs(5);

/// The request to arm.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) target: &'a TargetProcess,
    /// One debug register each, all of the same registers.
    pub(super) lines: &'a [Breakpoint],
    /// Where hits are recorded; else they are counted only.
    pub(super) rings: Option<&'a Rings>,
    /// Descriptors that may be used.
    pub(super) descriptors: usize,
    /// Whether each thread keeps its events to itself.
    pub(super) apart: bool,
    /// Whether a register of each thread must stay free for a debugger.
    pub(super) leave_one: bool,
}

/// An event of a line, of one thread and those that inherited it.
#[derive(Debug)]
pub(super) struct LineEvent {
    pub(super) line: usize,
    pub(super) event: OpenEvent,
}

/// Arms all threads. They are hit from the moment on in which each is reached.
///
/// # Cost
///
/// For each thread one system call for each line on each processor, and two more; some ten for a
/// thread that came meanwhile.
pub(super) fn arm(plan: Plan<'_>) -> Result<Vec<LineEvent>, Error> {
    // Before anything is open, so none of these has inherited.
    let (first, _) = plan.target.tids()?;
    let start = Instant::now();
    let mut arming = Arming { plan, base: Vec::new(), events: Vec::new() };
    if first.len() * arming.places() * plan.lines.len() > plan.descriptors {
        return Err(plan.target.refused(plan.target.pid(), no_descriptor()));
    }
    arming.measure_base(&first)?;
    let mut known = HashSet::new();
    for tid in first {
        if arming.arm_thread(tid, false)?.is_some() {
            known.insert(tid);
        }
    }
    loop {
        let (tids, is_complete) = plan.target.tids()?;
        let tids: HashSet<u32> = tids.into_iter().collect();
        // The number of a thread that has ended may come back.
        known.retain(|tid| tids.contains(tid));
        let mut opened = 0;
        for tid in tids {
            if !known.contains(&tid)
                && let Some(events) = arming.arm_thread(tid, true)?
            {
                known.insert(tid);
                opened += events;
            }
        }
        if is_complete && opened == 0 {
            break;
        }
        if start.elapsed() > LIMIT {
            return Err(Error::Unsteady(LIMIT));
        }
    }
    // A process whose threads are all ending has nothing to watch.
    if arming.events.is_empty() {
        return Err(Error::NoProcess { pid: plan.target.pid() });
    }
    Ok(arming.events)
}

struct Arming<'a> {
    plan: Plan<'a>,
    /// Registers that are taken in a thread without events of ours, by place.
    base: Vec<isize>,
    events: Vec<LineEvent>,
}

impl Arming<'_> {
    /// Takes the first thread that lives as the measure for all.
    fn measure_base(&mut self, tids: &[u32]) -> Result<(), Error> {
        for &tid in tids {
            let base = (0..self.places()).map(|place| self.taken(place, tid)).collect();
            match base {
                Err(Refusal::NoSuchThread { .. }) => {}
                base => {
                    self.base = base.map_err(|refusal| self.plan.target.refused(tid, refusal))?;
                    return Ok(());
                }
            }
        }
        Err(Error::NoProcess { pid: self.plan.target.pid() })
    }

    /// Arms a thread. Returns how many events that took, or `None` if it has ended.
    fn arm_thread(&mut self, tid: u32, may_have_inherited: bool) -> Result<Option<usize>, Error> {
        let before = self.events.len();
        match self.open_all(tid, may_have_inherited) {
            Ok(()) if self.plan.target.has(tid) => Ok(Some(self.events.len() - before)),
            // By invariant 2.
            Ok(()) | Err(Refusal::NoSuchThread { .. }) => {
                self.events.truncate(before);
                Ok(None)
            }
            Err(Refusal::NoSlot(_)) => Err(self.no_register(tid, before)),
            Err(refusal) => Err(self.plan.target.refused(tid, refusal)),
        }
    }

    fn open_all(&mut self, tid: u32, may_have_inherited: bool) -> Result<(), Refusal> {
        let lines = self.plan.lines;
        for place in 0..self.places() {
            let inherited = if may_have_inherited {
                // Out of these bounds somebody else's breakpoint has come or gone.
                let lines_there = self.taken(place, tid)? - self.base[place];
                usize::try_from(lines_there).unwrap_or(0).min(lines.len())
            } else {
                0
            };
            for (line, breakpoint) in lines.iter().enumerate().skip(inherited) {
                if self.events.len() >= self.plan.descriptors {
                    return Err(no_descriptor());
                }
                let attr = Attr::breakpoint(*breakpoint).inherited_by_threads().until_exec();
                let event = match self.plan.rings {
                    Some(rings) => rings.open_event(place, &attr, tid)?,
                    None if self.plan.apart => OpenEvent::open(&attr.apart(), Subject::Thread(tid))?,
                    None => OpenEvent::open(&attr, Subject::Thread(tid))?,
                };
                self.events.push(LineEvent { line, event });
            }
        }
        if self.plan.leave_one {
            // As a debugger opens it: on any processor.
            OpenEvent::open(&idle(self.probe()), Subject::Thread(tid))?;
        }
        Ok(())
    }

    /// A line that stands for all in a count of registers.
    fn probe(&self) -> Breakpoint {
        self.plan.lines.first().copied().unwrap_or_else(nowhere)
    }

    /// A thread has an event of each line in each place.
    fn places(&self) -> usize {
        self.plan.rings.map_or(1, Rings::len)
    }

    /// How many registers more are taken in a thread there than in this one.
    fn taken(&self, place: usize, tid: u32) -> Result<isize, Refusal> {
        let own = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        let free = |tid| {
            let subject = match self.plan.rings {
                Some(rings) => Subject::ThreadOnCpu { tid, cpu: rings.cpu(place) },
                None => Subject::Thread(tid),
            };
            registers_free(subject, self.probe()).map(usize::cast_signed)
        };
        let mut before = free(own)?;
        loop {
            let there = free(tid)?;
            let after = free(own)?;
            // Else a breakpoint of the processor has come or gone in between.
            if before == after {
                return Ok(before - there);
            }
            before = after;
        }
    }

    /// The refusal for a thread, whose own events count as free.
    fn no_register(&mut self, tid: u32, before: usize) -> Error {
        self.events.truncate(before);
        let free = registers_free(Subject::Thread(tid), self.probe()).unwrap_or(0);
        Error::TooFewRegisters {
            tid,
            thread: self.plan.target.name(tid),
            asked: self.plan.lines.len(),
            free,
            leave_one: self.plan.leave_one,
        }
    }
}

/// The debug registers that are free in a thread for such a breakpoint. For the time of the call
/// they are taken.
pub(super) fn registers_free(subject: Subject, probe: Breakpoint) -> Result<usize, Refusal> {
    let mut open = Vec::new();
    while open.len() < MANY {
        match OpenEvent::open(&idle(probe), subject) {
            Ok(event) => open.push(event),
            Err(Refusal::NoSlot(_)) => break,
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(open.len())
}

/// The refusal of one event more than may be open.
fn no_descriptor() -> Refusal {
    Refusal::NoDescriptor("a breakpoint")
}

/// An event that takes a register and never counts.
fn idle(probe: Breakpoint) -> Attr {
    Attr::breakpoint(probe).disabled()
}

/// A breakpoint of memory.
pub(super) fn nowhere() -> Breakpoint {
    const NOWHERE: usize = 0;
    let breakpoint = Breakpoint::watch(NOWHERE, WatchLen::One, Access::Write);
    breakpoint.unwrap_or_else(|_| Breakpoint::execute(NOWHERE))
}

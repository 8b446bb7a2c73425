//! The stack of one thread of this process, read by another one.
//!
//! | the thread | is | callers |
//! |---|---|---|
//! | sleeps in the kernel | read from outside ([`super::asleep`]) | by tables, else by the links on its stack |
//! | runs | asked ([`super::cpu::Asking`]) | by tables, else by its frame pointer |
//!
//! The kernel does not report the frame pointer of a thread that sleeps. The unwind tables need it
//! only for functions that have one. So each address that may be the first such frame is tried,
//! from below, until the tables lead to the end of the stack.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use dormouse_sys::process::identity;
use dormouse_unwind::arch::{HAS_LINK, code_address};
use dormouse_unwind::{CallFrame, CopyEnd, own};

use super::arch::{CALL, ends_with_call, record_of_callee};
use super::asleep::{self, Asleep, Doing};
use super::chain::CopiedStack;
use super::cpu::{Asking, Blocks};
use super::keeper::KEEPER;
use crate::ends::StackEnd;
use crate::mappings::Mappings;
use crate::thread_stack::{NoStack, StackWay, ThreadStack};

/// The longest wait for one stack.
const PATIENCE: Duration = Duration::from_millis(40);
/// The time between two checks whether a thread has answered.
const LOOK: Duration = Duration::from_millis(1);
/// The shortest time between two readings of the mappings.
const REFRESH: Duration = Duration::from_secs(1);
/// The most bytes of a stack whose bounds are not known.
const UNBOUNDED: u64 = 16 * 1024;

/// A reader of stacks.
#[derive(Debug)]
pub(crate) struct StackSource {
    /// The process whose memory that is: not a child's.
    process: u64,
    memory: File,
    mappings: Mappings,
    refreshed: Instant,
    blocks: Blocks,
}

impl StackSource {
    /// Prepares what all stacks take.
    pub(crate) fn new() -> Result<Self, NoStack> {
        let memory = File::open("/proc/self/mem")
            .map_err(|error| NoStack::Refused(format!("the process's memory file: {error}")))?;
        let mut mappings = Mappings::default();
        mappings.refresh();
        // Without tables callers are found by links.
        let _no_tables = own::begin();
        let process = identity::id();
        Ok(Self { process, memory, mappings, refreshed: Instant::now(), blocks: Blocks::find() })
    }

    /// The stack of a thread. One that runs gets a signal, if it may be asked.
    pub(crate) fn read(&mut self, tid: u32, may_ask: bool) -> Result<ThreadStack, NoStack> {
        if self.process != identity::id() {
            return Err(NoStack::Refused("the process has forked since its stacks were first read".into()));
        }
        let end = Instant::now() + PATIENCE;
        loop {
            match asleep::doing(tid)? {
                Doing::Sleeps(asleep) => {
                    let bound = self.bound(tid, asleep.stack);
                    if let Some(bytes) = asleep::stack(tid, &asleep, &self.memory, bound)? {
                        let length = bytes.len() as u64;
                        let goes_on = asleep.stack + length < bound || length == UNBOUNDED;
                        return Ok(self.of_sleeping(&asleep, &bytes, goes_on));
                    }
                    // It goes to and fro.
                    std::thread::sleep(LOOK);
                }
                Doing::Runs if !may_ask => std::thread::sleep(LOOK),
                Doing::Runs => {
                    if let Some(stack) = self.ask(tid, end)? {
                        return Ok(stack);
                    }
                }
            }
            if Instant::now() >= end {
                return Err(if may_ask { NoStack::Silent } else { NoStack::Runs });
            }
        }
    }

    /// Asks a thread that runs; `None`: it sleeps meanwhile.
    fn ask(&mut self, tid: u32, end: Instant) -> Result<Option<ThreadStack>, NoStack> {
        if !Asking::is_prepared() {
            KEEPER.ask(|_| Asking::prepare()).map_err(|error| NoStack::Refused(error.to_string()))??;
        }
        let asking = Asking::begin(tid, &self.own_stack(tid).unwrap_or(0..0))?;
        loop {
            std::thread::sleep(LOOK);
            if let Some(stack) = asking.answer() {
                return Ok(Some(stack));
            }
            if asleep::doing(tid)? != Doing::Runs {
                return Ok(None);
            }
            if Instant::now() >= end {
                return Err(NoStack::Silent);
            }
        }
    }

    /// The bounds of a thread's own stack, if they are known.
    fn own_stack(&mut self, tid: u32) -> Option<Range<usize>> {
        match self.blocks.bounds(tid, &self.mappings) {
            // The thread is newer than the list.
            None if self.refresh() => self.blocks.bounds(tid, &self.mappings),
            known => known,
        }
    }

    /// The address behind the stack whose pointer that is. The memory behind it may be the next
    /// thread's, or a file on a disk that does not answer.
    fn bound(&mut self, tid: u32, stack: u64) -> u64 {
        let own = self.own_stack(tid).filter(|own| own.contains(&(stack as usize)));
        let end = own.map(|own| own.end as u64).or_else(|| self.mappings.readable_to(stack));
        end.unwrap_or_else(|| stack.saturating_add(UNBOUNDED))
    }

    /// The stack of a thread that sleeps with this copy of it, behind which it may go on. Unless it
    /// leads to the first function of the thread, its last frame says why.
    fn of_sleeping(&mut self, asleep: &Asleep, bytes: &[u8], goes_on: bool) -> ThreadStack {
        let copy = CopiedStack { from: asleep.stack, bytes, is_of_leaf: HAS_LINK };
        if self.mappings.of(asleep.instruction).is_none() {
            self.refresh();
        }
        let Self { memory, mappings, .. } = self;
        let returns_to = |word: u64| {
            let (address, mut code) = (code_address(word as usize)? as u64, [0; CALL]);
            mappings.of(address)?;
            memory.read_exact_at(&mut code, address - CALL as u64).ok()?;
            ends_with_call(&code).then_some(address)
        };
        let read = |at: u64, code: &mut [u8]| memory.read_at(code, at).unwrap_or(0);
        let found = copy.callers(returns_to, |address| record_of_callee(address, read));
        let callers = found.returns.iter().map(|returns_to| returns_to - 1);
        let mut frames: Vec<u64> = [asleep.instruction].into_iter().chain(callers).collect();
        let mut way = StackWay::Search;
        let mut lack = (!found.has_link).then_some(StackEnd::NoRegister);
        let links = found.places.iter().map(|place| place - size_of::<u64>() as u64);
        let (instruction, stack) = (asleep.instruction as usize, asleep.stack as usize);
        let mut functions = Vec::new();
        for frame in links.chain([0]) {
            let from = CallFrame { instruction, stack, frame: frame as usize, link: 0 };
            let end = own::follow(from, bytes, &mut functions);
            // Without one any function that needs it looks like the last.
            let is_whole = end == CopyEnd::Outermost && frame != 0;
            if is_whole || functions.len() > frames.len() {
                frames.clone_from(&functions);
                way = StackWay::Tables;
                lack = lack_of(end, goes_on);
            }
            if is_whole {
                lack = None;
                break;
            }
        }
        frames.extend(lack.map(|why| why.address(frames.len())));
        ThreadStack { frames, way }
    }

    /// Looks at the mappings, if it is time to.
    fn refresh(&mut self) -> bool {
        let is_due = self.refreshed.elapsed() >= REFRESH;
        if is_due {
            self.refreshed = Instant::now();
            self.mappings.refresh();
        }
        is_due
    }
}

/// Why a stack that is not whole ends there. Its last function may look like the first one of the
/// thread, or like one without a rule, only because a wrong place was tried as the frame.
fn lack_of(end: CopyEnd, goes_on: bool) -> Option<StackEnd> {
    let lack = StackEnd::of_copy(end, goes_on).filter(|why| *why != StackEnd::NoRule);
    lack.or(Some(StackEnd::NoRegister))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_breaks_off_says_why() {
        for (end, right) in [
            (CopyEnd::Outermost, StackEnd::NoRegister),
            (CopyEnd::NoRule, StackEnd::NoRegister),
            (CopyEnd::Copy, StackEnd::NoRegister),
            (CopyEnd::Enough, StackEnd::Cut),
            (CopyEnd::NoTable, StackEnd::NoTable),
            (CopyEnd::Unlearned, StackEnd::Unlearned),
        ] {
            assert_eq!(lack_of(end, false), Some(right), "{end:?}");
        }
        assert_eq!(lack_of(CopyEnd::Copy, true), Some(StackEnd::Cut));
    }
}

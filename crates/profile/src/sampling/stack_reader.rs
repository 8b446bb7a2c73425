//! The stack of one thread of this process, for another one that asks.
//!
//! | the thread | is | callers |
//! |---|---|---|
//! | sleeps in the kernel | read from outside ([`super::asleep`]) | by tables, else by the links on its stack |
//! | runs | asked ([`super::cpu::Asking`]) | by tables, else by its frame pointer |
//!
//! The kernel does not tell the frame pointer of a thread that sleeps. The tables need it only for
//! functions that have one; so it is tried with each place that may be that of the first of them,
//! from below, until the tables lead to the end of the stack.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use dormouse_sys::memory;
use dormouse_sys::process::identity;

use super::asleep::{self, Asleep, Doing};
use super::chain::{CopiedStack, ends_with_call};
use super::cpu::{Asking, Blocks};
use super::keeper::KEEPER;
use crate::mappings::Mappings;
use crate::tables::{Reach, Tables};
use crate::thread_stack::{NoStack, StackWay, ThreadStack};

/// The longest wait for one stack.
const PATIENCE: Duration = Duration::from_millis(40);
/// The time between two looks whether a thread has answered.
const LOOK: Duration = Duration::from_millis(1);
/// The shortest time between two looks at the mappings.
const REFRESH: Duration = Duration::from_secs(1);
/// The bytes of the longest call.
const CALL: usize = 7;
/// Reads the stacks of threads of this process, one after the other, on a thread that may wait for
/// them.
#[derive(Debug)]
pub struct StackReader {
    memory: File,
    mappings: Mappings,
    refreshed: Instant,
    blocks: Blocks,
    /// `None` where dormouse is built without them, or has no memory for them.
    tables: Option<Tables>,
}

impl StackReader {
    /// Prepares what all stacks take.
    ///
    /// # Errors
    ///
    /// [`NoStack::Refused`] without `/proc`.
    ///
    /// # Cost
    ///
    /// Reads the list of mappings, and with the feature `unwind` the tables of all code.
    pub fn new() -> Result<Self, NoStack> {
        let memory = File::open("/proc/self/mem")
            .map_err(|error| NoStack::Refused(format!("the process's memory file: {error}")))?;
        let mut mappings = Mappings::default();
        mappings.refresh();
        let code = mappings.code().iter().map(|mapping| mapping.end - mapping.start).sum::<u64>();
        // The tables are shorter than the code.
        let tables = memory::is_there(code as usize).then(|| Tables::of(identity::pid()));
        let tables =
            tables.and_then(Result::ok).filter(|tables| tables.is_code(Self::new as *const () as u64));
        Ok(Self { memory, mappings, refreshed: Instant::now(), blocks: Blocks::find(), tables })
    }

    /// The stack of a thread of this process other than the caller.
    ///
    /// # Errors
    ///
    /// See [`NoStack`].
    ///
    /// # Cost
    ///
    /// Some ten to some hundred microseconds for a thread that sleeps. One that runs has to come to
    /// the kernel's next tick; the caller waits for that, 40 ms at most.
    pub fn read(&mut self, tid: u32) -> Result<ThreadStack, NoStack> {
        let end = Instant::now() + PATIENCE;
        loop {
            match asleep::doing(tid)? {
                Doing::Sleeps(asleep) => {
                    if let Some(bytes) = asleep::stack(tid, &asleep, &self.memory)? {
                        return Ok(self.of_sleeping(&asleep, &bytes));
                    }
                }
                Doing::Runs => {
                    if let Some(stack) = self.ask(tid, end)? {
                        return Ok(stack);
                    }
                }
            }
            if Instant::now() >= end {
                return Err(NoStack::Silent);
            }
        }
    }

    /// Asks a thread that runs; `None`: it sleeps meanwhile.
    fn ask(&mut self, tid: u32, end: Instant) -> Result<Option<ThreadStack>, NoStack> {
        if !Asking::is_prepared() {
            KEEPER.ask(|_| Asking::prepare()).map_err(|error| NoStack::Refused(error.to_string()))??;
        }
        let own = match self.blocks.bounds(tid, &self.mappings) {
            // The thread is newer than the list.
            None if self.refresh() => self.blocks.bounds(tid, &self.mappings),
            known => known,
        };
        let asking = Asking::begin(tid, &own.unwrap_or(0..0))?;
        loop {
            std::thread::sleep(LOOK);
            if let Some(stack) = asking.answer(self.tables.as_mut()) {
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

    /// The stack of a thread that sleeps with this copy of it.
    fn of_sleeping(&mut self, asleep: &Asleep, bytes: &[u8]) -> ThreadStack {
        let copy = CopiedStack { from: asleep.stack, bytes };
        if self.mappings.of(asleep.instruction).is_none() {
            self.refresh();
        }
        let Self { memory, mappings, tables, .. } = self;
        let found = copy.callers(|address| {
            let mut code = [0; CALL];
            mappings.of(address).is_some()
                && memory.read_exact_at(&mut code, address - CALL as u64).is_ok()
                && ends_with_call(&code)
        });
        let (mut returns, mut way) = (found.returns, StackWay::Search);
        if let Some(tables) = tables {
            let frames = found.places.iter().map(|place| place - size_of::<u64>() as u64);
            for frame in frames.chain([0]) {
                let (callers, reach) = tables.follow([asleep.instruction, asleep.stack, frame, 0], bytes);
                // Without one any function that needs it looks like the last.
                let is_whole = reach == Reach::Outermost && frame != 0;
                if is_whole || callers.len() > returns.len() {
                    returns = callers.to_vec();
                    way = StackWay::Tables;
                }
                if is_whole {
                    break;
                }
            }
        }
        let callers = returns.into_iter().map(|returns_to| returns_to - 1);
        ThreadStack { frames: [asleep.instruction].into_iter().chain(callers).collect(), way }
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

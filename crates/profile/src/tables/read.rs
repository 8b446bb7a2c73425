//! The unwind tables of a process, in the form that `framehop` reads.

use std::time::{Duration, Instant};

use dormouse_maps::AddressSpace;
use dormouse_maps::symbols::{StackUnwinder, UnwindEnd};
use dormouse_sys::memory;

use super::Reach;
use crate::Error;

/// The shortest time between two looks for new code.
const LOOK: Duration = Duration::from_secs(1);

/// The memory that a look at the mappings may take: all that a kernel allows by default (65,530),
/// as text and as tables. The tables of callers ask by themselves.
const ROOM: usize = 24 << 20;

/// The tables of a process.
#[derive(Debug)]
pub(crate) struct Tables {
    space: AddressSpace,
    unwinder: StackUnwinder,
    looked: Instant,
    callers: Vec<u64>,
}

impl Tables {
    /// Reads those of the process `pid`. It may be this one, and takes no lock of the dynamic
    /// linker's then, which a thread of the host's may hold as long as it likes.
    pub(crate) fn of(pid: u32) -> Result<Self, Error> {
        let space = AddressSpace::of(pid).map_err(|error| Error::Unavailable(error.to_string()))?;
        let unwinder = StackUnwinder::new(&space);
        Ok(Self { space, unwinder, looked: Instant::now(), callers: Vec::new() })
    }

    /// Whether an address lies in code that is known.
    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.unwinder.is_code(address)
    }

    /// The addresses to which the callers return, the innermost first, of code with these
    /// registers: the instruction, the stack pointer, the frame pointer, the link register. The
    /// stack is that from its pointer on.
    pub(crate) fn follow(&mut self, registers: [u64; 4], stack: &[u8]) -> (&[u64], Reach) {
        self.callers.clear();
        let (mut known, mut end) = self.unwind(registers, stack);
        if known < self.callers.len() && self.update() {
            self.callers.clear();
            (known, end) = self.unwind(registers, stack);
        }
        // The reader takes a function without a table for one without a frame.
        if known == 0
            && !self.callers.is_empty()
            && let Some((registers, stack)) = caller(registers, stack)
        {
            self.callers.clear();
            self.callers.push(registers[0] + 1);
            (known, end) = self.unwind(registers, stack);
        }
        if known < self.callers.len() {
            self.callers.truncate(known);
            end = Reach::Lost;
        }
        (&self.callers, end)
    }

    /// Adds callers, and returns how many of all are in known code, up to the first that is not.
    fn unwind(&mut self, registers: [u64; 4], stack: &[u8]) -> (usize, Reach) {
        let end = match self.unwinder.unwind(registers, stack, &mut self.callers) {
            UnwindEnd::Outermost => Reach::Outermost,
            UnwindEnd::CopyEnd => Reach::Copy,
            UnwindEnd::Lost => Reach::Lost,
        };
        let known = self.callers.iter().take_while(|&&returns_to| self.unwinder.is_code(returns_to - 1));
        (known.count(), end)
    }

    /// Reads those of code that has come, if it is time to look.
    fn update(&mut self) -> bool {
        let is_due = self.looked.elapsed() >= LOOK;
        if is_due {
            self.looked = Instant::now();
            if memory::is_there(ROOM) && self.space.refresh().is_ok() {
                self.unwinder.update(&self.space);
            }
        }
        is_due
    }
}

/// The registers and the stack of the caller of a function that keeps a frame pointer.
fn caller([_, stack, frame, link]: [u64; 4], bytes: &[u8]) -> Option<([u64; 4], &[u8])> {
    let rest = bytes.get(usize::try_from(frame.checked_sub(stack)?).ok()?..)?;
    let word = |bytes: &[u8]| bytes.first_chunk().map(|word| u64::from_le_bytes(*word));
    let (next, rest) = (word(rest)?, rest.get(8..)?);
    let (returns_to, rest) = (word(rest)?, rest.get(8..)?);
    Some(([returns_to.checked_sub(1)?, frame + 16, next, link], rest))
}

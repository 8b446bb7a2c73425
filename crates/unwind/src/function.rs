//! A function of which nothing has been learned, and its rows. They are read from memory alone, so
//! any thread may read them, without the tables.

use std::ops::Range;

use crate::arch;
use crate::entry::{Buffers, Entry};
use crate::index::{Around, Index};
use crate::memory::{Attempt, MemorySource};
use crate::rule::{CallerRule, FrameBase, FrameRule, PackedRule, SavedAt};

/// Padding between functions is shorter.
const PADDING: u64 = 16;

/// The most bytes of an object of the kernel's that are read.
const MOST_OF_KERNEL: usize = 64 << 10;

/// A part of an object's code of which nothing has been learned, and an address in it.
#[derive(Debug, Clone)]
pub(crate) struct Unlearned {
    /// The number of the object.
    pub(crate) object: u64,
    /// `None`: the object is of the kernel.
    pub(crate) index: Option<Index>,
    pub(crate) gap: Range<u64>,
    pub(crate) address: u64,
}

/// The first address for which each rule holds, in order, and the rule.
type Rows = Vec<(u64, PackedRule)>;

/// The rows of a function.
#[derive(Debug)]
pub(crate) struct Learned {
    pub(crate) object: u64,
    /// At least one.
    pub(crate) rows: Rows,
    /// The first address behind it.
    pub(crate) end: u64,
}

impl Unlearned {
    /// Reads the rows around the address. `None`: there is no room for them, the object has been
    /// unmapped, or a read has failed that may succeed later.
    ///
    /// # Cost
    ///
    /// Some ten reads of memory.
    pub(crate) fn read(&self, memory: &impl MemorySource, buffers: &mut Buffers) -> Option<Learned> {
        let memory = &Attempt::new(memory);
        let found = match self.index {
            Some(index) => self.by_index(index, memory, buffers),
            None => self.of_kernel(memory).map(|rows| (rows, self.gap.end)),
        };
        let (rows, end) = found.filter(|_| !memory.has_failed())?;
        Some(Learned { object: self.object, rows, end })
    }

    fn by_index(
        &self,
        index: Index,
        memory: &impl MemorySource,
        buffers: &mut Buffers,
    ) -> Option<(Rows, u64)> {
        let Self { gap, address, .. } = self;
        let around = index.find(memory, *address);
        let around = match around {
            Some(around) => around,
            None if index.is_there(memory) => Around { function: None, next: None },
            None => return None,
        };
        let next = around.next.unwrap_or(gap.end).min(gap.end);
        // Code that no entry covers is hand-written: it keeps frame pointers, or nobody knows.
        let (mut start, mut rule) = (gap.start, FrameRule::UNCOVERED);
        if let Some(function) = around.function {
            start = start.max(function.start);
            let entry = Entry::read(memory, function.entry, buffers);
            if entry.is_none() && !index.is_there(memory) {
                return None;
            }
            let entry = entry.filter(|entry| entry.start == function.start && entry.start < entry.end);
            // No code runs between functions that are only padded.
            let end = entry.as_ref().map_or(next, |entry| {
                if next.saturating_sub(entry.end) < PADDING { next } else { entry.end.min(next) }
            });
            match entry {
                Some(_) if *address >= end => start = start.max(end),
                Some(entry) if gap.start <= entry.start => match rows_of(&entry, end) {
                    Some(rows) => return Some((rows, end)),
                    None => rule = FrameRule::Unknown,
                },
                // None can be read, or entries overlap.
                _ => rule = FrameRule::Unknown,
            }
        }
        let mut rows = Rows::new();
        push(&mut rows, start, PackedRule::new(rule).unwrap_or(PackedRule::UNKNOWN))?;
        Some((rows, next))
    }

    /// The rows of an object of the kernel's that has no index: its code keeps frame pointers, but
    /// for the instructions that end a signal handler. Those begin behind an instruction to which
    /// the handler seems to return.
    fn of_kernel(&self, memory: &impl MemorySource) -> Option<Rows> {
        const INSTRUCTION: u64 = 4;
        let gap = &self.gap;
        let mut code = Vec::new();
        let length = usize::try_from(gap.end - gap.start).ok()?.min(MOST_OF_KERNEL);
        code.try_reserve_exact(length).ok()?;
        code.resize(length, 0);
        let read = memory.read(gap.start, &mut code)?;
        let mut places = code[..read].windows(8).step_by(INSTRUCTION as usize).zip((gap.start..).step_by(4));
        let found = places.find_map(|(code, at)| Some((at, arch::ends_handlers(*code.first_chunk()?)?)));
        let link = PackedRule::new(FrameRule::UNCOVERED)?;
        let mut rows = Rows::new();
        push(&mut rows, gap.start, link)?;
        if let Some((at, frame)) = found.filter(|(at, _)| *at > gap.start + INSTRUCTION) {
            let interrupted = FrameRule::Caller(CallerRule {
                base: FrameBase::Stack,
                distance: frame.stack,
                is_indirect: true,
                returns_to: SavedAt::Base(frame.instruction),
                frame: Some(SavedAt::Base(frame.frame)),
                is_interrupted: true,
            });
            push(&mut rows, at - INSTRUCTION, PackedRule::new(interrupted)?)?;
            push(&mut rows, at + 2 * INSTRUCTION, link)?;
        }
        Some(rows)
    }
}

/// The rows of an entry, up to `end`. `None`: there is no memory.
fn rows_of(entry: &Entry<'_>, end: u64) -> Option<Rows> {
    let mut rows = Rows::new();
    entry.rows(|at, rule| if at < end { push(&mut rows, at, rule) } else { Some(()) })?;
    Some(rows)
}

fn push(rows: &mut Rows, at: u64, rule: PackedRule) -> Option<()> {
    rows.try_reserve(1).ok()?;
    rows.push((at, rule));
    Some(())
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use std::cell::Cell;

    use crate::memory::{Failing, MemorySource, ProcessMemory};
    use crate::tables::{CallerWay, UnwindTables};

    /// Memory that is unmapped after some reads.
    #[derive(Debug)]
    struct Unmapped(ProcessMemory, Cell<u32>);

    impl MemorySource for &Unmapped {
        fn read(&self, address: u64, into: &mut [u8]) -> Option<usize> {
            let Some(left) = self.1.get().checked_sub(1) else { return Some(0) };
            self.1.set(left);
            self.0.read(address, into)
        }
    }

    #[test]
    fn nothing_is_learned_of_unmapped_code() {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let memory = Unmapped(ProcessMemory::own().unwrap(), Cell::new(u32::MAX));
        let function = libc::qsort as *const () as u64;
        let mut others = UnwindTables::new(&memory);
        others.update(&maps);
        let rule = others.code(function);
        for reads in 0.. {
            let mut tables = UnwindTables::new(&memory);
            tables.update(&maps);
            memory.1.set(reads);
            let way = tables.code(function);
            memory.1.set(u32::MAX);
            assert_eq!(tables.code(function), rule, "{way:?} after {reads} reads");
            if way == rule {
                return assert!(reads > 2);
            }
        }
    }

    #[test]
    fn a_failed_read_is_made_again() {
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let memory = Failing::new(ProcessMemory::own().unwrap());
        let function = libc::qsort as *const () as u64;
        let mut failed = 0;
        loop {
            let mut tables = UnwindTables::new(&memory);
            tables.update(&maps);
            memory.fail_after(failed);
            let way = tables.code(function);
            if way != CallerWay::Unlearned {
                assert!(matches!(way, CallerWay::Ruled(_)) && failed > 2, "{way:?} of {failed} reads");
                break;
            }
            failed += 1;
            // The rule of other tables, which no read has failed.
            let mut others = UnwindTables::new(&memory);
            others.update(&maps);
            assert_eq!(tables.code(function), others.code(function), "read {failed} had failed");
        }
    }
}

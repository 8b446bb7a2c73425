//! The events that can be counted: those of the processor, of the kernel, and breakpoints.

use super::error::Error;

/// An event with a number in the kernel's interface, of the processor or of the kernel itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as perf names them")]
pub enum KernelEvent {
    Cycles,
    Instructions,
    CacheReferences,
    CacheMisses,
    Branches,
    BranchMisses,
    L1Loads,
    L1LoadMisses,
    CpuClock,
    TaskClock,
    PageFaults,
    ContextSwitches,
    CpuMigrations,
    MinorFaults,
    MajorFaults,
    AlignmentFaults,
    EmulationFaults,
    /// Counts nothing.
    Dummy,
}

/// `PERF_TYPE_HARDWARE`, `PERF_TYPE_SOFTWARE` and `PERF_TYPE_HW_CACHE` of `linux/perf_event.h`.
const HARDWARE: u32 = 0;
const SOFTWARE: u32 = 1;
const HARDWARE_CACHE: u32 = 3;
/// `PERF_COUNT_HW_CACHE_RESULT_MISS` in its place. (The data cache of the first level and reading
/// are 0.)
const MISS: u64 = 1 << 16;

impl KernelEvent {
    /// The event's name, as perf spells it.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Whether the processor counts the event, in a unit that a virtual machine may not have.
    pub const fn is_hardware(self) -> bool {
        self.row().1 != SOFTWARE
    }

    /// Type and number for the kernel.
    pub(super) const fn raw(self) -> (u32, u64) {
        let (_, kind, number) = self.row();
        (kind, number)
    }

    const fn row(self) -> (&'static str, u32, u64) {
        match self {
            Self::Cycles => ("cycles", HARDWARE, 0),
            Self::Instructions => ("instructions", HARDWARE, 1),
            Self::CacheReferences => ("cache-references", HARDWARE, 2),
            Self::CacheMisses => ("cache-misses", HARDWARE, 3),
            Self::Branches => ("branches", HARDWARE, 4),
            Self::BranchMisses => ("branch-misses", HARDWARE, 5),
            Self::L1Loads => ("L1-dcache-loads", HARDWARE_CACHE, 0),
            Self::L1LoadMisses => ("L1-dcache-load-misses", HARDWARE_CACHE, MISS),
            Self::CpuClock => ("cpu-clock", SOFTWARE, 0),
            Self::TaskClock => ("task-clock", SOFTWARE, 1),
            Self::PageFaults => ("page-faults", SOFTWARE, 2),
            Self::ContextSwitches => ("context-switches", SOFTWARE, 3),
            Self::CpuMigrations => ("cpu-migrations", SOFTWARE, 4),
            Self::MinorFaults => ("minor-faults", SOFTWARE, 5),
            Self::MajorFaults => ("major-faults", SOFTWARE, 6),
            Self::AlignmentFaults => ("alignment-faults", SOFTWARE, 7),
            Self::EmulationFaults => ("emulation-faults", SOFTWARE, 8),
            Self::Dummy => ("dummy", SOFTWARE, 9),
        }
    }
}

/// The accesses that a watch traps on. (x86 has no register that traps on reads only.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Writes only.
    Write,
    /// Reads and writes.
    ReadWrite,
    /// Executions of the instruction.
    Execute,
}

/// The number of bytes that a watch covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchLen {
    /// One byte.
    One = 1,
    /// Two bytes.
    Two = 2,
    /// Four bytes.
    Four = 4,
    /// Eight bytes.
    Eight = 8,
}

/// A range of memory whose accesses by user code are to be seen. It takes a debug register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breakpoint {
    pub(super) kind: u32,
    pub(super) addr: u64,
    pub(super) len: u64,
}

/// `HW_BREAKPOINT_W`, `HW_BREAKPOINT_RW` and `HW_BREAKPOINT_X` of `linux/hw_breakpoint.h`.
const WRITE: u32 = 2;
const READ_WRITE: u32 = 3;
const EXECUTE: u32 = 4;

impl Breakpoint {
    /// Accesses to `len` bytes at `addr`. For executions `len` does not matter: those of the
    /// instruction at `addr`.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`] unless `addr` is a multiple of `len`.
    pub const fn watch(addr: usize, len: WatchLen, access: Access) -> Result<Self, Error> {
        let kind = match access {
            Access::Write => WRITE,
            Access::ReadWrite => READ_WRITE,
            Access::Execute => return Ok(Self::execute(addr)),
        };
        let bytes = len as u64;
        let addr = addr as u64;
        if !addr.is_multiple_of(bytes) {
            return Err(Error::Misaligned { addr, len: bytes });
        }
        Ok(Self { kind, addr, len: bytes })
    }

    /// Executions of the instruction at `addr`.
    pub const fn execute(addr: usize) -> Self {
        // The one length that the kernel takes for instructions.
        Self { kind: EXECUTE, addr: addr as u64, len: size_of::<libc::c_long>() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_must_be_aligned() {
        let at = |addr, len| Breakpoint::watch(addr, len, Access::Write);
        for (addr, len) in
            [(7, WatchLen::One), (6, WatchLen::Two), (12, WatchLen::Four), (8, WatchLen::Eight)]
        {
            assert!(at(addr, len).is_ok(), "{len:?} at {addr}");
        }
        for (addr, len) in [(7, WatchLen::Two), (6, WatchLen::Four), (12, WatchLen::Eight)] {
            let refused = at(addr, len).unwrap_err().to_string();
            assert!(refused.contains(&format!("multiple of {}", len as u64)), "{refused}");
        }
    }

    #[test]
    fn only_software_events_need_no_unit() {
        assert!(KernelEvent::Cycles.is_hardware() && KernelEvent::L1LoadMisses.is_hardware());
        assert!(!KernelEvent::TaskClock.is_hardware());
    }
}

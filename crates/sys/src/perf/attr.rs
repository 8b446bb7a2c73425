//! The request as the kernel reads it.

use super::{Breakpoint, Counted};

/// `PERF_TYPE_BREAKPOINT`.
const TYPE_BREAKPOINT: u32 = 5;
/// Bits of the flags word.
const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const ENABLE_ON_EXEC: u64 = 1 << 12;
/// Records of mappings (code, data, with their file), names, forks and ends: `mmap`, `comm`, `task`, `mmap_data`,
/// `mmap2`, `comm_exec`.
const LIFE: u64 = 1 << 8 | 1 << 9 | 1 << 13 | 1 << 17 | 1 << 23 | 1 << 24;
/// Who and when in the records that are no samples, too.
const SAMPLE_ID_ALL: u64 = 1 << 18;
/// `PERF_SAMPLE_{IP, TID, TIME, ADDR}`; the layout of a sample follows from it (`record.rs`).
const SAMPLE: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3;
/// `PERF_FORMAT_TOTAL_TIME_{ENABLED, RUNNING}`; the layout of a read follows from it (`event.rs`).
const READ_FORMAT: u64 = 1 << 0 | 1 << 1;

/// `struct perf_event_attr` as of Linux 5.13. Older kernels take it too, as long as what they do not know is zero.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Raw {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    bp_addr: u64,
    bp_len: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved_2: u16,
    aux_sample_size: u32,
    reserved_3: u32,
    sig_data: u64,
}

const _: () = {
    assert!(size_of::<Raw>() == 128);
    assert!(std::mem::offset_of!(Raw, flags) == 40);
    assert!(std::mem::offset_of!(Raw, bp_type) == 52);
    assert!(std::mem::offset_of!(Raw, sig_data) == 120);
};

/// What to count, and how.
#[derive(Debug, Clone, Copy)]
pub struct Attr {
    pub(super) raw: Raw,
    pub(super) name: &'static str,
    pub(super) is_hardware: bool,
}

impl Attr {
    /// One of the kernel's numbered events, in user and kernel mode, from the opening on.
    #[must_use]
    pub fn count(counted: Counted) -> Self {
        let (kind, config) = counted.raw();
        let raw = Raw { kind, config, ..Raw::new() };
        Self { raw, name: counted.name(), is_hardware: counted.is_hardware() }
    }

    /// User code that runs into a breakpoint, from the opening on.
    #[must_use]
    pub fn breakpoint(breakpoint: Breakpoint) -> Self {
        let Breakpoint { kind, addr, len } = breakpoint;
        let flags = EXCLUDE_KERNEL;
        let raw =
            Raw { kind: TYPE_BREAKPOINT, flags, bp_type: kind, bp_addr: addr, bp_len: len, ..Raw::new() };
        Self { raw, name: "a breakpoint", is_hardware: false }
    }

    /// Not counting until [`Event::enable`](super::Event::enable).
    #[must_use]
    pub fn disabled(self) -> Self {
        self.with(DISABLED)
    }

    /// Not counting until the subject executes a program.
    #[must_use]
    pub fn from_exec(self) -> Self {
        self.with(DISABLED | ENABLE_ON_EXEC)
    }

    /// Also in the threads and processes that the subject starts from now on.
    #[must_use]
    pub fn inherited(self) -> Self {
        self.with(INHERIT)
    }

    /// Not while the kernel runs, which is more than everybody may see.
    #[must_use]
    pub fn user_only(self) -> Self {
        self.with(EXCLUDE_KERNEL)
    }

    pub(super) fn is_user_only(&self) -> bool {
        self.raw.flags & EXCLUDE_KERNEL != 0
    }

    pub(super) fn is_inherited(&self) -> bool {
        self.raw.flags & INHERIT != 0
    }

    /// A record at every `every`th event, and of the subject's life where wanted.
    pub(super) fn sampled(self, every: u64, life: bool) -> Self {
        let raw = Raw { sample_period: every, sample_type: SAMPLE, ..self.raw };
        Self { raw, ..self }.with(SAMPLE_ID_ALL | if life { LIFE } else { 0 })
    }

    fn with(mut self, flags: u64) -> Self {
        self.raw.flags |= flags;
        self
    }
}

impl Raw {
    fn new() -> Self {
        Self { size: size_of::<Self>() as u32, read_format: READ_FORMAT, ..Self::default() }
    }
}

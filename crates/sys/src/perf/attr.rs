//! The request in the kernel's layout.

use std::num::NonZero;

use super::kernel_event::{Breakpoint, KernelEvent};
use crate::arch::UNWIND_REGISTERS;

/// `PERF_TYPE_BREAKPOINT`.
const TYPE_BREAKPOINT: u32 = 5;
/// Bits of the flags word.
const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const ENABLE_ON_EXEC: u64 = 1 << 12;
/// Records of mappings (code, data, with their file), names, forks and ends: `mmap`, `comm`,
/// `task`, `mmap_data`, `mmap2`, `comm_exec`.
const LIFE: u64 = 1 << 8 | 1 << 9 | 1 << 13 | 1 << 17 | 1 << 23 | 1 << 24;
/// Process, thread and time in the records that are no samples, too.
const SAMPLE_ID_ALL: u64 = 1 << 18;
const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
const USE_CLOCKID: u64 = 1 << 25;
const INHERIT_THREAD: u64 = 1 << 35;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;
/// `PERF_SAMPLE_{IP, TID, TIME, ADDR}`; the layout of a sample follows from it (`record.rs`).
const SAMPLE: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_READ: u64 = 1 << 4;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
/// `PERF_SAMPLE_{REGS_USER, STACK_USER}`.
const SAMPLE_STACK: u64 = 1 << 12 | 1 << 13;
/// `PERF_FORMAT_TOTAL_TIME_{ENABLED, RUNNING}`; the layout of a read follows from it (`event.rs`).
const READ_FORMAT: u64 = 1 << 0 | 1 << 1;

/// `struct perf_event_attr` as far as `PERF_ATTR_SIZE_VER7`. A newer kernel reads the rest as
/// zeros, an older one takes a longer structure whose end is zeros.
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
    reserved: u16,
    aux_sample_size: u32,
    aux_action: u32,
    sig_data: u64,
}

const _: () = assert!(
    size_of::<Raw>() == 128
        && std::mem::offset_of!(Raw, bp_type) == 52
        && std::mem::offset_of!(Raw, clockid) == 92
        && std::mem::offset_of!(Raw, sig_data) == 120
);

/// The name of a breakpoint.
pub(super) const BREAKPOINT: &str = "a breakpoint";

/// A version of the kernel, by its first two numbers.
pub(super) type Release = (u32, u32);

/// The ability of the kernel without which an event sends no signal, and the first version that has
/// it.
pub(super) const TRAPPING: (&str, Release) = ("send a waiting signal", (5, 19));

/// The occurrences to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Record one in this many events.
    pub every: NonZero<u64>,
    /// Whether to record new mappings, threads and processes, and their ends, too.
    pub life: bool,
    /// Whether to record the callers, those in user code as the kernel finds them by frame
    /// pointers. The kernel's own functions are among them if the event counts in the kernel.
    pub callchain: bool,
    /// How many bytes of the user's stack to record, a multiple of 8 below 64 KiB, together with
    /// the registers from which an unwinder begins; 0 for none. Requires `callchain`.
    pub stack_bytes: u16,
}

/// The request: which event to count, and how.
#[derive(Debug, Clone, Copy)]
pub struct Attr {
    pub(super) raw: Raw,
    pub(super) name: &'static str,
    pub(super) is_hardware: bool,
}

impl Attr {
    /// One of the kernel's numbered events, in user and kernel mode, counted as soon as it is
    /// opened.
    #[must_use]
    pub fn count(event: KernelEvent) -> Self {
        let (kind, config) = event.raw();
        let raw = Raw { kind, config, ..Raw::new() };
        Self { raw, name: event.name(), is_hardware: event.is_hardware() }
    }

    /// User code that runs into a breakpoint, counted as soon as it is opened.
    #[must_use]
    pub fn breakpoint(breakpoint: Breakpoint) -> Self {
        let Breakpoint { kind, addr, len } = breakpoint;
        let flags = EXCLUDE_KERNEL;
        let raw =
            Raw { kind: TYPE_BREAKPOINT, flags, bp_type: kind, bp_addr: addr, bp_len: len, ..Raw::new() };
        Self { raw, name: BREAKPOINT, is_hardware: false }
    }

    /// Not counting until [`OpenEvent::enable`](super::OpenEvent::enable).
    #[must_use]
    pub fn disabled(self) -> Self {
        self.with(DISABLED)
    }

    /// Counting starts when the subject executes a program (`exec`).
    #[must_use]
    pub fn from_exec(self) -> Self {
        self.with(DISABLED | ENABLE_ON_EXEC)
    }

    /// Also counts in the threads and processes that the subject starts from now on.
    #[must_use]
    pub fn inherited(self) -> Self {
        self.with(INHERIT)
    }

    /// Also counts in the threads that the subject starts from now on, in its process only.
    #[must_use]
    pub fn inherited_by_threads(self) -> Self {
        self.with(INHERIT | INHERIT_THREAD)
    }

    /// Stops counting when a subject executes another program.
    #[must_use]
    pub fn until_exec(self) -> Self {
        self.with(REMOVE_ON_EXEC)
    }

    /// Threads that inherit the event keep events of their own (Linux 6.13; older kernels return
    /// `EINVAL`).
    ///
    /// Without it the kernel, when it switches between two threads that have inherited the same
    /// events, exchanges these instead of reading them. The sum of counts stays right, but each
    /// thread then ends with events that are accounted to the other: debug registers that are in
    /// use count as free.
    #[must_use]
    pub fn apart(mut self) -> Self {
        // The kernel cannot exchange events that are read into samples. (`nr_no_switch_fast` in
        // kernel/events/core.c.)
        self.raw.sample_type |= SAMPLE_READ | SAMPLE_TID;
        self
    }

    /// Sends a SIGTRAP with code `TRAP_PERF` to the thread at each occurrence, with `data` in
    /// `si_perf_data`, until the thread executes another program. (Linux 5.13; kernels before 5.19,
    /// where a thread that blocks the signal would end its process, are refused.)
    ///
    /// A process without a handler is killed by it: see [`crate::trap`].
    #[must_use]
    pub fn trapping(self, data: u64) -> Self {
        // Precise, as it is here, is 0: other levels fail for breakpoints on some processors.
        let raw = Raw { sample_period: 1, sig_data: data, ..self.raw };
        Self { raw, ..self }.with(SIGTRAP | REMOVE_ON_EXEC)
    }

    /// Traps once in `happenings` occurrences on a thread ([`Attr::trapping`]) instead of at each
    /// one.
    #[must_use]
    pub fn every(self, happenings: NonZero<u32>) -> Self {
        Self { raw: Raw { sample_period: happenings.get().into(), ..self.raw }, ..self }
    }

    /// The newest ability of the kernel that this needs, and the first version that has it.
    pub(super) fn newest(&self) -> Option<(&'static str, Release)> {
        if self.is_trapping() {
            return Some(TRAPPING);
        }
        let is_newer = self.raw.flags & (INHERIT_THREAD | REMOVE_ON_EXEC) != 0;
        is_newer.then_some(("count in the threads of one program alone", (5, 13)))
    }

    pub(super) fn is_trapping(&self) -> bool {
        self.raw.flags & SIGTRAP != 0
    }

    /// Does not count while the kernel runs, which not every user may observe.
    #[must_use]
    pub fn user_only(self) -> Self {
        self.with(EXCLUDE_KERNEL)
    }

    /// Whether its samples have a reading.
    pub(super) fn is_apart(&self) -> bool {
        self.raw.sample_type & SAMPLE_READ != 0
    }

    pub(super) fn is_user_only(&self) -> bool {
        self.raw.flags & EXCLUDE_KERNEL != 0
    }

    pub(super) fn is_inherited(&self) -> bool {
        self.raw.flags & INHERIT != 0
    }

    /// A record at every `every`th event, and of the subject's life where wanted.
    pub(super) fn sampled(self, sampling: Sampling) -> Self {
        let Sampling { every, life, callchain, stack_bytes } = sampling;
        let has_stack = callchain && stack_bytes > 0;
        let stack = if has_stack { SAMPLE_STACK } else { 0 };
        let raw = Raw {
            sample_period: every.get(),
            sample_type: self.raw.sample_type | SAMPLE | if callchain { SAMPLE_CALLCHAIN } else { 0 } | stack,
            sample_regs_user: if has_stack { UNWIND_REGISTERS } else { 0 },
            sample_stack_user: if has_stack { stack_bytes.into() } else { 0 },
            clockid: libc::CLOCK_MONOTONIC,
            ..self.raw
        };
        let life = if life { LIFE } else { 0 };
        let no_kernel = if self.is_user_only() { EXCLUDE_CALLCHAIN_KERNEL } else { 0 };
        Self { raw, ..self }.with(SAMPLE_ID_ALL | USE_CLOCKID | no_kernel | life)
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

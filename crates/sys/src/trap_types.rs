//! The types by which traps are reported, on every processor.

/// One hit of an event that traps. Copies of dormouse share the layout, which grows only at its
/// end.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PerfTrap {
    /// The event's data.
    pub data: u64,
    /// The address of the thread's next instruction; for a late hit it means nothing.
    pub ip: usize,
    /// The frame pointer of the thread.
    pub frame: usize,
    /// The stack pointer of the thread.
    pub stack: usize,
    /// 1 if the thread blocked the signal, and took it later, at another place, once for several
    /// hits.
    pub is_late: u32,
    /// The address that the debug register watched when it was hit; 0 if the kernel reports none.
    pub addr: usize,
    /// The register in which a call leaves the return address, where there is one.
    pub link: usize,
    /// The lowest address of the alternate stack on which the handler runs, or 0.
    pub lowest: usize,
}

/// Called for hits, with the signals of [`all_but_faults`](crate::signals::all_but_faults) blocked.
/// It must not allocate, lock, unwind or branch on a static key; it may change `errno`.
pub type Watcher = fn(&PerfTrap);

/// The action of SIGTRAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Our handler.
    Ours,
    /// The default action, which ends the process.
    Default,
    /// The signal is ignored.
    Ignored,
    /// Another handler, at this address.
    Other(usize),
}

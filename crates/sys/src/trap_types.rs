//! The types by which traps are reported, on every processor.

/// One hit of an event that traps. Copies of dormouse share the layout, which grows only at its
/// end.
#[derive(Debug, Clone, Copy, Default)]
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
    /// How the thread gets past the access: the number of a [`Passing`].
    pub passing: usize,
    /// The address of the access that the handler has made, or 0.
    pub made_at: usize,
}

/// How the thread gets past the access that hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passing {
    /// It has passed it: on processors that stop behind it, or because the signal was blocked.
    Behind,
    /// The handler has made it, and the kernel has not counted it again.
    Made,
    /// The handler has made it, a load, which the kernel has counted again.
    MadeLoad,
    /// The handler has made it, a store, which the kernel has counted again.
    MadeStore,
    /// This is the signal of an access that the handler had made: no hit.
    Repeated,
    /// Not at all: the handler cannot make it, and the thread comes back to it.
    Ahead,
}

/// An access that a handler has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) address: usize,
    pub(crate) is_store: bool,
}

impl PerfTrap {
    /// How the thread gets past the access. Always the first on processors that stop behind it.
    pub fn passing(&self) -> Passing {
        const ALL: [Passing; 6] = [
            Passing::Behind,
            Passing::Made,
            Passing::MadeLoad,
            Passing::MadeStore,
            Passing::Repeated,
            Passing::Ahead,
        ];
        // Of a leader that is newer: it has passed it.
        ALL.get(self.passing).copied().unwrap_or(Passing::Behind)
    }
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

//! Errors that name the request and the setting to change.

use std::io;

/// Why an event cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A register watches aligned memory only.
    #[error("a watch of {len} bytes at {addr:#x} cannot be set: the address must be a multiple of {len}")]
    Misaligned {
        /// Where.
        addr: u64,
        /// How many bytes.
        len: u64,
    },
    /// The caller may not count this.
    #[error("counting {name} is not allowed: {advice}")]
    Denied {
        /// The event.
        name: &'static str,
        /// The setting to change.
        advice: String,
    },
    /// No unit here counts such an event.
    #[error("no PMU counts {0} here; a virtual machine has one if its host passes it on")]
    NoPmu(&'static str),
    /// All debug registers are taken.
    #[error("no debug register is free for {0}: remove another breakpoint of this thread or processor")]
    NoSlot(&'static str),
    /// There is no such thread (any more).
    #[error("there is no thread {tid}")]
    NoSuchThread {
        /// Its id.
        tid: u32,
    },
    /// There is no such processor, or it is offline.
    #[error("there is no processor {0}, or it is offline")]
    NoSuchCpu(u32),
    /// The process, or the machine, has reached its limit of open descriptors.
    #[error("no descriptor is left for counting {0}: raise the limit on open files (ulimit -n)")]
    NoDescriptor(&'static str),
    /// A buffer for an inherited event needs a processor.
    #[error("an inherited event cannot have one buffer for all processors: open one for each processor")]
    Unplaced,
    /// More memory would be locked than is allowed.
    #[error(
        "{bytes} bytes of locked memory for records of {name} are not allowed: use a smaller buffer, or raise \
         kernel.perf_event_mlock_kb or the limit on locked memory (ulimit -l)"
    )]
    LockedMemory {
        /// The event.
        name: &'static str,
        /// How much.
        bytes: usize,
    },
    /// The kernel was built without events, or the sandbox hides them.
    #[error("this kernel or sandbox has no perf_event_open: {0} cannot be counted")]
    NoEvents(&'static str),
    /// The kernel does not support the request, or would end a process that blocks the signal.
    #[error("this kernel cannot {what} for {name}: that takes Linux {}.{}", .release.0, .release.1)]
    TooOld {
        /// The event.
        name: &'static str,
        /// The ability that it lacks.
        what: &'static str,
        /// The first version that can, by its first two numbers.
        release: (u32, u32),
    },
    /// Another refusal.
    #[error("cannot {what} {name}: {source}")]
    Kernel {
        /// The operation.
        what: &'static str,
        /// The event.
        name: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

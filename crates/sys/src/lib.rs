//! The base of every dormouse mechanism: what neither std nor rustix offers.
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | [`Capability`] | one line of the report on the capabilities of the process |
//! | [`arch`] | everything that differs between processors |
//! | [`barrier`] | memory barriers of which one side costs nothing |
//! | [`errno`] | keeps that of the code that a handler interrupts |
//! | [`futex`] | sleeping until another thread changes a word |
//! | [`clock`] | the kernel's clocks, asked without the C library |
//! | [`environment`] | the variables that dormouse looks at, read once |
//! | [`likeness()`] | how alike two names are |
//! | [`sync`] | words that readers see whole, values that are made once, a queue from handlers to a reader; loom |
//! | [`directory`] | directories that nobody else can change |
//! | [`brief`] | files that are open for a moment, whose numbers the host may close |
//! | [`descriptors`] | a table of descriptors of a thread's own |
//! | [`memory`] | whether there is memory for the next step |
//! | [`interrupts`] | interprocessor interrupts as the kernel counts them |
//! | [`prefetch()`] | a hint that memory is about to be read |
//! | [`readable`] | whether memory can be read, without a fault |
//! | [`receive`] | reading a socket, and when the kernel received what was read |
//! | [`rseq`] | a flag that the kernel clears when it deschedules a thread |
//! | [`underway`] | a mark for code that a signal handler may interrupt and never return to |
//! | [`process`] | which process this is; locks, and phases that a fork respects |
//! | `bare_thread` | a thread without std's part |
//! | [`signals`] | threads that keep off the host's signals, and those that wait while a handler runs |
//! | [`passing`] | handlers of ours that pass a signal on to the host's |
//! | [`keeper`] | a thread that is there while it has something to do |
//! | [`perf`] | events of the kernel: `perf_event_open`, its descriptors, and the page beside an event |
//! | [`peek`], [`stack`] | copies of memory that may go, for handlers; registers of code |
//! | [`own_stack`] | the bounds of the calling thread's stack |
//! | [`heap`] | the seam between an allocator and those who sample its allocations |
//! | [`loader`] | the loaded objects, and keeping one of them |
//! | [`otel`] | the contexts of threads and of the process that OpenTelemetry has standardised |
//! | `ring` | a byte ring that a thread and its signal handlers write without ever blocking |
//! | [`thread`] | the per-thread block: an identity that is never reused, the current task, hooks at the end |
//! | [`masks`], `trap_types`, `sigtrap`, `debug_trap` | the threads that block a signal; the handler of SIGTRAP |
//! | [`rendezvous`] | several copies of dormouse in one process, and the table that they share |
//! | [`records`], [`trap`] | records, and SIGTRAP, for all copies |
//!
//! # Things it does not do
//!
//! There is no policy here: which tier a clock uses or which thread drains a ring is decided above.
//! Copies of this crate in one process, of several versions in one program or of several objects,
//! share state through [`rendezvous`].

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]

/// The name of a symbol of this copy: a program may contain several versions.
#[cfg(not(miri))]
macro_rules! of_this_version {
    ($name:literal) => {
        concat!(
            $name,
            "_",
            env!("CARGO_PKG_VERSION_MAJOR"),
            "_",
            env!("CARGO_PKG_VERSION_MINOR"),
            "_",
            env!("CARGO_PKG_VERSION_PATCH")
        )
    };
}

pub mod arch;
mod bare_thread;
pub mod barrier;
pub mod brief;
mod capability;
pub mod clock;
mod debug_trap;
pub mod descriptors;
pub mod directory;
pub mod environment;
pub mod errno;
pub mod futex;
pub mod heap;
pub mod interrupts;
pub mod keeper;
mod likeness;
pub mod loader;
pub mod masks;
pub mod memory;
pub mod otel;
pub mod own_stack;
pub mod passing;
pub mod peek;
pub mod perf;
mod prefetch;
pub mod process;
pub mod readable;
pub mod receive;
pub mod rendezvous;
pub mod resident;
mod ring;
pub mod rseq;
pub mod signals;
mod sigtrap;
pub mod stack;
pub mod sync;
pub mod thread;
mod trap_types;
pub mod underway;
pub mod zeroed;

pub use capability::{Capability, State};
pub use likeness::likeness;
pub use prefetch::{prefetch, prefetch_for_write};
pub use rendezvous::records;
pub use rendezvous::trap;

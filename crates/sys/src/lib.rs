//! What every dormouse mechanism shares, and what neither std nor rustix has.
//!
//! - [`thread`]: the per-thread block: identity that is never reused, the current task, exit and fork hooks;
//! - [`barrier`]: a memory barrier that costs one side nothing;
//! - [`fork`]: a number that is another one in every fork child;
//! - [`perf`]: events of the kernel: `perf_event_open`, its descriptors, and the page beside an event;
//! - [`ring`]: a byte ring that a thread and its signal handlers write without ever blocking;
//! - [`rseq`]: the restartable-sequence area, used as a flag that the kernel clears when a thread is
//!   descheduled;
//! - [`signals`]: keeping the host's signals off threads of ours;
//! - [`loader`]: the loaded objects, and keeping one of them;
//! - [`lock`]: a lock of fixed layout that knows its owner;
//! - [`rendezvous`]: several copies of dormouse in one process, and what they share;
//! - [`trap`]: who resumes a thread that ran into a breakpoint instruction of ours;
//! - [`masks`]: which threads block a signal;
//! - [`Capability`]: one line of the report on what works here.
//!
//! # Things it does not do
//!
//! No policy: which tier a clock uses or who may drain a ring is decided above. No second copy in one
//! binary: `links = "dormouse"` makes cargo refuse it. (Binaries that bring a copy each meet in [`rendezvous`].)

#![deny(unsafe_code)]

pub mod barrier;
mod capability;
pub mod fork;
pub mod loader;
pub mod lock;
pub mod masks;
pub mod perf;
pub mod rendezvous;
pub mod ring;
pub mod rseq;
pub mod signals;
pub mod thread;
#[cfg(target_arch = "x86_64")]
pub mod trap;

pub use capability::{Capability, State};

//! Page faults: each Nth of a thread is a trap of the thread itself.
//!
//! The kernel's event `page-faults`, opened for each thread, ends in a SIGTRAP of the thread at
//! each Nth fault ([`Attr::trapping`](dormouse_sys::perf::Attr::trapping)), where it faulted, so
//! that stack and group are its own. The signal has the house's handler, as watches do. (A signal
//! by the descriptor, `F_SETSIG`, becomes a SIGIO where the user has too many signals queued, and
//! that ends a process which does not expect it.)
//!
//! Each line relies on those above it alone.
//!
//! | module | is |
//! |---|---|
//! | `handler` | one sample, in the handler of SIGTRAP |
//! | `event` | the event of a thread, and the way of its signal |
//! | `sampler` | profiles that are being taken |

mod event;
mod handler;
mod sampler;

pub(super) use sampler::Sampler;

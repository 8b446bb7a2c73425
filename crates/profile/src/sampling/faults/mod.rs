//! Page faults: every Nth of a thread traps the thread itself.
//!
//! The kernel's event `page-faults`, opened for each thread, ends in a SIGTRAP of the thread at
//! each Nth fault ([`Attr::trapping`](dormouse_sys::perf::Attr::trapping)), where it faulted, so
//! that stack and group are its own. The signal has the shared handler, as for watches. (A signal
//! by the descriptor, `F_SETSIG`, becomes a SIGIO where the user has too many signals queued, and
//! that ends a process which does not expect it.)
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | `copies` | stacks that a handler had no room to walk |
//! | `handler` | one sample, in the handler of SIGTRAP |
//! | `event` | the event of a thread, and the way of its signal |
//! | `sampler` | profiles that are being taken |

mod copies;
mod event;
mod handler;
mod sampler;

pub(super) use sampler::Sampler;

//! Events of the kernel: `perf_event_open`, from a typed request to a count or to records.
//!
//! An [`Attr`] says what to count, a [`Subject`] for whom. An [`Event`] counts; a [`Buffer`] also records each
//! time that it happens, with thread and address. Raw numbers are made from types that cannot be confused, so
//! that most of what the kernel answers with a bare `EINVAL` does not compile; the rest of its refusals become
//! an [`Error`] that names what was asked for and the setting to change.
//!
//! # Things it does not do
//!
//! No groups of events, no events of probes and tracepoints.

mod attr;
mod buffer;
mod counted;
mod error;
mod event;
mod page;
mod record;
mod user;

pub use attr::Attr;
pub use buffer::{Buffer, Sampling};
pub use counted::{Access, Breakpoint, Counted, WatchLen};
pub use error::{Error, is_filtered};
pub use event::{Event, Reading, Subject, open_here};
pub use page::Page;
pub use record::{Record, What};
pub use user::{Held, Processor, ThisProcessor, UserPage};

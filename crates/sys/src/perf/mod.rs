//! Events of the kernel: `perf_event_open`, from a typed request to a count or to records.
//!
//! An [`Attr`] names the event, a [`Subject`] the thread or processor. An [`OpenEvent`] counts; a
//! [`Buffer`] also records each occurrence, with thread and address. Raw numbers are made from
//! types that cannot be confused, so that most requests to which the kernel would return a bare
//! `EINVAL` do not compile. Its other errors become an [`Error`] that names the request and the
//! setting to change.
//!
//! # Things it does not do
//!
//! Not supported: groups of events, and events of probes and tracepoints.

mod attr;
pub mod bare;
mod buffer;
mod cpus;
mod error;
mod event;
mod kernel_event;
mod page;
mod record;
mod refusal;
mod subject;
mod user;

pub use attr::{Attr, Sampling};
pub use buffer::Buffer;
pub use cpus::online_cpus;
pub use error::Error;
pub use event::{OpenEvent, Reading, keeps_apart, open_here, traps_refused};
pub use kernel_event::{Access, Breakpoint, KernelEvent, WatchLen};
pub use page::Page;
pub use record::{PerfRecord, UserStack, What};
pub use refusal::is_filtered;
pub use subject::Subject;
pub use user::{EventCount, Processor, ThisProcessor, UserPage};

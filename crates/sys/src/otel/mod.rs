//! OpenTelemetry's standards for readers outside of the process: the context of each thread, in a
//! thread-local that a profiler finds by its name, and the context of the process, in a mapping
//! that it finds by its name.
//!
//! | file | standard |
//! |---|---|
//! | `thread` | OTEP 4947: the bytes that a thread's pointer leads to |
//! | `slot` | OTEP 4947: the pointer, `otel_thread_ctx_v1` |
//! | `process` | OTEP 4719: the mapping `OTEL_CTX` |
//! | `pairs` | the resource SDK: lists in variables |
//!
//! Nothing is written here before it is requested, and nothing of another library's is changed.

mod pairs;
mod process;
mod slot;
mod thread;

pub use pairs::pairs;
pub use process::{ContextMapping, MappingError, published_by_others};
pub use slot::{SYMBOL, Slot, Visibility, visibility};
pub use thread::{MAX_VALUE, ThreadContext};

//! Page faults of a program: recorded by the kernel, kept in a file, replayed by the bench.
//!
//! Each line relies on those above it alone.
//!
//! | module | is |
//! |---|---|
//! | `trace` | the file: operations, written and read |
//! | `feed` | the records of the kernel, in the order of time |
//! | `story` | from records to operations |
//! | `record` | a program that runs while its faults are recorded |

mod feed;
mod record;
mod story;
mod trace;

pub use record::{RecordError, Recorded, record};
pub use story::Counts;
pub use trace::{FaultOp, FaultTraceError, FaultWriteError, FaultWriter, MOST, is_trace, read};

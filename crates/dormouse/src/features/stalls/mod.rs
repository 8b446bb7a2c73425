//! Stalls of polls: a look at a thread finds the call or state that it is in.

mod look;

pub use look::ThreadIn;
pub(crate) use look::{ThreadLook, ThreadLooks};

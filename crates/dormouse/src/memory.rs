//! How much memory the steps of an answer take. The thread that answers drops the client if it is
//! not there.

pub(crate) use dormouse_sys::memory::{Step, is_there};

/// For a word or two.
pub(crate) const SOME: usize = 64 * 1024;

/// For a request, beside what it takes for each key, group or thread.
pub(crate) const MUCH: usize = 512 * 1024;

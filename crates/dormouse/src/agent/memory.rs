//! Whether there is memory for the next step.
//!
//! An allocation that fails in the midst of a request ends the process, and the request is not
//! worth that. So before a step the agent asks for as much as the step may take, gives it back, and
//! drops the client if there is none. (A host that takes the last of it in between meets the same
//! end by its own next allocation.)

/// For a word or two.
pub(super) const SOME: usize = 64 * 1024;

/// For a request, beside what it takes for each key, group or thread.
pub(super) const MUCH: usize = 512 * 1024;

/// Whether so many bytes are there.
pub(super) fn is_there(bytes: usize) -> bool {
    let mut asked = Vec::<u8>::new();
    let is_there = asked.try_reserve_exact(bytes).is_ok();
    // Seen from outside, so that it is really asked for.
    std::hint::black_box(&mut asked);
    is_there
}

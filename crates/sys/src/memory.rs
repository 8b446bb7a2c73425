//! Whether there is memory for the next step of a thread of dormouse.
//!
//! An allocation that fails in the midst of a step ends the process, and the step is not worth
//! that. So before a step the thread asks for as much as it may take, gives it back, and leaves the
//! step if there is none. (A host that takes the last of it in between meets the same end by its
//! own next allocation.)

/// Whether so many bytes are there.
pub fn is_there(bytes: usize) -> bool {
    let mut asked = Vec::<u8>::new();
    let is_there = asked.try_reserve_exact(bytes).is_ok();
    // Seen from outside, so that it is really asked for.
    std::hint::black_box(&mut asked);
    is_there
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_is_there_within_reason() {
        assert!(super::is_there(4096));
        assert!(!super::is_there(usize::MAX / 4));
    }
}

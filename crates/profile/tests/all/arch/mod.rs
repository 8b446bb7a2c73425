//! Everything that differs between processors, for tests of samples: functions whose frames do not
//! depend on how the test was compiled, and registers that the kernel shows.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;

pub(crate) use processor::{STRANGER, answer_call, trap};

/// The functions that `copies_without_room_are_counted` interrupts.
pub(crate) const STRANGERS: usize = 4_000;

unsafe extern "C" {
    /// Calls `hog_leaf`.
    pub(crate) fn hog_caller(rounds: u64);
    pub(crate) fn hog_caller_end();
    /// Counts down.
    pub(crate) fn hog_leaf(rounds: u64);
    pub(crate) fn hog_leaf_end();
    /// Counts down with a stack pointer and a frame pointer of the caller's choice.
    pub(crate) fn hog_on(rounds: u64, stack: usize, frame: usize);
    pub(crate) fn hog_on_end();

    /// Calls `library_caller`, with another stack if there is one; that calls the function with
    /// four arguments twenty thousand times. Both keep frame pointers.
    pub(crate) fn library_outer(function: *const (), arguments: &[usize; 4], stack: usize);
    pub(crate) fn library_outer_end();
    pub(crate) fn library_caller_end();

    /// The outermost of twelve functions, `bare_11` to `bare_00`, which keep no frame pointer, but
    /// use its register for something else. Each calls the next one; the innermost counts down.
    pub(crate) fn bare_11(rounds: u64);

    /// `rt_tgsigqueueinfo`, many times: each is another function, and the signal interrupts it.
    pub(crate) static strangers: [[u8; STRANGER]; STRANGERS];

    /// Calls itself this many times, and then counts down.
    pub(crate) fn deep(calls: usize, rounds: u64);

    /// Counts down, below 48 KiB of stack that it does not use. It keeps no frame pointer.
    pub(crate) fn sparse(rounds: u64);
}

/// Each function of the chain, with the one that it calls and the bytes of its locals.
macro_rules! chain {
    ($chain:ident) => {
        $chain!(
            ("bare_11", "bare_10", 16),
            ("bare_10", "bare_09", 32),
            ("bare_09", "bare_08", 48),
            ("bare_08", "bare_07", 16),
            ("bare_07", "bare_06", 64),
            ("bare_06", "bare_05", 16),
            ("bare_05", "bare_04", 128),
            ("bare_04", "bare_03", 16),
            ("bare_03", "bare_02", 4096),
            ("bare_02", "bare_01", 16),
            ("bare_01", "bare_00", 32)
        );
    };
}
use chain;

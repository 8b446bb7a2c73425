//! The stack of one thread, as data.

use std::fmt;

/// The stack of a thread, a moment ago.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStack {
    /// The address of the next instruction, then for each caller one less than the return address;
    /// the innermost first.
    pub frames: Vec<u64>,
    /// The way by which the callers were found.
    pub way: StackWay,
}

/// A way to find the callers on a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StackWay {
    /// By the tables that compilers write for exceptions.
    Tables,
    /// By the frame pointer of the thread, which ran.
    FramePointers,
    /// The thread slept in the kernel, which does not tell its frame pointer: the links between
    /// frames were searched on the stack. The addresses before the first link may be of calls that
    /// are over.
    Search,
}

impl StackWay {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tables => "tables",
            Self::FramePointers => "frame-pointers",
            Self::Search => "search",
        }
    }
}

/// The reason why a thread's stack is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoStack {
    /// The thread has ended.
    Ended,
    /// It ran, and blocks the signal by which it would be asked.
    Blocked,
    /// It was to run, and did not answer in time: it got no processor, was busy in the kernel (with
    /// a large write, or memory that it gave back), or went to and fro between running and
    /// sleeping.
    Silent,
    /// Another thread is being asked.
    Busy,
    /// The kernel refuses what it takes, as the text says.
    Refused(String),
}

impl fmt::Display for NoStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => "the thread has ended",
            Self::Blocked => "the thread runs, and blocks the signal by which it would be asked",
            Self::Silent => "the thread did not answer in time: no processor for it, or busy in the kernel",
            Self::Busy => "another thread was being asked for its stack",
            Self::Refused(why) => why,
        })
    }
}

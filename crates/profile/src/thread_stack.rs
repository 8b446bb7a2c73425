//! The stack of one thread, as data.

use std::fmt;

/// The stack of a thread a moment ago.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStack {
    /// The address of the next instruction, then for each caller the return address minus one; the
    /// innermost first. If they do not lead to the first function of the thread, the last one
    /// stands for those that are missing, and says why ([`StackEnd::at`](crate::StackEnd::at)).
    pub frames: Vec<u64>,
    /// How the callers were found.
    pub way: StackWay,
}

/// How the callers on a stack were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StackWay {
    /// By the unwind tables that compilers write for exceptions.
    Tables,
    /// By the frame pointer of the thread, which was running.
    FramePointers,
    /// The thread slept in the kernel, which does not report its frame pointer: the links between
    /// frames were searched on the stack. The addresses before the first link may belong to calls
    /// that have returned.
    Search,
}

impl StackWay {
    /// The name of this way, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tables => "tables",
            Self::FramePointers => "frame-pointers",
            Self::Search => "search",
        }
    }
}

/// Why a thread's stack is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoStack {
    /// The thread has ended.
    Ended,
    /// It was running, and was not to be asked.
    Runs,
    /// It was running, and blocks the signal that would read its stack.
    Blocked,
    /// It was running or runnable, and did not answer in time: it got no processor, was busy in the
    /// kernel (with a large write, or freeing memory), or changed between running and sleeping.
    Silent,
    /// Another thread's stack is being read.
    Busy,
    /// The kernel refuses a call that is needed; the text has the reason.
    Refused(String),
}

impl fmt::Display for NoStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => "the thread has ended",
            Self::Runs => "the thread runs",
            Self::Blocked => "the thread runs, and blocks the signal by which it would be asked",
            Self::Silent => "the thread did not answer in time: no processor for it, or busy in the kernel",
            Self::Busy => "another thread was being asked for its stack",
            Self::Refused(why) => why,
        })
    }
}

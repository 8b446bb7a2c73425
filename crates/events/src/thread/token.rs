//! Identifies the topmost frame of the stack, and the frame that a guard belongs to.

/// How deep tasks can nest on one thread. A task that is entered deeper is charged to the task
/// around it.
pub const MAX_DEPTH: usize = 32;

/// How the end of a task treats the tasks that were entered inside it and are still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A scope: guards may be dropped in any order, and tasks that were entered inside go on.
    Scope,
    /// A poll: its end also ends all tasks that were entered inside, even if their guards are left.
    Poll,
    /// The destructor of a task, or other work that is none of its polls: ends as a poll does, and
    /// is not counted as an entry.
    Drop,
    /// A run that is entered by hand: ends as a poll does, and is counted as a scope.
    Run,
}

impl Kind {
    /// Whether its end ends all tasks inside, and it counts as an entry.
    #[inline]
    pub(super) fn is_stretch(self) -> bool {
        matches!(self, Self::Poll | Self::Run)
    }
}

/// A frame of a thread's stack, in one word, because each poll compares it. The lowest bits are
/// the depth of the frame, then comes its kind, then a number that no other frame of that depth has
/// had on the thread. At depth 0 the token is that of no frame, and remembers the number of the
/// last lowest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token(pub(super) u64);

const DEPTH_BITS: u32 = 6;
const KIND_BITS: u32 = 2;
const NUMBER: u64 = 1 << (DEPTH_BITS + KIND_BITS);

const _: () = assert!(MAX_DEPTH < (1 << DEPTH_BITS) - 1);

impl Token {
    /// Before the first frame.
    pub(super) const FIRST: Self = Self(0);
    /// The token of an inert guard: no frame is as deep.
    pub(super) const NONE: Self = Self((1 << DEPTH_BITS) - 1);

    pub(super) fn new(number: u64, depth: usize, kind: Kind) -> Self {
        Self(number.wrapping_mul(NUMBER) | (kind as u64) << DEPTH_BITS | depth as u64)
    }

    /// The token at depth 0 of a stack that begins while other frames are set aside: the first of
    /// 2^32 lowest frames, whose numbers are of this `section` alone (up to 2^24 of them).
    pub(super) fn apart(section: u64) -> Self {
        Self((section << 32).wrapping_mul(NUMBER))
    }

    /// The next lowest frame, after this token at depth 0.
    #[inline]
    pub(super) fn next(self, kind: Kind) -> Self {
        Self(self.0.wrapping_add(NUMBER | (kind as u64) << DEPTH_BITS | 1))
    }

    /// The token at depth 0 that remains when this lowest frame is gone.
    #[inline]
    pub(super) fn gone(self) -> Self {
        Self(self.0 & !(NUMBER - 1))
    }

    /// How many frames there are as long as this one is the topmost.
    #[inline]
    pub(super) fn depth(self) -> usize {
        self.0 as usize & ((1 << DEPTH_BITS) - 1)
    }

    pub(super) fn is_scope(self) -> bool {
        self.kind() == Kind::Scope as u64
    }

    /// Whether the frame is that of a poll, or of a task's destructor, which runs in one's stead.
    pub(super) fn is_poll(self) -> bool {
        [Kind::Poll as u64, Kind::Drop as u64].contains(&self.kind())
    }

    #[inline]
    fn kind(self) -> u64 {
        self.0 >> DEPTH_BITS & ((1 << KIND_BITS) - 1)
    }
}

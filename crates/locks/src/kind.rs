//! The kinds of locks, as far as dormouse tells them apart.

/// How a lock is held or waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum LockKind {
    /// A mutex.
    #[default]
    Mutex = 0,
    /// A reader of a reader-writer lock.
    Read = 1,
    /// Its writer.
    Write = 2,
    /// A permit of a semaphore.
    Permit = 3,
    /// The work of a `Once`.
    Once = 4,
    /// A mutex that tasks await.
    AsyncMutex = 5,
    /// A reader that awaits.
    AsyncRead = 6,
    /// A writer that awaits.
    AsyncWrite = 7,
    /// A permit that is awaited.
    AsyncPermit = 8,
}

/// The type of a lock, with its name.
#[derive(Debug)]
pub(crate) struct LockType {
    pub(crate) kind: LockKind,
    pub(crate) name: LockName,
}

/// The name of a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LockName {
    /// The name of its value's type; empty if it is not known.
    Type(fn() -> &'static str),
    /// A word of the service's own.
    Word(&'static str),
}

impl LockName {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Type(name) => name(),
            Self::Word(word) => word,
        }
    }
}

impl LockType {
    /// The type of locks whose values are not known.
    #[inline]
    pub(crate) fn unnamed(kind: LockKind) -> &'static Self {
        static UNNAMED: [LockType; LockKind::ALL.len()] = {
            const NAME: LockName = LockName::Word("");
            let mut all = [const { LockType { kind: LockKind::Mutex, name: NAME } }; LockKind::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at].kind = LockKind::ALL[at];
                at += 1;
            }
            all
        };
        &UNNAMED[kind as usize]
    }
}

impl LockKind {
    const ALL: [Self; 9] = [
        Self::Mutex,
        Self::Read,
        Self::Write,
        Self::Permit,
        Self::Once,
        Self::AsyncMutex,
        Self::AsyncRead,
        Self::AsyncWrite,
        Self::AsyncPermit,
    ];

    pub(crate) fn of(code: u8) -> Self {
        Self::ALL.get(code as usize).copied().unwrap_or_default()
    }

    /// Whether there is at most one such holder.
    #[inline]
    pub fn is_alone(self) -> bool {
        matches!(self, Self::Mutex | Self::Write | Self::Once | Self::AsyncMutex | Self::AsyncWrite)
    }

    /// Whether its lock never has several holders.
    #[inline]
    pub(crate) fn is_of_one(self) -> bool {
        matches!(self, Self::Mutex | Self::Once | Self::AsyncMutex)
    }

    /// Whether its guard stays on the thread that took it.
    #[inline]
    pub(crate) fn is_of_thread(self) -> bool {
        !self.is_awaited() && !self.is_permit()
    }

    /// Whether tasks await it; else threads are blocked.
    pub fn is_awaited(self) -> bool {
        self as u8 >= Self::AsyncMutex as u8
    }

    /// Whether it is a permit, of which any may end a wait.
    pub fn is_permit(self) -> bool {
        matches!(self, Self::Permit | Self::AsyncPermit)
    }

    /// A word for it: `mutex`, `read`, `write`, `permit`, `once`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mutex | Self::AsyncMutex => "mutex",
            Self::Read | Self::AsyncRead => "read",
            Self::Write | Self::AsyncWrite => "write",
            Self::Permit | Self::AsyncPermit => "permit",
            Self::Once => "once",
        }
    }
}

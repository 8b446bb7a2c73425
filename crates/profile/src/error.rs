//! Why a profile cannot be taken or read.

/// Why a profile cannot be taken or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This system or this process has no way to take it.
    #[error("{0}")]
    Unavailable(String),
    /// A file that is not a profile, or one of something else.
    #[error("{0}")]
    Unreadable(String),
}

//! Why a profile cannot be taken or read.

/// Why a profile cannot be taken or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This system or this process offers no way to take it.
    #[error("{0}")]
    Unavailable(String),
    /// This user may not take it.
    #[error("{0}")]
    Denied(String),
    /// The file is not a profile, or one of an unknown kind.
    #[error("{0}")]
    Unreadable(String),
}

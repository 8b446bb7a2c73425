//! Structures that threads and signal handlers share without a lock, and the macros with which loom
//! checks them.
//!
//! | module | is |
//! |---|---|
//! | `seam` | [`atomics!`](crate::atomics), [`shared!`](crate::shared), and others for loom |
//! | `answer` | [`answer()`]: one answer, from a thread to another that waits for it |
//! | `once` | [`OnceBox`], [`OnceRef`]: values that are made once |
//! | `sequence` | [`Sequence`]: several words that readers see whole |
//! | `queue` | [`Queue`]: records from handlers to a reader |

mod answer;
mod once;
mod queue;
mod seam;
mod sequence;

pub use answer::{Answerer, Asker, NoAnswer, answer};
pub use once::{OnceBox, OnceRef};
pub use queue::Queue;
pub use sequence::Sequence;

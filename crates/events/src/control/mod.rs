//! Beginning and ending to count, while threads run: the one layer with a lock, which no thread of
//! the host waits for while it serves.

mod counting;
mod flush;
mod publishing;
mod wanted;

pub use self::counting::{Counting, Mode};
pub use self::publishing::ContextPublishing;
pub(crate) use self::wanted::{EventTime, times};

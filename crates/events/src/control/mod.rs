//! Beginning and ending to count while threads run. This is the only layer with a lock; no host
//! thread waits for that lock while it serves requests.

mod counting;
mod flush;
mod publishing;
mod wanted;

pub use self::counting::{Counting, Mode, suspend};
pub use self::publishing::ContextPublishing;
pub(crate) use self::wanted::{EventTime, times};

//! The ledgers of contexts: the charged counts, in shards that only grow.

mod context;
mod table;

pub use self::context::Context;
pub(crate) use self::context::{ENTRIES, NEAR, SCOPES};
pub(crate) use self::table::{context, count, set_everywhere};

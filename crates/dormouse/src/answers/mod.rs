//! The answers of the service about itself, as the protocol has them: the agent sends them to
//! clients, and the lookout writes them into files. A command that looks at a process without
//! dormouse makes some of them itself.

pub(crate) mod counting;
mod history;
pub(crate) mod host;
pub(crate) mod places;
pub(crate) mod rows;
pub(crate) mod tasks;
pub(crate) mod waiting;
pub(crate) mod watches;

pub use counting::countable_events;
pub use watches::{watch_row, watch_spec};

//! The answers of the service about itself, as the protocol has them: the agent sends them to
//! clients, and the lookout writes them into files.

pub(crate) mod counting;
mod history;
pub(crate) mod host;
pub(crate) mod places;
pub(crate) mod tasks;
pub(crate) mod waiting;

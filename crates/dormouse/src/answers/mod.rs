//! What the service tells of itself, as the protocol has it: the agent sends it to clients, and the
//! lookout writes it into files.

pub(crate) mod counting;
pub(crate) mod host;
pub(crate) mod places;
pub(crate) mod tasks;
pub(crate) mod waiting;

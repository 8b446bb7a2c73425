//! Samples for users and programs: rows of figures, tables, JSON.

pub(crate) mod column;
pub(crate) mod frame;
pub(crate) mod leases;
pub(crate) mod processes;
pub(crate) mod profile;
pub(crate) mod row;
pub(crate) mod table;
pub(crate) mod threads;
pub(crate) mod view;
pub(crate) mod watch;

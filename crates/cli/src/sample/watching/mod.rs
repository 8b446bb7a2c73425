//! A watch of a process's memory: what to watch, the agent or kernel that watches, and the names of
//! the code that hit it.

pub(crate) mod look;
mod outside;
pub(crate) mod places;
pub(crate) mod source;
pub(crate) mod wanted;

//! A watch of a process's memory: what to watch, who watches it, and the names of those who hit it.

pub(crate) mod look;
mod outside;
pub(crate) mod places;
pub(crate) mod source;
pub(crate) mod wanted;

//! The tea house from outside: over sockets, and as a program. The same with and without dormouse.

pub(crate) mod house;
mod load;
mod program;
mod service;

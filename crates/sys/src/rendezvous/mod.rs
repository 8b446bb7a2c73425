//! Several copies of dormouse in one process, and the table that they share.
//!
//! A plugin that was linked with a copy of its own, a C library beside a Rust program, two plugins
//! in a host without dormouse, two versions in one program: each copy has statics of its own, but
//! there is one text, one SIGTRAP, one current task. So one copy *leads*, and the others use its
//! [`Table`].
//!
//! Each copy carries an ELF note (owner `dormouse`, type 1, section `.note.dormouse`): the version
//! of the shared layout ([`ABI`]), and the distance from that field to a word with the address of
//! the table. The first note in the loader's list leads: the executable's, else that of the first
//! object loaded. The list only grows at its end, so copies that read it at different times get the
//! same answer, and a leader that others follow is pinned. A copy of another version gets an error
//! that names it ([`Conflict`]), and uses nothing that it would have to share.
//!
//! | one for the process | a copy's own |
//! |---|---|
//! | patch lock, objects with sites, SIGTRAP handler | the index of keys that it builds of them |
//! | rings and their reader, numbers of probes, the task in a record | thread blocks, clocks, groups and their tasks |
//! | agent | |
//!
//! # Invariants
//!
//! 1. A copy that uses another copy's table has pinned that copy's object. A copy that leaves
//!    something behind (a signal handler, a thread, a thread's destructor) has pinned its own
//!    ([`crate::loader::pin_self`]).
//!
//! Each file depends only on those before it: `table`, `note`, `leader`; then `records` and `trap`,
//! which use the leader.

mod leader;
#[cfg(not(miri))]
mod note;
pub mod records;
mod table;
pub mod trap;

pub use leader::{forks, next_probe, read_rings, stuck, table};
pub use table::{ABI, AgentPlace, Conflict, Table};

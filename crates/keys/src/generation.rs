//! Leases are a process's own: a forked child has none.
//!
//! Nothing can be freed in a forked child, so leases are not given back there, they are made void: leases, counts
//! and the table of holds carry the *generation* in which they were made, and a fork begins another. All copies of
//! dormouse in a process count forks together, since they read one another's counts.

/// The generation of this process.
pub(crate) fn present() -> u32 {
    dormouse_sys::rendezvous::forks()
}

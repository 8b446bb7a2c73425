//! The patch lock, as an argument: a function that changes text, the lists of objects or the state
//! of keys takes a [`PatchLock`], which only a holder of the lock can make.
//!
//! # Locking
//!
//! 1. The loader's own lock comes first: constructors and destructors run under it, and take the
//!    patch lock there. So under the patch lock nothing may wait for the loader: no
//!    `dl_iterate_phdr`, no `dlopen`, no first use of a thread-local that has a destructor or that
//!    may lie in an object that was opened later (hence no `HashMap` with the standard seeds, which
//!    are such a thread-local).
//! 2. All copies of dormouse in the process share one patch lock. It records its owner: a signal
//!    handler that interrupted its thread's batch is refused and does not wait.
//! 3. Under it come the registry's lock ([`crate::registry`]), then that of the holds
//!    ([`crate::hold`]). The timer's thread takes the latter without the others.
//! 4. Under it no foreign code is called, except the callback of a listing.

use std::marker::PhantomData;

use dormouse_sys::process::lock::Guard;
use dormouse_sys::rendezvous::Table;

/// Proof that the patch lock of this table is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PatchLock<'a> {
    /// The words that all copies of dormouse in the process share.
    pub(crate) table: &'static Table,
    held: PhantomData<&'a Guard<'static>>,
}

impl<'a> PatchLock<'a> {
    pub(crate) fn new(table: &'static Table, _: &'a Guard<'static>) -> Self {
        Self { table, held: PhantomData }
    }
}

impl PatchLock<'static> {
    /// The lock that a fork of the calling thread has, while its handlers run. None in a fork by a
    /// signal handler over a batch of its own thread, where the lists may be half changed.
    pub(crate) fn of_fork(table: &'static Table) -> Option<Self> {
        table.patch.is_forking().then_some(Self { table, held: PhantomData })
    }

    /// A model's holds stand for the patch lock.
    #[cfg(all(test, loom))]
    pub(crate) fn of_model() -> Self {
        let table = dormouse_sys::rendezvous::table().expect("a copy alone leads");
        Self { table, held: PhantomData }
    }
}

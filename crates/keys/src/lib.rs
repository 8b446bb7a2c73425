//! Static keys: booleans that code branches on, whose branches are rewritten when the boolean changes.
//!
//! ```
//! use dormouse_keys::{static_key, unlikely};
//!
//! static_key! {
//!     /// Log every query.
//!     pub static TRACE_QUERIES: "db.query" = false;
//! }
//!
//! fn query(sql: &str) {
//!     if unlikely!(TRACE_QUERIES) {
//!         println!("{sql}");
//!     }
//! }
//!
//! # fn main() -> Result<(), dormouse_keys::Error> {
//! query("not printed");
//! let lease = TRACE_QUERIES.acquire()?;
//! query("printed");
//! drop(lease);
//! # Ok(())
//! # }
//! ```
//!
//! # Cost
//!
//! Asleep, a *site* ([`likely!`], [`unlikely!`]) is one 5-byte instruction without a load, a compare or a
//! conditional branch, and the code behind it is out of line. Changing a key is an absolute slow path: a
//! system call per run of code pages, an interrupt to every processor that runs this process.
//! Change many keys in one [`Batch`]: the price is nearly the same as for one.
//!
//! # How
//!
//! `instruction = enabled ^ branch`, where `branch` is 0 for `unlikely!` and 1 for `likely!`:
//!
//! | key | `unlikely!` | `likely!` |
//! |---|---|---|
//! | off | `test eax, imm32`: falls through, `false` | `jmp`: out of line, `false` |
//! | on | `jmp`: out of line, `true` | `test eax, imm32`: falls through, `true` |
//!
//! The two instructions have the same length and the same four operand bytes, so a site changes by a store of
//! one byte, and a processor sees the one or the other ([`Batch`] has the protocol).
//!
//! # Leases
//!
//! A key is on while its *baseline* is on ([`Key::enable`]) or somebody holds a lease on it: in hand ([`Lease`]), for a
//! time ([`Key::enable_for`], [`Lease::keep_for`]), or for a *dwell time* after it was given back ([`Lease::dwell`],
//! [`Batch::dwell`]), so that who toggles a key as fast as they can does not interrupt every processor each time.
//! [`holds`] lists what ends by time. A forked child has no leases.
//!
//! # Objects that are opened and closed
//!
//! Sites in an object that `dlopen` loads follow their keys before code of the object runs that is not itself
//! part of loading, and leave with `dlclose`. An object does not leave any more once a key of it was handed out
//! by name ([`all`], [`Selector::keys`]) or leased: a `&'static Key` must last. [`list`] is for who only
//! looks. A plugin that brings a copy of this crate shares the keys of the process: see
//! [`dormouse_sys::rendezvous`].
//!
//! # Ordering
//!
//! A site orders nothing. Data that the awake branch reads must be published by its own means.
//!
//! # Elsewhere
//!
//! On other architectures, under Miri, and with `--cfg dormouse_fallback`, a site is a relaxed load and a
//! branch, with the same API ([`PATCHING`] tells).

#![deny(unsafe_code)]

mod abi;
mod arch;
#[cfg(dormouse_patching)]
mod barrier;
mod batch;
mod capability;
mod clock;
mod error;
#[cfg(not(all(test, loom)))]
mod fork;
mod generation;
mod hold;
mod key;
mod lease;
#[cfg(dormouse_patching)]
mod object;
mod plan;
mod prepare;
mod primitive;
mod protocol;
mod registry;
mod reserved;
#[cfg(feature = "select")]
mod select;
#[cfg(dormouse_patching)]
mod text;
mod timer;

#[cfg(all(test, not(loom)))]
mod balance;
#[cfg(all(test, loom))]
mod interleavings;
#[cfg(all(test, not(loom)))]
#[path = "../tests/child/mod.rs"]
mod tests;

pub use abi::{Attachment, Text};
pub use arch::PATCHING;
pub use batch::{Batch, BatchReport};
pub use capability::capability;
pub use dormouse_sys::loader::PinError;
pub use dormouse_sys::masks::Blocking;
pub use dormouse_sys::rendezvous::Conflict;
pub use error::{Error, ReleaseError};
pub use hold::{Hold, Holder, LONGEST_HOLD};
pub use key::{Key, StaticKey};
pub use lease::Lease;
pub use prepare::prepare;
pub use protocol::Protocol;
pub use registry::{KeyUse, Listed, all, list, site_count};
pub use reserved::text_reserved;
#[cfg(feature = "select")]
pub use select::{Selector, SelectorError, near};
pub use timer::holds;

/// What the macros expand to; not for use by hand.
#[doc(hidden)]
pub mod macros {
    pub use crate::key::flags;
    #[cfg(dormouse_patching)]
    pub use crate::object::{Object, register, unregister};
    #[cfg(not(dormouse_patching))]
    pub use crate::registry::PortableSite;
    #[cfg(not(dormouse_patching))]
    pub use inventory;
}

/// What the benchmarks look through; no part of the interface.
#[cfg(dormouse_patching)]
#[doc(hidden)]
pub mod bench {
    pub use crate::text::{look_up, midway};
}

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

mod arch;
mod barrier;
mod batch;
mod capability;
mod error;
mod key;
mod lease;
#[cfg(dormouse_patching)]
mod object;
mod protocol;
mod registry;
#[cfg(feature = "select")]
mod select;
#[cfg(dormouse_patching)]
mod text;

pub use arch::PATCHING;
pub use barrier::register as prepare;
pub use batch::{Batch, BatchReport};
pub use capability::capability;
pub use dormouse_sys::loader::PinError;
pub use dormouse_sys::rendezvous::Conflict;
pub use dormouse_sys::trap::Blocking;
pub use error::{Error, ReleaseError};
pub use key::{Key, StaticKey};
pub use lease::Lease;
pub use protocol::Protocol;
pub use registry::{KeyUse, Listed, all, list, site_count};
#[cfg(feature = "select")]
pub use select::{Selector, SelectorError, near};

/// What the macros expand to; not for use by hand.
#[doc(hidden)]
pub mod macros {
    pub use crate::key::flags;
    #[cfg(dormouse_patching)]
    pub use crate::object::{register, unregister};
    #[cfg(not(dormouse_patching))]
    pub use crate::registry::PortableSite;
    #[cfg(not(dormouse_patching))]
    pub use inventory;
}

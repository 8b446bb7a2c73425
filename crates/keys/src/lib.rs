//! Static keys: booleans that code branches on, whose branches are rewritten when the boolean
//! changes.
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
//! Asleep, a *site* ([`likely!`], [`unlikely!`]) is one 5-byte instruction without a load, a
//! compare or a conditional branch, and the code behind it is out of line. Changing a key is slow:
//! two system calls for each run of code pages, and an interrupt to every processor that runs this
//! process. Change many keys in one [`Batch`], which costs nearly the same as one.
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
//! The two instructions have the same length and the same four operand bytes, so a site changes by
//! a store of one byte, and a processor sees the one or the other ([`Batch`] has the protocol).
//!
//! # Leases
//!
//! A key is on while its *baseline* is on ([`Key::enable`]) or a lease on it is held: in hand
//! ([`Lease`]), for a time ([`Key::enable_for`], [`Lease::keep_for`]), or for a *dwell time* after
//! it was given back ([`Lease::dwell`], [`Batch::dwell`]). The dwell time keeps a user who toggles
//! a key quickly from interrupting every processor each time. [`holds`] lists the leases that end
//! by time. A forked child has none.
//!
//! # Objects that are opened and closed
//!
//! When `dlopen` loads an object, its sites get the state of their keys before any code of the
//! object runs, except for code that is itself part of loading; `dlclose` removes them. An object
//! stays loaded for good once one of its keys was returned by name ([`all`], [`Selector::keys`]) or
//! leased, because a `&'static Key` must remain valid. [`list`] shows keys without that effect. A
//! plugin that contains a copy of this crate shares the keys of the process: see
//! [`dormouse_sys::rendezvous`].
//!
//! # Ordering
//!
//! A site imposes no memory ordering. Data that the awake branch reads must be published by its own
//! means.
//!
//! # Elsewhere
//!
//! On processors other than x86-64 and arm64, under Miri, and with `--cfg dormouse_fallback`, a
//! site is a relaxed load and a branch with the same API; [`PATCHING`] is false then.
//!
//! # Layers
//!
//! Each module uses those before it:
//!
//! | layer | modules | |
//! |---|---|---|
//! | the data | `key`, `error`, `object` | keys; sites, and the entries by which objects name them |
//! | text | `text` | sites are checked and written, by flip; `text/int3` stands apart |
//! | registry | `registry`, `list` | objects come, leave, are pinned; the index of keys and their sites |
//! | plan | `hold`, `plan` | the states of keys after a batch, worked out, written, then visible |
//! | use | `timer`, `batch`, `lease`, `select` | the API |
//! | edge | `macros`, `prepare`, `capability` | sites; preparation and report |

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]

mod abi;
mod arch;
mod clock;
mod key;
mod patch_lock;
mod primitive;
mod protocol;
mod report;
mod room;

mod error;
#[cfg(dormouse_patching)]
mod object;

#[cfg(dormouse_patching)]
mod text;

mod list;
#[cfg_attr(all(test, loom), allow(dead_code, unused_imports, reason = "a model has none"))]
mod registry;

mod hold;
mod plan;

mod batch;
mod lease;
#[cfg(feature = "select")]
mod select;
mod timer;

#[cfg(all(feature = "bench", dormouse_patching, target_arch = "x86_64"))]
#[doc(hidden)]
pub mod bench;
mod capability;
#[doc(hidden)]
pub mod macros;
mod prepare;

#[cfg(all(test, not(loom)))]
mod balance;
#[cfg(all(test, loom))]
mod interleavings;

pub use abi::{Attachment, Text};
pub use arch::PATCHING;
pub use batch::Batch;
pub use capability::capability;
pub use dormouse_sys::loader::PinError;
pub use dormouse_sys::masks::Blocking;
pub use dormouse_sys::rendezvous::Conflict;
pub use error::Error;
pub use hold::{Hold, Holder, LONGEST_HOLD};
pub use key::{Key, StaticKey};
pub use lease::{Lease, ReleaseError};
pub use list::{Listed, all, count, count_on, count_sites, list, try_all, try_list};
pub use prepare::prepare;
pub use protocol::Protocol;
#[cfg(feature = "counting")]
#[doc(hidden)]
pub use registry::patch_locks;
pub use registry::{KeyUse, Mismatches};
pub use report::BatchReport;
#[cfg(feature = "select")]
pub use select::{Selector, SelectorError, near, near_among};
pub use timer::{holds, start_timer};

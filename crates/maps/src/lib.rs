//! Range maps: which mapping contains an address? [`RangeMap`] answers without a lock, and with a
//! [`Cache`] mostly without a search. [`AddressSpace`] answers for the mappings of a process.
//!
//! ```
//! use dormouse_maps::{Cache, Overlap, RangeMap};
//!
//! static REGIONS: RangeMap<u32> = RangeMap::new();
//!
//! thread_local! {
//!     static CACHE: Cache<u32> = const { Cache::new() };
//! }
//!
//! REGIONS.update(|edit| {
//!     edit.insert(0x1000..0x5000, 1, Overlap::Reject)?;
//!     edit.insert(0xffff_0000..=u64::MAX, 2, Overlap::Reject)
//! })?;
//!
//! let mapping = CACHE.with(|cache| REGIONS.find_cached(cache, 0x1fff))?.unwrap();
//! assert_eq!((mapping.start, mapping.last, mapping.value), (0x1000, 0x4fff, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Cost
//!
//! A hit in the [`Cache`] reads one word of the map and two cache lines of the cache. A miss, and
//! [`RangeMap::find`], is one atomic exchange on a slot that other threads rarely touch, and a
//! search without branches. A change is slow: it copies the map. Make many changes in one
//! [`RangeMap::update`]; a thread that will itself look up what it maps uses
//! [`RangeMap::update_cached`].
//!
//! # How
//!
//! Readers search an immutable snapshot; a change makes a new one and publishes it. A replaced
//! snapshot is freed when no *reader slot* names it. A cache holds copies of answers under the
//! map's *generation*: a change after which an old answer could be wrong starts a new generation,
//! which makes the copies in every thread stale, however many there are. The map stores the
//! addresses of its last changes, so that a cache can go on using a stale copy that none of them
//! touched.
//!
//! With the feature `symbols`, the module of that name finds the functions, files and lines of
//! addresses, and the addresses of static variables.
//!
//! # Things it does not do
//!
//! Not supported: a range map does not merge neighbours whose values are equal, caches no absence,
//! and keeps no history.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]

mod arch;
mod cache;
mod changes;
mod edit;
mod entry;
mod error;
mod generation;
mod held;
mod kind;
mod map;
mod mapping;
mod parse;
mod primitive;
mod publish;
mod slots;
mod snapshot;
// Its locks are not loom's.
#[cfg(not(all(test, loom)))]
mod space;
#[cfg(all(feature = "symbols", not(all(test, loom))))]
pub mod symbols;

pub use cache::{Cache, CacheStats};
pub use edit::{Edit, Overlap};
pub use error::{EditError, NoSlot};
pub use held::Held;
pub use kind::{FileId, MappingKind, Perms};
pub use map::RangeMap;
pub use mapping::Mapping;
pub use parse::{MapsLine, ParseError, parse, read_maps};
#[cfg(not(all(test, loom)))]
pub use space::{AddressSpace, MappedObject, ObjectId, Region, SpaceError};

//! Range maps: which mapping does an address lie in? Answered without a lock, and mostly without a search. And what a
//! process has mapped: [`AddressSpace`].
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
//! A hit in the [`Cache`] reads one word of the map and two cache lines of the cache. A miss, and [`RangeMap::find`],
//! is one atomic exchange on a slot that other threads rarely touch, and a search without branches. A change is a slow
//! path: it copies the map. Make many changes in one [`RangeMap::update`], and let a thread that will use what it maps
//! itself say so ([`RangeMap::update_cached`]).
//!
//! # How
//!
//! Readers search an immutable snapshot; a change makes a new one and publishes it. A snapshot that was replaced is
//! freed when no *reader slot* names it. A cache holds copies of answers under the map's *generation*: a change after
//! which an old answer could be wrong takes a new generation, and with that every copy in every thread is stale,
//! whatever their number. The map remembers where its last changes were, so that a stale copy which none of them
//! touched is taken up again when it is asked for.
//!
//! With the feature `faults`, the module of that name reads and writes recorded page faults, which show what a cache of
//! look-ups is worth.
//!
//! # Things it does not do
//!
//! A range map does not merge neighbours whose values are equal, remembers no "nothing there", and keeps no history; an
//! address space does that.

#![deny(unsafe_code)]

mod cache;
mod changes;
mod edit;
mod entry;
mod error;
#[cfg(feature = "faults")]
pub mod faults;
mod generation;
mod map;
mod mapping;
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
#[cfg(not(all(test, loom)))]
pub use error::SpaceError;
pub use error::{EditError, NoSlot};
pub use map::RangeMap;
pub use mapping::Mapping;
#[cfg(not(all(test, loom)))]
pub use space::{
    AddressSpace, Basis, FileId, Found, Keep, Kind, Object, ObjectId, ParseError, Perms, Region,
};

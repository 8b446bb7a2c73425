//! Allocations: a sample by bytes, which the allocator tells of ([`dormouse_sys::heap`]).
//!
//! Each line relies on those above it alone.
//!
//! | module | is |
//! |---|---|
//! | `live` | the allocations of the sample that are still there |
//! | `listener` | one sample, on the thread that allocates |
//! | `sampler` | profiles that are being taken |

mod listener;
mod live;
mod sampler;

pub(super) use sampler::Sampler;

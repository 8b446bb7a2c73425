//! Allocations: a sample by bytes, which the allocator reports ([`dormouse_sys::heap`]).
//!
//! Each line depends only on those above it.
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

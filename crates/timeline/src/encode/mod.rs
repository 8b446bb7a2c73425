//! The formats for viewers.
//!
//! | format | is read by |
//! |---|---|
//! | [`firefox`] | the Firefox Profiler |
//! | [`perfetto()`] | Perfetto |

mod firefox;
mod perfetto;

pub use firefox::firefox;
pub use perfetto::perfetto;

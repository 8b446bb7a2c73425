//! The formats that tools read.
//!
//! | format | is read by |
//! |---|---|
//! | [`pprof()`] | `go tool pprof`, Parca, Pyroscope, Perfetto, speedscope |
#![cfg_attr(
    feature = "files",
    doc = "| [`folded`], [`folded_diff`] | flamegraph.pl, inferno, speedscope |
| [`firefox`] | the Firefox Profiler |
| [`html()`] | people, in a browser |
| [`pprof_counted`] | as `pprof`, for counts of stacks without addresses |"
)]

#[cfg(feature = "files")]
mod counted;
#[cfg(feature = "files")]
mod firefox;
#[cfg(feature = "files")]
mod folded;
#[cfg(feature = "files")]
mod html;
mod pprof;

#[cfg(feature = "files")]
pub use counted::{CountedStack, pprof_counted};
#[cfg(feature = "files")]
pub use firefox::{firefox, firefox_plain};
#[cfg(feature = "files")]
pub use folded::{folded, folded_diff};
#[cfg(feature = "files")]
pub use html::{FLAME_SCRIPTS, HtmlOptions, html, html_data};
pub use pprof::pprof;
#[cfg(feature = "files")]
pub use pprof::pprof_with_tasks;

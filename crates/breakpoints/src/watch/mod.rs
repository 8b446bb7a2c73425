//! Watchpoints inside a process: armed on every thread, reported by the thread that hits.

mod duty;
mod entry;
mod guard;
mod holders;
mod hook;
mod keeper;
mod known;
mod line;
mod losses;
mod plan;
pub(crate) mod rate;
mod report;
mod sched;
pub(crate) mod share;
mod sites;
mod spec;
pub(crate) mod split;
mod stack;
mod stream;
mod tally;
mod turns;

pub use dormouse_sys::perf::Access;
pub use entry::spent_ns;
pub use guard::{Watch, held, refusal, registers};
pub use hook::{on_hit, on_stray};
pub use report::{Coverage, WatchHit, WatchReport, WatchSite, WatchState};
pub use sched::{sched_in, sched_out, switches};
pub use spec::WatchSpec;
pub use stack::HitStackEnd;

//! Profiles over HTTP, at the same addresses as in Go's programs: any server can mount [`respond`],
//! a function from a path and a query to bytes.
//!
//! | path | is |
//! |---|---|
//! | `/debug/pprof/` | a page with links |
//! | `/debug/pprof/profile` | CPU time |
//! | `/debug/pprof/allocs` | allocations, if [`Alloc`](crate::Alloc) is the global allocator |
//! | `/debug/pprof/heap` | the same, and which of them are still there |
//! | `/debug/pprof/faults` | page faults |
//! | `/debug/pprof/wall` | wall time of tasks: running, runnable, awaiting |
//! | `/debug/pprof/symbol` | nothing, which `go tool pprof` asks for; by POST, too |
//!
//! | in the query | is |
//! |---|---|
//! | `seconds=30` | for how long, 300 at most |
//! | `hz=99` | samples a second of CPU time of each thread, 1000 at most |
//! | `bytes=524288` | bytes between two samples of allocations |
//! | `group=GET /*` | a list of globs: only these groups |
//! | `unwind=1` | changes nothing: callers in code without frame pointers are always found |
//! | `symbols=1` | names in the answer, found in this process (feature `symbols`) |
//!
//! Only the last component of the path counts, so a server may use another prefix. The answer is in
//! pprof's format: mappings with build ids, from which `go tool pprof`, Parca and others find
//! names, and labels `group` and `thread` at each sample.
//!
//! Several profiles run at once, each with its own rate and groups. At most eight do over HTTP; a
//! further request gets status 429.
//!
//! ```no_run
//! # async fn handle(uri: &str) -> (u16, Vec<(&'static str, &'static str)>, Vec<u8>) {
//! // In a handler of any framework. If the client hangs up, drop the future: the profile ends.
//! let answer = dormouse::profile::web::respond(uri).await;
//! (answer.status, answer.headers, answer.body)
//! # }
//! ```
//!
//! A caller who may fetch these addresses learns names of groups, threads and files, and makes the
//! process spend some of its time: mount them where only trusted clients can reach them.

mod answer;
mod page;
mod query;
mod respond;

pub use crate::web::{Responding, WebAnswer};
pub use respond::{respond, respond_blocking};

/// Names for the addresses of a profile of this process; none where its mappings cannot be read.
#[cfg(feature = "symbols")]
fn symbols(profile: &dormouse_profile::Profile) -> dormouse_profile::Symbols {
    let finder = dormouse_profile::NameFinder::own();
    finder.map(|mut finder| finder.symbols(profile)).unwrap_or_default()
}

/// Unreachable without the feature `symbols`: the query parser refuses `symbols=1`.
#[cfg(not(feature = "symbols"))]
fn symbols(_: &dormouse_profile::Profile) -> dormouse_profile::Symbols {
    dormouse_profile::Symbols::default()
}

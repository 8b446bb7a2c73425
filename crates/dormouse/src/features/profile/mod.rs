//! Profiles: which function uses the CPU time of a group, allocates, faults, or waits.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use dormouse::{ProfileRun, ProfileSpec};
//!
//! let run = ProfileRun::start(&ProfileSpec::cpu().hz(99).groups("GET /*"))?;
//! std::thread::sleep(Duration::from_secs(10));
//! let profile = run.read();
//! for group in &profile.groups {
//!     println!("{}: {:?} ns", group.name, group.total);
//! }
//! # Ok::<(), dormouse::ProfileError>(())
//! ```
//!
//! A profile has raw addresses; `go tool pprof`, the `dormouse` command and other readers that have
//! the files resolve them to names.
//!
//! # Totals are the account's
//!
//! `dormouse-profile` takes samples, and identifies groups only by their numbers. While a profile
//! runs, the sampled resource is counted for all groups, too, and each group's samples are scaled
//! to what the group really used. So the totals in a profile are those of
//! [`Group::read`](crate::Group::read), and only the distribution within a group is estimated. A
//! group that used something and got no sample has a row without a stack. Work in no group is what
//! the process used beside its groups.
//!
//! A [wall profile](ProfileSpec::wall) has all time of a group's tasks, including the time that
//! they wait, and where. It is counted, except for the part on a CPU, which is sampled.
//!
//! # Cost
//!
//! While there is no profile: nothing. A CPU profile interrupts each running thread
//! [`ProfileSpec::hz`] times a second of its CPU time, and counts task-clock at each switch between
//! groups.

mod account;
mod run;
mod scale;
mod spec;
pub(crate) mod verb;
mod wall;
pub mod web;

pub use dormouse_profile::{
    Column, Error, MappedRange, Moment, NO_GROUP, NoStack, Node, Profile, ProfileCoverage, ProfileGroup,
    ProfileKind, Sample, SourceFrame, StackWay, Symbols, Thread, ThreadStack, Values, WallState, encode,
};
pub use run::{ProfileError, ProfileRun};
pub use spec::ProfileSpec;

//! Profiles of CPU time, of this very process: each test in a child.
#![cfg(all(target_os = "linux", not(dormouse_fallback)))]

mod hogs;
mod host;
mod libraries;
mod limits;
mod samples;
mod small_stacks;
mod stacks;
mod unwound;

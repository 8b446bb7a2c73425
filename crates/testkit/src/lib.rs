//! Tools that the tests of several crates share: children, filters of system calls, skips, waits
//! and work.
//!
//! - [`in_child`] runs a test's body in a process that has no other test; [`fork`] runs a closure
//!   in a fork.
//! - [`Filter`] has the kernel refuse system calls, or kill the process for them.
//! - [`assert_committed`] compares a text with a file of the repository.
//! - [`isolate_modules`] gives each module of a test program a process of its own;
//!   [`run_programs`] does the same for tests without a harness.
//! - [`AlternateStack`] gives a thread's signal handlers a chosen room.
//! - [`LimitedGroup`] is a real CPU limit, by a control group.
//! - [`skip`] reports that a test cannot run on this machine.
//! - [`eventually`] waits for a condition, at most [`HANG`]; [`StopOnDrop`] ends the work of other
//!   threads.
//! - [`apart`] builds dormouse as a program of its own has it.
//! - [`c`] compiles C and C++ against the installed library.
//! - [`Browser`] shows a page, and reports what happens in it.
//! - `otel` reads what a process publishes for profilers, according to OpenTelemetry's standards.
//! - [`viewers`] are other projects' readers of our files.
//! - [`wire_text`] shows protocol buffers as text, for snapshots.
//! - [`short_or_long`], [`stress_time`], [`storm_time`] and [`stress_rounds`] say how much a test
//!   does, and [`long_only`] whether it runs at all.
//! - [`spin_for`] uses CPU time, and [`assert_about`] checks that it was charged.
//!
//! The crate is a dev-dependency only, and depends on no other crate of the project, so that each
//! of them may use it.

#![deny(unsafe_code)]

mod alternate_stack;
pub mod apart;
mod browser;
pub mod c;
mod child;
mod committed;
mod cpu_limit;
mod effort;
mod fork;
mod modules;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod otel;
mod seccomp;
mod skip;
pub mod viewers;
mod wait;
mod wire_text;
mod work;

pub use alternate_stack::AlternateStack;
pub use browser::Browser;
pub use child::{Child, Environment, in_child};
pub use committed::{assert_committed, pretty};
pub use cpu_limit::LimitedGroup;
pub use effort::{is_long, long_only, short_or_long, storm_time, stress_rounds, stress_time};
pub use fork::{fork, join};
pub use modules::{run_modules, run_programs};
pub use seccomp::{Answer, Filter};
pub use skip::skip;
pub use wait::{HANG, StopOnDrop, eventually};
pub use wire_text::wire_text;
pub use work::{assert_about, process_cpu_ns, spin_for, thread_cpu};

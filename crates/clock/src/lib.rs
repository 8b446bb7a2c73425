//! CPU time of threads and of groups of them without a system call.
//!
//! `CLOCK_THREAD_CPUTIME_ID` is a true system call on x86-64 Linux. This crate asks the kernel once, and from
//! then on adds scaled TSC ticks for as long as it can prove that the thread has not been descheduled since.
//! What proves it is the thread's [`Tier`]:
//!
//! | tier | proof | a read |
//! |---|---|---|
//! | [`Tier::Rseq`] | the kernel has not cleared `rseq_cs` | one `rdtsc` and a few loads |
//! | [`Tier::Syscall`] | none needed | one system call |
//!
//! The best tier that passes its self-test on this machine is taken; `DORMOUSE_CLOCK=rseq|syscall` overrides.
//!
//! # Accuracy
//!
//! Inside an epoch, which lasts until the thread is next descheduled and at most 2²⁷ ticks (about 60 ms at 2
//! GHz), steal and interrupt time that the kernel would leave out are counted. Every resync is bracketed by
//! two `rdtsc`, so its own error is about half of one system call. A thread never sees its clock step back.
//!
//! # More than one thread
//!
//! | call | behind by | a read |
//! |---|---|---|
//! | [`ThreadGroup::cpu_ns`] | about the tolerance; [`ThreadGroup::read`] bounds it | no system call but once a tolerance |
//! | [`process_cpu_ns`] | a tick for every sibling that runs | one system call |
//! | [`process_exact`] | nothing that was used before the call | one for each thread |
//!
//! # Async-signal-safety
//!
//! [`thread_cpu_ns`] may be called from signal handlers once it has been called outside of one.

#![deny(unsafe_code)]

mod arch;
mod error;
mod group;
mod kernel;
mod moment;
mod process;
mod record;
mod seat;
mod thread;
mod tier;
mod tsc;

pub use arch::rdtsc;
pub use error::Error;
pub use group::{GroupTime, Member, Refresh, ThreadGroup};
pub use kernel::{process_cpu_ns, thread_cpu_ns_of};
pub use process::process_exact;
pub use thread::{thread_cpu_ns, thread_cpu_time, tier};
pub use tier::{Tier, capability};
pub use tsc::{Point, point, stamp, ticks_to_ns};

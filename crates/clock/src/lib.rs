//! CPU time of threads without a system call.
//!
//! On x86-64 Linux, reading `CLOCK_THREAD_CPUTIME_ID` is a real system call. This crate makes it
//! once, and from then on adds scaled TSC ticks for as long as it can prove that the thread has not
//! been descheduled since. The proof is the thread's [`Tier`]:
//!
//! | tier | proof | its needs | a read |
//! |---|---|---|---|
//! | [`Tier::Rseq`] | the kernel has not cleared `rseq_cs` | rseq, and Linux before 6.19 | an `rdtsc` and a few loads |
//! | [`Tier::Page`] | the page of a perf event has not changed | perf events, a page of locked memory a thread | the same; a switch of the kernel costs about a microsecond more |
//! | [`Tier::Gap`] | the last read is too short a time ago | nothing | the same, if reads are less than 2 µs apart |
//! | [`Tier::Syscall`] | none needed | nothing | a system call |
//!
//! All but the last need a trustworthy TSC. A thread takes the first tier that passes its test on
//! this machine and that it can attach to, and falls to the next one when it loses it; [`tier`]
//! returns it. `DORMOUSE_CLOCK=rseq|page|gap|syscall` and [`force`] set the first tier to try.
//!
//! # Accuracy
//!
//! The kernel is asked again after the thread was descheduled, and after a millisecond in any case.
//! Until then steal and interrupt time that the kernel would leave out are counted. Every resync is
//! bracketed by two `rdtsc`, so its own error is at most half the duration of one system call.
//! [`thread_cpu_time`] returns the bound beside the value. A thread never sees its clock step back.
//!
//! # More than one thread
//!
//! | call | behind by | a read |
//! |---|---|---|
//! | [`process_cpu_ns`] | a tick for every sibling that runs | one system call |
//! | [`process_exact`] | nothing that was used before the call | one for each thread |
//!
//! # Budgets
//!
//! A [`Budget`] wakes a thread or a task when a [`CpuMeter`] has used a given amount of CPU time.
//!
//! # Seccomp filters
//!
//! After [`prepare`] reads make no system call but `clock_gettime`; where that is refused, clocks
//! stand still. On a thread with a filter, only [`process_exact`] opens files.
//!
//! # Async-signal-safety
//!
//! [`thread_cpu_ns`] and [`thread_cpu_time`] may be called from signal handlers once the process
//! has called one of them outside of a handler.
//!
//! # Things it does not do
//!
//! A thread that forbids itself the counter (`PR_SET_TSC`) after its first read, or after
//! [`prepare`], is killed by its next read: nothing reports that change in time. A child of `vfork`
//! has its parent's thread-locals and must not read.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]

mod arch;
mod budget;
mod claim;
mod error;
mod kernel;
#[doc(hidden)]
pub mod overhead;
mod point;
mod process;
mod stamp;
mod stretch;
mod thread;
mod tier;
mod tsc;

pub use arch::rdtsc;
pub use budget::{Budget, BudgetEnd, CpuMeter, sleep_until, start_timer};
pub use error::Error;
pub use kernel::{process_cpu_ns, process_cpu_ns_of, realtime_ns, thread_cpu_ns_of};
pub use point::{Point, ns_to_ticks, point, ticks_to_ns};
pub use process::process_exact;
pub use stamp::{begin_sharing, shared_stamp, stamp};
pub use thread::{
    CpuTime, EPOCH_NS, capability, force, prepare, thread_cpu_ns, thread_cpu_ns_begin, thread_cpu_ns_end,
    thread_cpu_time, tier,
};
pub use tier::{Tier, config_error};

/// Internals for the crate `dormouse-lab`, which may change at any time.
#[doc(hidden)]
pub mod lab {
    pub use crate::claim::{Claim, Claimed};
    pub use crate::kernel::processors;
    pub use crate::point::ns_to_ticks;
    pub use crate::thread::{asked_ns, thread_cpu_ns_at};
}

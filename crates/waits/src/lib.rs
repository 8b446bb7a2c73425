//! Where tasks spend their time: in a poll, waiting for a thread, or awaiting something.
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | `primitive` | atomics, or loom's |
//! | [`buckets`], `counts` | durations in exponential buckets, and how many of each |
//! | `cells` | tables without locks, and sums in them |
//! | `share` | who uses a slot, and the runtime's waker in it |
//! | [`TraceContext`], `traced` | a trace and a span; how a task comes to one |
//! | [`Arrival`] | what a request waits for before its task begins |
//! | [`Unanswered`] | requests that ended without an answer |
//! | [`Head`], [`Frames`], [`StreamFrames`] | what is stored of the response to a request |
//! | [`Traffic`] | what the connections of a group carry |
//! | [`take_slow`] | the requests that took long |
//! | `registration` | a place of a task, and the wakers that are out of it |
//! | `slot`, `slab` | what is known of one task; all tasks |
//! | `wait` | a wait of a task that is over |
//! | `rows` | what each thread has added up for each group |
//! | `returned` | the largest sums that readers got |
//! | [`exemplars`] | one of the last requests of each bucket of a group |
//! | [`calls`] | outgoing calls of a group, by peer |
//! | `received_gaps` | the times between received messages, by group |
//! | [`CpuTaking`] | the CPU time of single tasks, while a client requests it |
//! | [`Waiting`] | times are taken as long as one lives |
//! | `known` | the places where a task waits, by its registrations |
//! | `stacks` | stacks, each with a number |
//! | [`Cancellation`] | cancelled requests, by the place where they waited and the stack of the drop |
//! | [`places`] | the stacks at which leaves take wakers |
//! | `waker` | the waker around the runtime's |
//! | [`observe`], [`set_trace_context`] | the traces to which tasks belong |
//! | [`count_frames`] | the times of a response: of its head, its frames, its end |
//! | [`count_traffic`], [`count_messages`] | the count of what connections carry |
//! | [`Stretch`] | a thread is in a task |
//! | [`TaskWaits`] | a task's part: its polls, and its end |
//! | [`TimesId`] | the same for a task that is only numbers, as C has it |
//! | [`PartWaits`] | a part of a task that a collection polls |
//! | [`Site`] | places in the source that spawn, and how many of their tasks live |
//! | [`living`], [`polled`] | the tasks that are, and those that threads poll |
//! | [`charged`], [`polled_on`] | the group that a thread is charged for |
//! | [`read`], [`times_by_place`] | the times of groups, also by place |
//!
//! A task is *in a poll*, *runnable* (woken, and not polled yet), or *awaiting* (neither). The
//! three times, and for how long a request was *queued* before its task began, add up to its age.
//! The account of groups shows how much of a poll was spent on a CPU.
//!
//! Times are taken only while a [`Waiting`] exists; without one a poll costs one sleeping
//! instruction.
//!
//! # Things it does not do
//!
//! Tasks that began before times were taken are known from their next poll on. A task that is never
//! polled again is not.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]

mod answered;
mod arrival;
pub mod calls;
mod cancelled;
mod carried;
mod cells;
mod charged;
mod counts;
mod cpu;
mod exemplars;
mod known;
mod living;
mod numbered;
mod part;
mod place_times;
pub mod places;
mod polling;
mod primitive;
mod read;
mod received_gaps;
mod registration;
mod response;
mod returned;
mod rows;
mod run;
mod share;
mod sites;
mod slab;
mod slot;
mod slow;
mod stacks;
mod stretch;
mod task;
mod trace_context;
mod traced;
mod traces;
mod traffic;
mod unanswered;
mod wait;
mod waiting;
mod waker;

pub use answered::count_frames;
pub use arrival::{Arrival, QueueTimes};
pub use cancelled::{Cancellation, CancelledFor, DroppedTask, Waited};
pub use carried::{count_messages, count_traffic};
pub use charged::{ChargedThread, charged, polled_on};
pub use cpu::CpuTaking;
pub use dormouse_statistics::buckets::{self, Histogram};
pub use dormouse_sys::resident::mapped_bytes;
pub(crate) use dormouse_sys::zeroed as memory;
pub use exemplars::{Exemplar, exemplars, exemplars_since};
pub use living::{
    LivingPart, LivingTask, PolledTask, TaskState, WokenPart, living, living_part, polled, wake_unplaced,
    wake_unplaced_part,
};
pub use numbered::TimesId;
pub use part::PartWaits;
pub use place_times::{PlaceTime, times_by_place};
pub use places::{Placing, forget_old_cancelled, read_cancelled};
pub use read::{GroupWaits, Histograms, read, read_each, read_group, read_these};
pub use response::{Frames, Head, StreamFrames};
pub use rows::{capability, groups};
pub use sites::{LastPoll, Site, SpawnSite, growth, spawn_sites};
pub use slab::refused;
pub use slow::{SlowRequest, note_slow, raise_slow, take_slow};
pub use stretch::{Around, Stretch, around, charge_group, set_aside};
pub use task::{TaskEnd, TaskWaits, Who};
pub use trace_context::TraceContext;
pub use traced::ActiveSpan;
pub use traces::{Nesting, SpanSwitch, observe, set_trace_context};
pub use traffic::Traffic;
pub use unanswered::Unanswered;
pub use waiting::{Waiting, are_times_taken, forget_gap, is_on, taken_for};

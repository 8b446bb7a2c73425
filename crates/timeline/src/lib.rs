//! Timelines: what the threads and tasks of a service did when, from the records of its probes.
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | [`Timeline`] | threads with spans and points, tasks with their requests |
//! | [`TimelineBuilder`] | records as they come, and what is missing among them |
//! | [`encode`] | the formats that viewers read |

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

mod builder;
mod calls;
pub mod encode;
mod requests;
mod timeline;

pub use builder::TimelineBuilder;
pub use timeline::{
    Edges, POLL, TASK, TRACE_CONTEXT, TaskDrop, Timeline, TimelineEvent, TimelineProbe, TimelineTask,
    TimelineThread,
};

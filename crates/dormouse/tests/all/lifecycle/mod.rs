//! The fate of tasks, and the groups that pay for it: on every kind of runtime, along every way to
//! hand work on, and however it ends.
#![cfg(feature = "tokio")]

mod ends;
mod handed_on;
mod moved;
mod runtimes;
mod work;

//! Watches of the running process. Each test is a process of its own: debug registers, the handler
//! of SIGTRAP and forks are the process's.
#![cfg(target_os = "linux")]

mod churn;
mod hits;
mod keeper;
mod life;
mod limits;
mod passing;
mod stray;
mod support;

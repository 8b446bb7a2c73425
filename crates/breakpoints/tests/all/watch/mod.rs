//! Watches of the running process. Each test is a process of its own: debug registers, the handler
//! of SIGTRAP and forks are the process's.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod churn;
mod hits;
mod keeper;
mod life;
mod limits;
mod stray;
mod support;

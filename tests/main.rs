//! Acceptance: the command as people run it, against services that the tests start themselves. One
//! program, since linking takes longest when tests are built.

mod bench;
mod c_service;
mod calls;
mod circles;
mod commands;
mod cpu_limits;
mod dashboard;
mod demo;
mod experiment;
mod fleet;
mod guides;
mod half_dead;
mod interrupted;
mod keys;
mod killing_filter;
mod leaks;
mod locks;
mod long_polls;
mod maps;
mod page;
mod placed;
mod profile;
mod protocol;
mod queues;
mod recorded;
mod recorder;
mod refusals;
mod serve;
mod shares;
mod soak;
mod stat;
mod support;
mod tasks;
mod terminal;
mod threads;
mod timeline;
mod triggers;
mod users;
mod valgrind;
mod watch;

/// Allocations can be counted and sampled in services that are this program.
#[global_allocator]
static ALLOC: dormouse::Alloc = dormouse::Alloc::new();

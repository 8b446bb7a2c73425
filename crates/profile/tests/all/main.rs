//! Samples of real threads, and the formats of profiles. Each module runs in a process of its own.

#[cfg(target_os = "linux")]
mod arch;
mod cpu;
mod faults;
mod formats;
mod outside;
mod page;
mod shares;
mod tasks;
mod thread_stack;

dormouse_testkit::isolate_modules!();

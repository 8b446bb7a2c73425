//! Groups of threads, estimates and meters, against the kernel. Each module runs in a process of
//! its own.

mod estimate;
mod filters;
mod meters;
mod storm;
mod thread_group;

dormouse_testkit::isolate_modules!();

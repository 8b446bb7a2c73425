//! Events of threads and tasks, against models and the kernel. Each module runs in a process of its
//! own.

mod model;
mod perf;
mod process;
mod processor_time;
mod sched;
mod sets;
mod steps;
mod threads;

dormouse_testkit::isolate_modules!();

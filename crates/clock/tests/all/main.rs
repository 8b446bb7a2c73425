//! The clocks of threads, groups and the process, against the kernel. Each module runs in a process
//! of its own.

mod budget;
mod each_tier;
mod filters;
mod kernel;
mod life;
mod memory;
mod meters;
mod shifted;
mod step;
mod storm;
mod tiers;

dormouse_testkit::isolate_modules!();

//! Unwinding, against the tables and the real stacks of this process. Each module runs in a process
//! of its own.

#[cfg(all(target_os = "linux", not(miri)))]
mod arch;
mod leaves;
mod own;
mod rows;
mod steps;
mod storm;

dormouse_testkit::isolate_modules!();

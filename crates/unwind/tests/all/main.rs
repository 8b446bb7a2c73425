//! Unwinding, against the tables and the real stacks of this process. Each module runs in a process
//! of its own.

mod rows;
mod steps;

dormouse_testkit::isolate_modules!();

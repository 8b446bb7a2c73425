//! Unwinding, against the tables and the real stacks of this process. Each module runs in a process
//! of its own.

mod leaves;
mod rows;
mod steps;
mod storm;

dormouse_testkit::isolate_modules!();

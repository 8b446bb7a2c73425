//! Rings and what threads pass to one another. Each module runs in a process of its own.

mod passing;
mod rings;

dormouse_testkit::isolate_modules!();

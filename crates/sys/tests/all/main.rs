//! Claims of blocks, rings, what threads pass to one another, and where they begin. Each module
//! runs in a process of its own.

mod claims;
mod passing;
mod rings;
mod starts;

dormouse_testkit::isolate_modules!();

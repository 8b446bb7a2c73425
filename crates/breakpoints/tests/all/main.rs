//! Watchpoints and their accounting, against the kernel and its own test suite. Each module runs in
//! a process of its own.

mod arch;
mod differential;
mod kernel;
mod kunit;
mod outside;
mod suite;
mod threads;
mod watch;

dormouse_testkit::isolate_modules!();

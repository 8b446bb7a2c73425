//! Locks under load, with the truth kept beside. Each module runs in a process of its own.

mod awaited;
mod deadlocks;
mod departed;
mod faces;
mod fork;
mod holders;
mod queues;
mod support;
mod switched;

dormouse_testkit::isolate_modules!();

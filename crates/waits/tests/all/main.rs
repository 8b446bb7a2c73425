//! The times of tasks, on real runtimes. Each module runs in a process of its own.

mod cpu;
mod guards;
mod histograms;
mod places;
mod present_places;
mod responses;
mod room;
mod runtimes;
mod stress;
mod support;
mod times;
mod traces;
mod waker;

dormouse_testkit::isolate_modules!();

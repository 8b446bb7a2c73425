//! The demo service, as a library and as a program. Each module runs in a process of its own.

mod acceptance;
#[cfg(feature = "dormouse")]
mod instrumented;

dormouse_testkit::isolate_modules!();

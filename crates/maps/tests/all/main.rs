//! Address ranges, and the symbols of real programs. Each module runs in a process of its own.

#[cfg(feature = "symbols")]
mod arch;
#[cfg(feature = "symbols")]
mod code;
#[cfg(feature = "symbols")]
mod cut;
mod fork;
#[cfg(feature = "forms")]
mod forms;
#[cfg(feature = "symbols")]
mod hostile_files;
#[cfg(feature = "symbols")]
mod hostile_statics;
mod memory;
mod oracle;
#[cfg(feature = "symbols")]
mod parts;
#[cfg(feature = "symbols")]
mod program;
#[cfg(feature = "forms")]
mod run_time;
mod space;
#[cfg(feature = "symbols")]
mod statics;
mod stress;
#[cfg(feature = "symbols")]
mod symbols;

dormouse_testkit::isolate_modules!();

//! The progress bar: on standard error, and only when that is a terminal.
//!
//! It draws when it is told to and never by a thread: a second thread would take part in the
//! measurement, and one peer (`static-keys`) may only be toggled in a process of one thread.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar, or nothing.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar if standard error is a terminal that can show one.
    pub(crate) fn on_terminal() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if dumb || !std::io::stderr().is_terminal() {
            return Self::hidden();
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta:>4} {msg}") {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// No bar.
    pub(crate) fn hidden() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// Starts over with `length` steps to go.
    pub(crate) fn begin(&mut self, length: u64) {
        self.bar.reset();
        self.bar.set_length(length);
    }

    /// Shows work outside the steps.
    pub(crate) fn say(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// One step, of this name.
    pub(crate) fn step(&mut self, name: &str) {
        self.bar.set_message(name.to_owned());
        self.bar.inc(1);
    }

    /// Takes the bar away.
    pub(crate) fn end(&mut self) {
        self.bar.finish_and_clear();
    }
}

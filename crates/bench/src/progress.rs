//! The progress bar: on standard error, and only when that is a terminal.
//!
//! It draws when it is called and never from a thread: a second thread would disturb the
//! measurement, and one peer (`static-keys`) may only be toggled in a process of one thread.
//!
//! A run of several workloads ([`Stages`]) has a bar of its own, with the time that is left; where
//! standard error is no terminal, it has a line for each workload.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar, or nothing.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar if standard error is a terminal that can show one.
    pub(crate) fn on_terminal() -> Self {
        bar("{bar:30} {pos}/{len} {eta:>4} {msg}").map_or_else(Self::hidden, |bar| Self { bar })
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

fn bar(template: &str) -> Option<ProgressBar> {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if dumb || !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    Some(bar)
}

/// The way through several workloads, each of which is expected to take some seconds.
#[derive(Debug)]
pub(crate) struct Stages {
    bar: Option<ProgressBar>,
    /// Whether there are lines where there is no bar.
    lines: bool,
    expected: Vec<u32>,
    /// The present stage, and the end of the one before it.
    stage: usize,
    began: Instant,
    since: Instant,
}

impl Stages {
    pub(crate) fn new(expected: Vec<u32>, lines: bool) -> Self {
        let now = Instant::now();
        Self { bar: bar("{bar:30} {msg}"), lines, expected, stage: 0, began: now, since: now }
    }

    /// A stage begins.
    pub(crate) fn begin(&mut self, stage: usize, name: &str) {
        (self.stage, self.since) = (stage, Instant::now());
        if self.bar.is_none() && self.lines {
            eprintln!("{}", self.line(name));
        }
        self.tick(name);
    }

    /// Time has passed in the stage.
    pub(crate) fn tick(&self, name: &str) {
        let Some(bar) = &self.bar else { return };
        let (gone, left) = (self.began.elapsed(), self.left());
        bar.set_length((gone + left).as_secs());
        bar.set_position(gone.as_secs());
        bar.set_message(self.line(name));
    }

    /// Has something else written to the terminal.
    pub(crate) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn line(&self, name: &str) -> String {
        let (gone, left) = (clock(self.began.elapsed()), clock(self.left()));
        format!("{name}, {} of {}; {gone} gone, about {left} left", self.stage + 1, self.expected.len())
    }

    fn left(&self) -> Duration {
        let before = self.since - self.began;
        left(&self.expected, self.stage, before, self.since.elapsed())
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The time that is left in stage number `stage`, of which `inside` is gone, if this machine goes
/// on as it did `before`.
fn left(expected: &[u32], stage: usize, before: Duration, inside: Duration) -> Duration {
    let seconds = |of: &[u32]| of.iter().sum::<u32>() as f64;
    let (over, rest) = expected.split_at(stage);
    let pace = if over.is_empty() { 1.0 } else { before.as_secs_f64() / seconds(over).max(1.0) };
    let [present, others @ ..] = rest else { return Duration::ZERO };
    let of_present = (f64::from(*present) * pace - inside.as_secs_f64()).max(0.0);
    Duration::try_from_secs_f64(of_present + seconds(others) * pace).unwrap_or(Duration::MAX)
}

/// Minutes and seconds.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_the_pace_so_far() {
        let seconds = Duration::from_secs;
        let at = |stage, before, inside| left(&[10, 20, 30], stage, seconds(before), seconds(inside));
        assert_eq!(at(0, 0, 0), seconds(60));
        assert_eq!(at(0, 0, 4), seconds(56));
        assert_eq!(at(1, 20, 10), seconds(90), "twice as slow");
        assert_eq!(at(1, 10, 500), seconds(30), "longer than expected");
        assert_eq!(at(3, 60, 0), seconds(0));
        assert_eq!(clock(seconds(125)), "2:05");
    }
}

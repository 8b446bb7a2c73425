//! The thread that pushes, and its end.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::answer::{PartialSuccess, excerpt};
use super::post::{NotTaken, Pauses, Post};
use super::settings::PushSettings;
use crate::duration::short_of;

/// Most of the time that the push at the end takes, and that the end waits for the thread.
const LAST: Duration = Duration::from_secs(3);

/// The metrics that are pushed.
pub(super) trait PushSource {
    /// Takes note of the totals from which differences are pushed.
    fn begin(&mut self) {}

    /// The body of a push.
    fn request(&mut self) -> Result<Vec<u8>, String>;

    /// The collector has taken the last one.
    fn taken(&mut self) {}
}

/// Pushes until it is closed.
pub(in crate::serve) struct Pusher {
    /// Closed at the end.
    running: Sender<()>,
    ended: Receiver<()>,
    thread: JoinHandle<()>,
}

impl Pusher {
    /// Pushes what `source` gives, and reports failures through `tell`. Fails if the settings
    /// cannot work.
    pub(super) fn start(
        settings: PushSettings,
        source: impl PushSource + Send + 'static,
        tell: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, String> {
        Self::start_with(settings, Pauses::default(), source, tell)
    }

    pub(super) fn start_with(
        settings: PushSettings,
        pauses: Pauses,
        source: impl PushSource + Send + 'static,
        tell: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, String> {
        let (interval, timeout) = (settings.interval, settings.timeout);
        let post = Post::new(settings, pauses)?;
        let (running, end) = mpsc::channel();
        let (ends, ended) = mpsc::channel();
        let work = move || {
            // Closed when the thread ends, also by a panic.
            let _ends = ends;
            let news = News { tell, failing: 0, is_partial: false };
            Work { post, interval, timeout, source, news, end }.run();
        };
        let thread = std::thread::Builder::new()
            .name("dormouse-push".into())
            .spawn(work)
            .map_err(|error| format!("cannot start a thread that pushes: {error}"))?;
        Ok(Self { running, ended, thread })
    }

    /// Pushes once more, and waits for that for [`LAST`] at most.
    pub(in crate::serve) fn close(self) {
        drop(self.running);
        // A thread that has not ended is in an attempt that began before; the process ends it.
        if self.ended.recv_timeout(LAST) == Err(RecvTimeoutError::Disconnected) {
            let _ = self.thread.join();
        }
    }
}

/// The state of the thread.
struct Work<S, T> {
    post: Post,
    interval: Duration,
    timeout: Duration,
    source: S,
    news: News<T>,
    /// Closed at the end.
    end: Receiver<()>,
}

impl<S: PushSource, T: Fn(&str)> Work<S, T> {
    fn run(mut self) {
        self.source.begin();
        let mut due = Instant::now() + self.interval;
        while self.is_running_until(due) {
            let quiet = self.push(self.timeout).unwrap_or_default();
            // Pushes that were due meanwhile, or while the collector wants to hear nothing, are
            // left out.
            due = (due + self.interval).max(Instant::now() + quiet);
        }
        self.push(self.timeout.min(LAST));
    }

    /// Waits; false when the end has come first.
    fn is_running_until(&self, due: Instant) -> bool {
        let left = due.saturating_duration_since(Instant::now());
        self.end.recv_timeout(left) == Err(RecvTimeoutError::Timeout)
    }

    /// Pushes once, and gives the time for which the collector wants no more.
    fn push(&mut self, timeout: Duration) -> Option<Duration> {
        let deadline = Instant::now() + timeout;
        let request = match self.source.request() {
            Ok(request) => request,
            Err(reason) => {
                self.news.failed(&reason, None);
                return None;
            }
        };
        let wait = |pause| self.end.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
        match self.post.deliver(&request, deadline, wait) {
            Ok(partial) => {
                self.source.taken();
                self.news.taken(partial.as_ref());
                None
            }
            Err(NotTaken { reason, quiet }) => {
                self.news.failed(&reason, quiet);
                quiet
            }
        }
    }
}

/// Tells of changes alone: a collector that refuses each push in other words is one line.
///
/// | before | all taken | some refused | failed |
/// |---|---|---|---|
/// | all taken | | which, and why | why |
/// | some refused | all are taken again | | why |
/// | failing | pushed again | pushed again; which, and why | |
struct News<T> {
    tell: T,
    /// Pushes that have failed since the last that was taken.
    failing: u64,
    /// Whether points of the last push that was taken were refused.
    is_partial: bool,
}

impl<T: Fn(&str)> News<T> {
    fn taken(&mut self, partial: Option<&PartialSuccess>) {
        if self.failing > 0 {
            (self.tell)(&format!("metrics are pushed again; {} pushes have failed", self.failing));
        }
        match partial {
            Some(PartialSuccess { rejected, message }) if !self.is_partial || self.failing > 0 => {
                (self.tell)(&format!("the collector has refused {rejected} points: {}", excerpt(message)));
            }
            None if self.is_partial && self.failing == 0 => {
                (self.tell)("the collector takes all points again");
            }
            _ => {}
        }
        (self.failing, self.is_partial) = (0, partial.is_some());
    }

    fn failed(&mut self, reason: &str, quiet: Option<Duration>) {
        if self.failing == 0 {
            let time = quiet.map(|quiet| format!(" for {}", short_of(quiet))).unwrap_or_default();
            (self.tell)(&format!("no metrics are pushed{time}: {reason}"));
        }
        self.failing += 1;
    }
}

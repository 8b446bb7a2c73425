//! The thread that pushes, and its end.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::answer::PartialSuccess;
use super::post::{NotTaken, Pauses, Post};
use super::settings::PushSettings;

/// Most of the time that the push at the end takes, and that the end waits for the thread.
const LAST: Duration = Duration::from_secs(3);

/// Pushes until it is closed.
pub(in crate::serve) struct Pusher {
    /// Closed at the end.
    running: Sender<()>,
    ended: Receiver<()>,
    thread: JoinHandle<()>,
}

impl Pusher {
    /// Pushes the results of `source`, and reports failures through `tell`. Fails if the settings
    /// cannot work.
    pub(super) fn start(
        settings: PushSettings,
        source: impl FnMut() -> Result<Vec<u8>, String> + Send + 'static,
        tell: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, String> {
        Self::start_with(settings, Pauses::default(), source, tell)
    }

    pub(super) fn start_with(
        settings: PushSettings,
        pauses: Pauses,
        source: impl FnMut() -> Result<Vec<u8>, String> + Send + 'static,
        tell: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, String> {
        let (interval, timeout) = (settings.interval, settings.timeout);
        let post = Post::new(settings, pauses)?;
        let (running, end) = mpsc::channel();
        let (ends, ended) = mpsc::channel();
        let work = move || {
            // Closed when the thread ends, also by a panic.
            let _ends = ends;
            Work { post, interval, timeout, source, news: News { tell, failing: 0, remark: None }, end }
                .run();
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

impl<S: FnMut() -> Result<Vec<u8>, String>, T: Fn(&str)> Work<S, T> {
    fn run(mut self) {
        let mut due = Instant::now() + self.interval;
        // Until then the collector wants to hear nothing.
        let mut quiet_until = Instant::now();
        while self.is_running_until(due.max(quiet_until)) {
            if let Some(quiet) = self.push(self.timeout) {
                quiet_until = Instant::now() + quiet;
            }
            // Pushes that were due meanwhile are left out.
            due = (due + self.interval).max(Instant::now());
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
        let request = match (self.source)() {
            Ok(request) => request,
            Err(reason) => {
                self.news.failed(&reason);
                return None;
            }
        };
        let wait = |pause| self.end.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
        match self.post.deliver(&request, deadline, wait) {
            Ok(remark) => {
                self.news.taken(remark);
                None
            }
            Err(NotTaken { reason, quiet }) => {
                self.news.failed(&reason);
                quiet
            }
        }
    }
}

/// Tells of changes alone.
struct News<T> {
    tell: T,
    /// Pushes that have failed since the last that was taken.
    failing: u64,
    /// The last remark.
    remark: Option<PartialSuccess>,
}

impl<T: Fn(&str)> News<T> {
    fn taken(&mut self, remark: Option<PartialSuccess>) {
        if self.failing > 0 {
            (self.tell)(&format!("metrics are pushed again; {} pushes have failed", self.failing));
        }
        self.failing = 0;
        let is_new = remark.as_ref().map(|it| &it.message) != self.remark.as_ref().map(|it| &it.message);
        if let (true, Some(PartialSuccess { rejected, message })) = (is_new, &remark) {
            (self.tell)(&format!("the collector has refused {rejected} points: {message:?}"));
            self.remark = remark;
        }
    }

    fn failed(&mut self, reason: &str) {
        if self.failing == 0 {
            (self.tell)(&format!("no metrics are pushed: {reason}"));
        }
        self.failing += 1;
    }
}

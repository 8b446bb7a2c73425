//! The thread that pushes, and its end.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::answer::{PartialSuccess, excerpt};
use super::post::{NotTaken, Pauses, Post};
use super::settings::PushSettings;
use crate::duration::short_of;
use crate::serve::hub::Identity;

/// Most of the time that the push at the end takes, and that the end waits for the thread.
const LAST: Duration = Duration::from_secs(3);

/// The most bytes of a request, before it is zipped. Collectors refuse one that is too long as a
/// whole; the lowest limits that are known are 4 MB and 15,000 points (Dynatrace).
const MOST_BYTES: usize = 3_500_000;
/// The most points of a request.
const MOST_POINTS: usize = 14_000;

/// One request of a push.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PushBody {
    pub(super) bytes: Vec<u8>,
    pub(super) points: usize,
    pub(super) processes: Vec<Identity>,
}

impl PushBody {
    /// Adds the request of a process to the last body, or to a new one if it would get too long. A
    /// process that is too long by itself has a body for itself.
    pub(super) fn add(bodies: &mut Vec<PushBody>, process: Identity, points: usize, request: &[u8]) {
        let fits = |last: &PushBody| {
            last.bytes.len() + request.len() <= MOST_BYTES && last.points + points <= MOST_POINTS
        };
        let mut body = bodies.pop_if(|last| fits(last)).unwrap_or_default();
        // The only field of a request is repeated, so two requests in a row are one request.
        body.bytes.extend_from_slice(request);
        body.points += points;
        body.processes.push(process);
        bodies.push(body);
    }
}

/// The metrics that are pushed.
pub(super) trait PushSource {
    /// Takes note of the totals from which differences are pushed.
    fn begin(&mut self) {}

    /// The bodies of a push.
    fn bodies(&mut self) -> Result<Vec<PushBody>, String>;

    /// The collector has taken the body of these processes.
    fn taken(&mut self, _processes: &[Identity]) {}

    /// The push is broken off, with the body of these processes.
    fn broke_at(&mut self, _processes: &[Identity]) {}
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
            let news = News { tell, failing: 0, is_whole: false, is_partial: false };
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
            let quiet = self.push(None).unwrap_or_default();
            // Pushes that were due meanwhile, or while the collector wants to hear nothing, are
            // left out.
            due = (due + self.interval).max(Instant::now() + quiet);
        }
        self.push(Some(Instant::now() + LAST));
    }

    /// Waits; false when the end has come first.
    fn is_running_until(&self, due: Instant) -> bool {
        let left = due.saturating_duration_since(Instant::now());
        self.end.recv_timeout(left) == Err(RecvTimeoutError::Timeout)
    }

    /// Pushes once, at the end until `last`, and gives the time for which the collector wants no
    /// more.
    fn push(&mut self, last: Option<Instant>) -> Option<Duration> {
        let bodies = match self.source.bodies() {
            Ok(bodies) => bodies,
            Err(reason) => {
                self.news.failed(&reason, None, None);
                return None;
            }
        };
        let wait = |pause| self.end.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
        let (mut partial, mut missed, mut taken) = (None, None, 0);
        for PushBody { bytes, processes, .. } in &bodies {
            // The last push has them all.
            if last.is_none() && self.end.try_recv() == Err(TryRecvError::Disconnected) {
                break;
            }
            // The timeout is the collector's, for each request: to read all services has taken
            // time, too.
            let own = Instant::now() + self.timeout;
            let deadline = last.map_or(own, |last| last.min(own));
            match self.post.deliver(bytes, deadline, wait) {
                Ok(remark) => {
                    self.source.taken(processes);
                    taken += processes.len();
                    partial = PartialSuccess::of_both(partial, remark);
                }
                Err(failure) => {
                    // A refusal of its content says nothing about the next one.
                    let goes_on = failure.is_final;
                    missed = Some(failure);
                    if !goes_on {
                        self.source.broke_at(processes);
                        break;
                    }
                }
            }
        }
        if let Some(NotTaken { reason, quiet, .. }) = missed {
            let all: usize = bodies.iter().map(|body| body.processes.len()).sum();
            self.news.failed(&reason, quiet, (taken > 0).then_some((all - taken, all)));
            return quiet;
        }
        if taken > 0 {
            self.news.taken(partial.as_ref());
        }
        None
    }
}

/// Tells of changes alone: a collector that refuses each push in other words is one line.
///
/// | before | all taken | some points refused | some processes failed | all failed |
/// |---|---|---|---|---|
/// | all taken | | which, and why | which, and why | why |
/// | some points refused | all are taken again | | which, and why | why |
/// | some processes failed | pushed again | pushed again; which, and why | | why |
/// | all failed | pushed again | pushed again; which, and why | which, and why | |
struct News<T> {
    tell: T,
    /// Pushes that have failed since the last that was taken.
    failing: u64,
    /// Whether the last of these failed for all processes.
    is_whole: bool,
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

    /// `part`: how many processes of how many it failed for; `None` if for all.
    fn failed(&mut self, reason: &str, quiet: Option<Duration>, part: Option<(usize, usize)>) {
        if self.failing == 0 || self.is_whole != part.is_none() {
            let time = quiet.map(|quiet| format!(" for {}", short_of(quiet))).unwrap_or_default();
            let of = part.map(|(lost, all)| format!(" of {lost} of {all} processes")).unwrap_or_default();
            (self.tell)(&format!("no metrics{of} are pushed{time}: {reason}"));
        }
        self.failing += 1;
        self.is_whole = part.is_none();
    }
}

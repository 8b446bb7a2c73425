//! One service: a thread that talks to its agent, and the last snapshot that it took.
//!
//! | phase | a snapshot is wanted | a verb asks | the thread |
//! |---|---|---|---|
//! | coming: not connected yet | waits for it | waits | connects, has the service count, takes a snapshot |
//! | answers | takes one | asks the agent | waits for the next request |
//! | refused | connects again, if that was not tried just now | connects again | waits for the next request |
//! | ended | there is none | fails | is gone |
//!
//! The thread waits for an answer for as long as the service may be stopped; a reader that wants
//! the snapshot waits at most a second. So a stopped service costs a second once, keeps its counts,
//! and is there again as soon as it goes on.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use dormouse::metrics::Origin;
use dormouse_protocol::{Code, Hello, Stat, StatPart, StatRequest};
use tokio::sync::watch;

use super::admission::Priority;
use super::figures::{lacks, rows_bytes, shrink};
use super::introduction::shortened;
use super::terms::{Lack, Terms};
use super::{Identity, report_of};
use crate::client::Client;
use crate::client::room::AnswerRoom;
use crate::client::session::{Errand, Shared, Subject};
use crate::exit::{Exit, Failure, Outcome, Report};
use crate::output::{FAIR, say};
use crate::target::{Finder, Found, Process, Target, describe};
use crate::user;

/// How long the thread waits for an answer: a service may be stopped for long.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long it waits for the first answers. After that a service that has not said hello may lose
/// its session to another service.
pub(super) const GREETING: Duration = Duration::from_secs(10);

/// The longest answer of another user's service, in bytes. A service is told of it, so that it
/// leaves something out; some bytes are around that.
const LONGEST_ANSWER: usize = 4 << 20;
const AROUND: usize = 1 << 10;

/// How soon a service that refused is asked again.
const AGAIN: Duration = Duration::from_secs(5);

/// How often the thread checks whether any reader is left.
const CHECK: Duration = Duration::from_secs(10);

/// The stack of the thread: it reads JSON, and nothing else.
const STACK: usize = 512 * 1024;

/// The figures of a service at some moment.
#[derive(Debug)]
pub(in crate::serve) struct Snapshot {
    pub(in crate::serve) hello: Arc<Hello>,
    /// Without rows of threads, which nobody shows: only their number.
    pub(in crate::serve) stat: Stat,
    /// Groups that were left out, because there were too many.
    pub(in crate::serve) groups_left_out: usize,
    /// The memory that it takes of its user's, if that is bounded.
    pub(in crate::serve) room: Option<AnswerRoom>,
    /// The part of the answer that was asked for.
    pub(in crate::serve) part: StatPart,
    pub(in crate::serve) at: Instant,
    /// The same moment, since 1970.
    pub(in crate::serve) unix_ms: u64,
    /// The whole snapshot as an event, and the changes since the previous one: encoded once for all
    /// readers.
    pub(in crate::serve) whole: OnceLock<SampleEvent>,
    /// With the reading that its readers have seen, and when its windows began.
    pub(in crate::serve) news: OnceLock<((Instant, u64), SampleEvent)>,
}

/// A sample for the page, and when its windows begin, in nanoseconds.
#[derive(Debug, Clone)]
pub(in crate::serve) struct SampleEvent {
    pub(in crate::serve) event: Bytes,
    pub(in crate::serve) oldest_ns: u64,
}

/// The phase of a session.
#[derive(Debug, Clone)]
pub(in crate::serve) enum SessionPhase {
    Coming,
    Answers(Arc<Hello>),
    Refused(Arc<Report>),
    Ended,
}

#[derive(Debug, Clone)]
struct State {
    phase: SessionPhase,
    snapshot: Option<Arc<Snapshot>>,
    /// When it refused.
    refused: Option<Instant>,
}

/// A service.
#[derive(Debug)]
pub(in crate::serve) struct ServiceSession {
    process: Process,
    /// Its user, if that is another one.
    user: Option<String>,
    begun: Instant,
    terms: Arc<Terms>,
    state: watch::Sender<State>,
    errands: Sender<Errand>,
    /// Counts the requests of verbs that wait for the thread.
    pending: Arc<()>,
    /// Its name for metrics: not made anew in each conversation, since the beginning of a counter
    /// must not move.
    origin: Mutex<Option<Arc<Origin>>>,
    /// The snapshot that is wanted and has not come.
    wanted: Mutex<Option<Wanted>>,
    /// Whether a message has named what answers leave out.
    is_shortened: AtomicBool,
}

/// A snapshot that is wanted: since when, and the largest part of the answer that a reader wants.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    since: Instant,
    part: StatPart,
}

impl ServiceSession {
    /// Begins to talk to a service.
    pub(super) fn start(found: Found, terms: &Arc<Terms>) -> io::Result<Arc<ServiceSession>> {
        let (errands, received) = channel();
        let state = State { phase: SessionPhase::Coming, snapshot: None, refused: None };
        let session = Arc::new(ServiceSession {
            process: found.process.clone(),
            user: user::other(found.process.uid).map(|user| user.name),
            begun: Instant::now(),
            terms: Arc::clone(terms),
            state: watch::Sender::new(state),
            errands,
            pending: Arc::default(),
            origin: Mutex::new(None),
            // The first snapshot is taken without a request.
            wanted: Mutex::new(Some(Wanted { since: Instant::now(), part: StatPart::Histograms })),
            is_shortened: AtomicBool::new(false),
        });
        let has_warned = <[Cell<bool>; 2]>::default();
        let (terms, thread) = (Arc::clone(terms), Arc::clone(&terms.thread));
        let session_ref = Arc::downgrade(&session);
        let session_thread =
            SessionThread { session: session_ref, found, terms, _thread: thread, received, has_warned };
        thread::Builder::new()
            .name("serve-session".into())
            .stack_size(STACK)
            .spawn(move || session_thread.run())?;
        Ok(session)
    }

    pub(in crate::serve) fn process(&self) -> &Process {
        &self.process
    }

    /// The subject for verbs, which use this connection for requests that leave no state on it.
    pub(in crate::serve) fn subject(&self) -> Subject {
        let (errands, pending) = (self.errands.clone(), Arc::clone(&self.pending));
        Subject::shared(Shared { process: self.process.clone(), errands, pending })
    }

    /// The number of its process, and of its start.
    pub(in crate::serve) fn identity(&self) -> Identity {
        (self.process.pid, self.process.start_ticks)
    }

    /// Its user, if that is another one.
    pub(in crate::serve) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Its name for metrics, once it has said who it is.
    pub(in crate::serve) fn origin(&self) -> Option<Arc<Origin>> {
        self.origin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Learns its name. A process may become another program.
    fn name(&self, hello: &Hello) {
        let mut origin = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        if !origin.as_ref().is_some_and(|origin| origin.is_of(hello)) {
            let Process { pid, start_ticks, .. } = self.process;
            let user = self.user.clone();
            *origin = Some(Arc::new(Origin { user, ..Origin::of(pid, start_ticks, hello) }));
        }
    }

    /// Its priority among the processes that could have a session.
    pub(super) fn priority(&self) -> Priority {
        match self.origin() {
            Some(_) => Priority::Answers,
            None if self.begun.elapsed() < GREETING => Priority::New,
            None => Priority::Mute,
        }
    }

    pub(in crate::serve) fn phase(&self) -> SessionPhase {
        self.state.borrow().phase.clone()
    }

    /// Whether it is not this user's to look into.
    pub(super) fn is_denied(&self) -> bool {
        matches!(&self.state.borrow().phase, SessionPhase::Refused(report) if report.exit == Exit::Denied)
    }

    pub(in crate::serve) fn has_ended(&self) -> bool {
        matches!(self.state.borrow().phase, SessionPhase::Ended)
    }

    /// For how long readers have waited for a snapshot in vain.
    pub(in crate::serve) fn silent_for(&self) -> Option<Duration> {
        self.wanted().map(|wanted| wanted.since.elapsed())
    }

    /// Waits until it has sent its hello, or has refused to; at most `within` from its appearance.
    pub(super) async fn introduced(&self, within: Duration) {
        let mut states = self.state.subscribe();
        let since = self.wanted().map_or_else(Instant::now, |wanted| wanted.since);
        let has_come = states.wait_for(|state| !matches!(state.phase, SessionPhase::Coming));
        let _ = tokio::time::timeout_at((since + within).into(), has_come).await;
    }

    /// A snapshot of that age at most; `None` if none has come in time, counted from when a reader
    /// wanted it first.
    pub(super) async fn snapshot(
        self: &Arc<Self>,
        part: StatPart,
        age: Duration,
        within: Duration,
    ) -> Option<Arc<Snapshot>> {
        let mut states = self.state.subscribe();
        let asked = Instant::now();
        let mut since = None;
        loop {
            {
                let state = states.borrow_and_update();
                let is_young = |snapshot: &Snapshot| snapshot.at >= asked || asked - snapshot.at < age;
                let is_it = |snapshot: &&Arc<Snapshot>| is_young(snapshot) && snapshot.part >= part;
                if let Some(snapshot) = state.snapshot.as_ref().filter(is_it) {
                    return Some(Arc::clone(snapshot));
                }
                match state.phase {
                    SessionPhase::Ended => return None,
                    SessionPhase::Refused(_) if since.is_some() => return None,
                    SessionPhase::Refused(_) if state.refused.is_some_and(|at| at.elapsed() < AGAIN) => {
                        return None;
                    }
                    _ => {}
                }
            }
            // A snapshot that came may contain less than this one must.
            let wanted = want(self, part);
            let since = *since.get_or_insert(wanted);
            let changed = tokio::time::timeout_at((since + within).into(), states.changed()).await;
            if !matches!(changed, Ok(Ok(()))) {
                return None;
            }
        }
    }

    fn wanted(&self) -> std::sync::MutexGuard<'_, Option<Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_phase(&self, phase: SessionPhase) {
        let is_refusal = matches!(phase, SessionPhase::Refused(_));
        if is_refusal || matches!(phase, SessionPhase::Ended) {
            *self.wanted() = None;
        }
        self.state.send_modify(|state| {
            state.refused = is_refusal.then(Instant::now);
            state.phase = phase;
        });
    }

    /// The last snapshot, if its exemplars serve for a new one with that part. Those of a user
    /// whose answers are bounded are not kept: the budget counts what an answer holds by its bytes.
    fn kept(&self, part: StatPart) -> Option<Arc<Snapshot>> {
        let State { phase, snapshot, .. } = &*self.state.borrow();
        let SessionPhase::Answers(hello) = phase else { return None };
        let has_exemplars = |part: StatPart| part >= StatPart::Exemplars;
        let serves = |last: &&Arc<Snapshot>| {
            Arc::ptr_eq(&last.hello, hello) && has_exemplars(last.part) && last.room.is_none()
        };
        snapshot.as_ref().filter(|_| has_exemplars(part)).filter(serves).cloned()
    }

    /// Takes a snapshot; a failure ends the conversation.
    fn take_snapshot(&self, client: &mut Client) -> Option<Failure> {
        let part = self.wanted().map_or(StatPart::Histograms, |wanted| wanted.part);
        let known = self.kept(part);
        let exemplars_since_ns = known.as_ref().map(|known| known.stat.mono_ns);
        let most_bytes = client.longest().map(|longest| longest.saturating_sub(AROUND) as u64);
        let mut stat = match client.call(StatRequest { part: Some(part), exemplars_since_ns, most_bytes }) {
            Ok(stat) => stat,
            // The conversation goes on, for `wake`.
            Err(Failure::Said(report)) if report.code == Some(Code::Asleep) => {
                self.set_phase(SessionPhase::Refused(Arc::new(*report)));
                return None;
            }
            Err(failure) => return Some(failure),
        };
        // An older service answers with all of it.
        let part = if stat.columns.is_some() { part } else { StatPart::Groups };
        let groups_left_out = shrink(&mut stat, &self.terms.events);
        stat.left_out = stat.left_out.filter(|of| *of != dormouse_protocol::LeftOut::default());
        if let Some(left_out) = stat.left_out
            && !self.is_shortened.swap(true, Ordering::Relaxed)
        {
            let (who, notice) = (describe(&self.process), left_out.notice());
            say(format_args!("{FAIR}warning:{FAIR:#} {who}: {notice}; run dormouse serve as its user"));
        }
        if let Some(known) = known {
            stat.keep_exemplars(&known.stat);
        }
        let mut room = client.keep_room();
        if room.as_mut().is_some_and(|room| !room.fit_rows(rows_bytes(&stat))) {
            return Some(client.without_room());
        }
        // It was asleep, and counts nothing for this conversation: another one begins. If sleep and
        // wake came between two readings, only the missing figures show it.
        let woken = || Failure::failed("it was woken");
        let SessionPhase::Answers(hello) = self.phase() else { return Some(woken()) };
        let last = self.state.borrow().snapshot.clone().filter(|last| Arc::ptr_eq(&last.hello, &hello));
        if hello.asleep.is_some() || last.is_some_and(|last| lacks(&stat, &last.stat)) {
            return Some(woken());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (unix_ms, at) = (now.as_millis() as u64, Instant::now());
        let (whole, news) = Default::default();
        let snapshot =
            Arc::new(Snapshot { hello, stat, groups_left_out, room, part, at, unix_ms, whole, news });
        *self.wanted() = None;
        let mut last = None;
        self.state.send_modify(|state| last = state.snapshot.replace(snapshot));
        // Readers have the new one before the rows of the last one are freed.
        drop(last);
        None
    }
}

/// Requests a snapshot with that part of an answer, and returns since when one has been wanted.
fn want(session: &Arc<ServiceSession>, part: StatPart) -> Instant {
    let mut wanted = session.wanted();
    let wanted = wanted.get_or_insert_with(|| {
        let of = Arc::downgrade(session);
        // Without the thread the service has ended, and there is no snapshot.
        let _ = session.errands.send(Errand::new(move |client| {
            let (client, session) = (client.ok()?, of.upgrade()?);
            // The snapshot with which a new connection begins was that one.
            let is_wanted = session.wanted().is_some();
            is_wanted.then(|| session.take_snapshot(client)).flatten()
        }));
        Wanted { since: Instant::now(), part }
    });
    wanted.part = wanted.part.max(part);
    wanted.since
}

/// The thread's part.
struct SessionThread {
    session: std::sync::Weak<ServiceSession>,
    found: Found,
    terms: Arc<Terms>,
    _thread: Arc<()>,
    received: Receiver<Errand>,
    /// Whether a message has named this lack of the service's, by [`Lack`].
    has_warned: [Cell<bool>; 2],
}

impl SessionThread {
    fn run(self) {
        let finder = Finder::new();
        let mut next = None;
        while self.converse(&finder, &mut next) {}
    }

    /// Talks until the conversation ends, beginning with `next`; false: nobody is left to talk to,
    /// or for.
    ///
    /// A conversation that a verb has broken begins anew at once, because the service counts only
    /// while there is one; but not one that hardly began, since it would break again.
    fn converse(&self, finder: &Finder, next: &mut Option<Errand>) -> bool {
        let start = Instant::now();
        let begun = self.begin(finder);
        let is_begun = begun.is_ok();
        let Some(session) = self.session.upgrade() else { return false };
        let failure = match begun {
            Ok((mut client, hello)) => {
                session.name(&hello);
                session.set_phase(SessionPhase::Answers(hello));
                let broken = session.take_snapshot(&mut client);
                drop(session);
                match broken.map_or_else(|| self.serve(&mut client, next), Some) {
                    Some(failure) => failure,
                    None => return false,
                }
            }
            Err(failure) => failure,
        };
        let Some(session) = self.session.upgrade() else { return false };
        let report = report_of(failure);
        if let Some(errand) = next.take() {
            errand.run(Err(&report));
        }
        if !self.is_there(finder) || report.exit == Exit::NoTarget {
            session.set_phase(SessionPhase::Ended);
            return false;
        }
        if is_begun && start.elapsed() >= AGAIN {
            return true;
        }
        session.set_phase(SessionPhase::Refused(Arc::new(report)));
        drop(session);
        *next = self.next_errand();
        next.is_some()
    }

    fn begin(&self, finder: &Finder) -> Outcome<(Client, Arc<Hello>)> {
        let (mut client, hello) = Client::reach_again(finder, &self.found, GREETING)?;
        client.refuse_longer(LONGEST_ANSWER);
        if hello.asleep.is_some() {
            return Ok((client, Arc::new(shortened(hello, &self.found.process))));
        }
        self.terms.ask(&mut client, |lack, why| self.warn(lack, why))?;
        client.be_patient(PATIENCE);
        Ok((client, Arc::new(shortened(hello, &self.found.process))))
    }

    /// Says once what the service lacks.
    fn warn(&self, lack: Lack, why: &str) {
        if !self.has_warned[lack as usize].replace(true) {
            let who = describe(&self.found.process);
            say(format_args!("{FAIR}warning:{FAIR:#} {who} {}: {why}", lack.words()));
        }
    }

    /// Runs the errands that it receives, `next` first. A failure ends the session; `None` means
    /// that no reader is left.
    fn serve(&self, client: &mut Client, next: &mut Option<Errand>) -> Option<Failure> {
        loop {
            let errand = next.take().or_else(|| self.next_errand())?;
            if let Some(failure) = errand.run(Ok(client)) {
                return Some(failure);
            }
        }
    }

    /// Waits for the next errand; `None` if there will be none.
    fn next_errand(&self) -> Option<Errand> {
        loop {
            match self.received.recv_timeout(CHECK) {
                Ok(errand) => return Some(errand),
                Err(RecvTimeoutError::Timeout) if self.session.strong_count() > 0 => {}
                Err(_) => return None,
            }
        }
    }

    /// Whether the process that was found is still there.
    fn is_there(&self, finder: &Finder) -> bool {
        let process = &self.found.process;
        let now = finder.process(&Target::Pid(process.pid));
        now.is_ok_and(|now| now.start_ticks == process.start_ticks)
    }
}

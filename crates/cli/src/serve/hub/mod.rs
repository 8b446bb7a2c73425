//! The services of this host, and the last snapshot of each.
//!
//! Each has a *session*: a thread with a conversation of its own ([`session`]), so a stopped
//! service delays only its own thread. A snapshot is taken when a client wants one and the last is
//! old; clients that want one meanwhile share it. Without clients no snapshot is taken, and the
//! services count on, so that their counters have no holes.
//!
//! Services come and go: [`Hub::refresh`] reads the kernel's list, about once a second at most.

mod admission;
mod figures;
mod introduction;
mod session;
mod terms;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dormouse_protocol::StatPart;

use crate::client::room::AnswerBudget;
use crate::exit::{Exit, Failure, Outcome, Report};
use crate::output::{FAIR, say};
use crate::target::{Finder, Found, Process, Target, closest, describe};
use crate::user;

use admission::{Candidate, Priority};
pub(super) use session::{SampleEvent, ServiceSession, SessionPhase, Snapshot};
pub(super) use terms::Terms;

/// The list of services is read at most this often, and at least this often.
const SCAN: Duration = Duration::from_secs(1);
const IDLE_SCAN: Duration = Duration::from_secs(3);

/// A snapshot that is younger than this is shared: a little less than a second, so that a client
/// that asks once a second gets a new one each time.
const FRESH: Duration = Duration::from_millis(900);

/// How long to wait for a snapshot. After that the service counts as not there, for now.
pub(super) const WITHIN: Duration = Duration::from_secs(1);

/// The most services; each takes a thread and a connection.
const MOST: usize = 1024;

/// Threads of sessions, including those of sessions that were taken away and still wait for an
/// answer.
const MOST_THREADS: usize = MOST + 256;

/// A process, and the number of its start, so that no later process is taken for it.
pub(super) type Identity = (u32, u64);

/// The services.
#[derive(Debug, Clone)]
pub(super) struct Hub {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    targets: Vec<Target>,
    /// The users whose services are meant; none: all.
    users: Vec<u32>,
    terms: Arc<Terms>,
    sessions: Mutex<Sessions>,
    /// When the list was read last; held while it is being read.
    scanned: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Sessions {
    open: BTreeMap<Identity, Arc<ServiceSession>>,
    /// The processes that have lost their session because they never said hello.
    mute: BTreeSet<Identity>,
    /// How many processes have no session.
    left_out: usize,
}

/// A service and its snapshot: `None` if it does not answer.
#[derive(Debug, Clone)]
pub(super) struct ServiceSnapshot {
    pub(super) session: Arc<ServiceSession>,
    pub(super) snapshot: Option<Arc<Snapshot>>,
}

fn is_meant(target: &Target, process: &Process) -> bool {
    match target {
        Target::Pid(pid) => *pid == process.pid,
        Target::Name(name) => process.is_named(name),
        Target::Exact(pid, start) => (*pid, *start) == (process.pid, process.start_ticks),
        Target::File(_) => false,
    }
}

impl Hub {
    /// A hub of these services, of these users; of all where a list is empty.
    pub(super) fn new(targets: Vec<Target>, users: Vec<u32>, terms: Terms) -> Hub {
        AnswerBudget::begin();
        let terms = Arc::new(terms);
        let (sessions, scanned) = Default::default();
        Hub { inner: Arc::new(Inner { targets, users, terms, sessions, scanned }) }
    }

    /// Reads the list of services again and again, for as long as the server runs.
    pub(super) async fn keep(self) {
        loop {
            // A client that requests the list gets the error.
            let _ = self.refresh(IDLE_SCAN).await;
            tokio::time::sleep(IDLE_SCAN).await;
        }
    }

    /// Reads the list of services if it is older than that.
    async fn refresh(&self, age: Duration) -> Outcome<()> {
        let mut scanned = self.inner.scanned.lock().await;
        if scanned.is_some_and(|at| at.elapsed() < age) {
            return Ok(());
        }
        let found = tokio::task::spawn_blocking(|| Finder::new().all()).await;
        let found =
            found.map_err(|error| Failure::failed(format!("cannot look for services: {error}")))??;
        self.take(found);
        *scanned = Some(Instant::now());
        Ok(())
    }

    /// Opens sessions with processes that came, and ends those of processes that left, or that have
    /// a worse claim ([`admission`]).
    fn take(&self, found: Vec<Found>) {
        let me = std::process::id();
        let wanted = found.into_iter().filter(|found| found.process.pid != me && self.is_wanted(found));
        let mut here: BTreeMap<Identity, Found> =
            wanted.map(|found| ((found.process.pid, found.process.start_ticks), found)).collect();
        let mut sessions = self.inner.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let Sessions { open, mute, left_out } = &mut *sessions;
        mute.retain(|identity| here.contains_key(identity));
        let candidate = |(&identity, found): (&Identity, &Found)| {
            let priority = match open.get(&identity) {
                Some(session) => session.priority(),
                None if mute.contains(&identity) => Priority::Mute,
                None => Priority::New,
            };
            Candidate { identity, uid: found.process.uid, priority }
        };
        let chosen = admission::choose(&here.iter().map(candidate).collect::<Vec<_>>(), MOST);
        open.retain(|identity, session| {
            let keeps = chosen.contains(identity) && !session.has_ended();
            if here.contains_key(identity) && !keeps && session.priority() == Priority::Mute {
                mute.insert(*identity);
            }
            keeps
        });
        let all = here.len();
        for identity in chosen {
            let may_start = |found: &Found| {
                let threads = Arc::strong_count(&self.inner.terms.thread);
                threads <= MOST_THREADS || user::distance(found.process.uid) < 2
            };
            if let Entry::Vacant(place) = open.entry(identity)
                && let Some(found) = here.remove(&identity).filter(may_start)
                && let Ok(session) = ServiceSession::start(found, &self.inner.terms)
            {
                place.insert(session);
            }
        }
        let without = all - open.len();
        if (without > 0) != (*left_out > 0) {
            say_left_out(without);
        }
        *left_out = without;
    }

    /// How many processes have no session.
    pub(super) fn left_out(&self) -> usize {
        self.inner.sessions.lock().unwrap_or_else(PoisonError::into_inner).left_out
    }

    fn is_wanted(&self, found: &Found) -> bool {
        let process = &found.process;
        let Inner { targets, users, .. } = &*self.inner;
        let is_user_meant = users.is_empty() || users.contains(&process.uid);
        is_user_meant && (targets.is_empty() || targets.iter().any(|target| is_meant(target, process)))
    }

    /// The targets that no service here is; none if that is not known.
    pub(super) async fn missing(&self) -> Vec<String> {
        let Ok(services) = self.services().await else { return Vec::new() };
        let is_here = |target: &&Target| services.iter().any(|session| is_meant(target, session.process()));
        self.inner.targets.iter().filter(|target| !is_here(target)).map(Target::to_string).collect()
    }

    fn sessions(&self) -> Vec<Arc<ServiceSession>> {
        let sessions = self.inner.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.open.values().filter(|session| !session.has_ended()).cloned().collect()
    }

    /// All services, by process id. Those that came just now have said who they are, or that they
    /// do not answer.
    pub(super) async fn services(&self) -> Outcome<Vec<Arc<ServiceSession>>> {
        self.refresh(SCAN).await?;
        let sessions = self.sessions();
        let all = sessions.iter().map(|session| {
            let session = Arc::clone(session);
            tokio::spawn(async move { session.introduced(WITHIN).await })
        });
        for introduced in all.collect::<Vec<_>>() {
            let _ = introduced.await;
        }
        Ok(sessions.into_iter().filter(|session| !session.has_ended()).collect())
    }

    /// All services with a snapshot that is less than a second old, in a second at most; without
    /// those of others that nobody has named.
    pub(super) async fn snapshots(&self, part: StatPart) -> Outcome<Vec<ServiceSnapshot>> {
        let ask = |session: Arc<ServiceSession>| {
            tokio::spawn(async move {
                let snapshot = session.snapshot(part, FRESH, WITHIN).await;
                ServiceSnapshot { session, snapshot }
            })
        };
        let identified = |session: Arc<ServiceSession>| (session.identity(), session);
        // Those that are known answer while the list is read.
        let known = self.sessions().into_iter().map(identified);
        let mut asked: BTreeMap<_, _> = known.map(|(identity, session)| (identity, ask(session))).collect();
        self.refresh(SCAN).await?;
        let here = self.sessions().into_iter().map(identified);
        let here = here.map(|(identity, session)| asked.remove(&identity).unwrap_or_else(|| ask(session)));
        let mut services = Vec::new();
        // All have begun before the first is waited for.
        for snapshot in here.collect::<Vec<_>>() {
            services.extend(snapshot.await);
        }
        let is_named = !self.inner.targets.is_empty();
        services.retain(|ServiceSnapshot { session, .. }| {
            !session.has_ended() && (is_named || !session.is_denied())
        });
        Ok(services)
    }

    /// A snapshot of one service, with all figures of groups.
    pub(super) async fn snapshot(&self, session: &Arc<ServiceSession>) -> Option<Arc<Snapshot>> {
        session.snapshot(StatPart::Groups, FRESH, WITHIN).await
    }

    /// The service of that id or name.
    pub(super) async fn find(&self, name: &str) -> Outcome<Arc<ServiceSession>> {
        let mut found = self.named(name);
        if found.is_empty() {
            // It may have come since.
            self.refresh(Duration::from_millis(50)).await?;
            found = self.named(name);
        }
        one_of(found, || format!("no service here is {name:?}"))
    }

    /// The only service.
    pub(super) async fn only(&self) -> Outcome<Arc<ServiceSession>> {
        self.refresh(SCAN).await?;
        one_of(closest(self.sessions(), |session| session.process()), || {
            "no process with dormouse in it is here".into()
        })
    }

    fn named(&self, name: &str) -> Vec<Arc<ServiceSession>> {
        let sessions = self.sessions().into_iter();
        if let Ok(Target::Pid(pid)) = name.parse() {
            return sessions.filter(|session| session.process().pid == pid).collect();
        }
        let named = sessions.filter(|session| session.process().is_named(name));
        closest(named.collect(), |session| session.process())
    }
}

fn one_of(
    mut found: Vec<Arc<ServiceSession>>,
    none: impl FnOnce() -> String,
) -> Outcome<Arc<ServiceSession>> {
    let list: Vec<String> = found.iter().take(8).map(|session| describe(session.process())).collect();
    match (found.len(), found.pop()) {
        (1, Some(session)) => Ok(session),
        (0, _) => Err(Failure::new(Exit::NoTarget, none()).hint("/api/processes lists the services")),
        (n, _) => Err(Failure::new(Exit::Usage, format!("{n} services are meant: {}", list.join(", ")))
            .hint("give the id of the one that is meant: pid=…")),
    }
}

fn say_left_out(without: usize) {
    if without > 0 {
        let first = "those of this user and of root come first, and other users share the rest";
        say(format_args!("{FAIR}warning:{FAIR:#} {without} services find no room beside {MOST}: {first}"));
    } else {
        say("all services are served again");
    }
}

/// The report of a failure that has one.
pub(super) fn report_of(failure: Failure) -> Report {
    match failure {
        Failure::Said(report) => *report,
        Failure::StdoutClosed => Report {
            exit: Exit::Failed,
            message: "it was closed".into(),
            near: Vec::new(),
            hint: None,
            has_hung_up: true,
            code: None,
        },
    }
}

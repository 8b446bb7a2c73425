//! The live stream of a service: its figures once a second, as server-sent events.
//!
//! | event | says |
//! |---|---|
//! | `sample` | the figures: first of all groups, then of those that have changed |
//! | `silent` | the service does not answer: it may be stopped |
//! | `end` | the service has ended, or refuses; or the server ends |
//!
//! A sample has each group's figures in each window ([`super::windows`]), and as its `tick` what
//! the group has used since the last sample that this reader took: a reader that is slow gets fewer
//! samples and loses nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::response::Response;
use dormouse_protocol::figures::{percent, ratio};
use dormouse_protocol::{Clock, ExemplarRow, GroupRow, Stat};
use dormouse_statistics::buckets::EXPORTED_SCALE;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::answers::{EVENTS, busy, bytes};
use super::flow::{self, BodyWriter, Gone, HEARTBEAT};
use super::hub::{Hub, Identity, SampleEvent, ServiceSession, SessionPhase, Snapshot};
use super::windows::{GroupWindow, History, ProcessWindow, WindowCalls, Windows};
use crate::output::as_document;

/// Streams at once.
const MOST: usize = 64;

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);

/// How long readings are kept for a reader who comes back, as a page that was hidden.
const KEPT: Duration = Duration::from_secs(600);

/// After that time without a sample readings have no reader.
const UNREAD: Duration = Duration::from_secs(30);

/// The services whose readings are kept after their readers have left.
const MOST_KEPT: usize = 4;

/// The rows of groups that all readings have in all, some 120 MB if each has times of tasks.
const MOST_ROWS: usize = 48_000;

/// The places for streams.
#[derive(Debug)]
pub(super) struct LiveStreams {
    places: Arc<Semaphore>,
    histories: Histories,
    /// True once the server ends.
    end: watch::Receiver<bool>,
}

/// The readings of a process, by its number and start, and when they were wanted last.
type Histories = Arc<Mutex<HashMap<Identity, (Arc<Mutex<History>>, Instant)>>>;

#[derive(Serialize)]
struct SampleBody<'a> {
    unix_ms: u64,
    pid: u32,
    name: &'a str,
    /// Whether all groups are in it.
    full: bool,
    /// The time since the sample before; null for the first.
    elapsed_ns: Option<u64>,
    /// How many threads there are; null if the service could not list them.
    threads: Option<u64>,
    keys_on: usize,
    dropped: u64,
    clock: Option<&'a Clock>,
    cpu_refused: Option<&'a str>,
    /// Resident memory of dormouse itself.
    own_bytes: Option<u64>,
    /// Whether that is an upper bound.
    own_bytes_is_most: bool,
    /// The parts of dormouse that its limit has put to sleep, and why.
    limited: Option<&'a str>,
    /// The objectives that match no group.
    unmatched: &'a [String],
    /// A sentence about the figures that its answers leave out, because they would be too long.
    left_out: Option<String>,
    windows: [ProcessWindow; 4],
    groups: Vec<LiveGroup<'a>>,
}

/// A group: its totals, and its figures.
#[derive(Serialize)]
struct LiveGroup<'a> {
    id: u32,
    name: &'a str,
    alive: u64,
    started: u64,
    requests: u64,
    /// Null where it is refused.
    cpu_ns: Option<u64>,
    slowest_ns: Option<u64>,
    slowest_task: Option<u64>,
    exemplars: &'a [ExemplarRow],
    tick: Option<Tick>,
    windows: [GroupWindow; 4],
}

/// The last sample that a reader has taken.
struct Seen {
    snapshot: Arc<Snapshot>,
    /// When its windows began.
    oldest_ns: u64,
}

/// The use of a group since the sample before.
#[derive(Serialize)]
struct Tick {
    cpu_percent: Option<f64>,
    requests_per_s: f64,
    /// Index and count of the buckets of requests that ended.
    latency: Vec<(i32, u64)>,
}

#[derive(Serialize)]
struct SilentBody {
    since_ms: u64,
}

#[derive(Serialize)]
struct EndBody {
    /// Whether the process has ended; else it may be asked again.
    ended: bool,
    reason: String,
}

impl LiveStreams {
    pub(super) fn new(end: watch::Receiver<bool>) -> LiveStreams {
        LiveStreams { places: Arc::new(Semaphore::new(MOST)), histories: Histories::default(), end }
    }

    /// Drops the readings of services that nobody has read for long, again and again.
    pub(super) async fn tidy(&self) {
        loop {
            forget(&mut self.histories.lock().unwrap_or_else(PoisonError::into_inner));
            tokio::time::sleep(KEPT / 10).await;
        }
    }

    /// The stream of a service.
    pub(super) fn stream(&self, hub: Hub, session: Arc<ServiceSession>) -> Response {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return busy(&format!("{MOST} streams are being read"));
        };
        let (writer, body) = flow::body();
        let (histories, mut end) = (Arc::clone(&self.histories), self.end.clone());
        tokio::spawn(async move {
            let _place = place;
            // The reader that leaves ends it.
            let _ = tokio::select! {
                told = tell(&hub, &session, &histories, &writer) => told,
                () = writer.left() => Err(Gone),
                () = flow::over(&mut end) => {
                    let reason = "the server ends".to_owned();
                    writer.event("end", &as_document(&EndBody { ended: false, reason })).await
                }
            };
        });
        bytes(EVENTS, body)
    }
}

/// The readings of a service, and the rows that they may have.
fn history(histories: &Histories, session: &ServiceSession) -> (Arc<Mutex<History>>, usize) {
    let mut all = histories.lock().unwrap_or_else(PoisonError::into_inner);
    let (history, wanted) = all.entry(session.identity()).or_insert_with(|| (Arc::default(), Instant::now()));
    *wanted = Instant::now();
    let history = Arc::clone(history);
    forget(&mut all);
    (history, MOST_ROWS / all.len().max(MOST_KEPT))
}

/// Drops the readings of services that nobody has read for [`KEPT`]. Of those that nobody reads
/// now, it drops the oldest until at most [`MOST_KEPT`] are left.
fn forget(all: &mut HashMap<Identity, (Arc<Mutex<History>>, Instant)>) {
    all.retain(|_, (_, wanted)| wanted.elapsed() < KEPT);
    while all.len() > MOST_KEPT {
        let oldest = all.iter().min_by_key(|(_, (_, wanted))| *wanted);
        // A stream wants its readings once a second, unless the service is stopped.
        let Some((&identity, _)) = oldest.filter(|(_, (_, wanted))| wanted.elapsed() > UNREAD) else {
            return;
        };
        all.remove(&identity);
    }
}

async fn tell(
    hub: &Hub,
    session: &Arc<ServiceSession>,
    histories: &Histories,
    writer: &BodyWriter,
) -> Result<(), Gone> {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last, mut is_silent, mut told): (Option<Seen>, _, _) = (None, false, Instant::now());
    loop {
        ticks.tick().await;
        // First wait for the reader, then take the snapshot: a slow reader gets the newest.
        writer.ready().await?;
        let snapshot = hub.snapshot(session).await;
        match (snapshot, session.phase()) {
            (Some(snapshot), _) => {
                if last.as_ref().is_some_and(|last| last.snapshot.at == snapshot.at) {
                    continue;
                }
                // A new conversation begins anew: no difference to a snapshot of the one before.
                let before = last.take().filter(|last| Arc::ptr_eq(&last.snapshot.hello, &snapshot.hello));
                let (pid, now) = (session.process().pid, Arc::clone(&snapshot));
                let history = history(histories, session);
                let event = spawn_blocking(move || event(pid, history, &now, before.as_ref())).await;
                let SampleEvent { event, oldest_ns } = event.map_err(|_| Gone)?;
                writer.write(event).await?;
                (last, is_silent, told) = (Some(Seen { snapshot, oldest_ns }), false, Instant::now());
            }
            (None, SessionPhase::Ended) => {
                let reason = "the process has ended".to_owned();
                return writer.event("end", &as_document(&EndBody { ended: true, reason })).await;
            }
            (None, SessionPhase::Refused(report)) => {
                let reason = report.message.clone();
                return writer.event("end", &as_document(&EndBody { ended: false, reason })).await;
            }
            (None, _) if !is_silent => {
                let since_ms = session.silent_for().unwrap_or_default().as_millis() as u64;
                writer.event("silent", &as_document(&SilentBody { since_ms })).await?;
                (is_silent, told) = (true, Instant::now());
            }
            (None, _) if told.elapsed() >= HEARTBEAT => {
                writer.beat().await?;
                told = Instant::now();
            }
            (None, _) => {}
        }
    }
}

/// The event for somebody who has seen `last`. All who read at the same pace share one.
fn event(
    pid: u32,
    (history, most_rows): (Arc<Mutex<History>>, usize),
    snapshot: &Arc<Snapshot>,
    last: Option<&Seen>,
) -> SampleEvent {
    let windows = || {
        let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
        history.add(snapshot, most_rows);
        history.windows(&snapshot.stat)
    };
    let make = || {
        let windows = windows();
        let document = as_document(&sample(pid, &windows, snapshot, last));
        let event = format!("event: sample\ndata: {document}\n\n").into();
        SampleEvent { event, oldest_ns: windows.oldest_ns }
    };
    let Some(last) = last else { return snapshot.whole.get_or_init(make).clone() };
    let seen = (last.snapshot.at, last.oldest_ns);
    let (since, event) = snapshot.news.get_or_init(|| (seen, make()));
    if *since == seen { event.clone() } else { make() }
}

fn sample<'a>(pid: u32, windows: &Windows, snapshot: &'a Snapshot, last: Option<&Seen>) -> SampleBody<'a> {
    let Snapshot { stat, unix_ms, hello, .. } = snapshot;
    let tick = last.map(|last| stat.since(&last.snapshot.stat));
    let is_new = |at: &usize| last.is_none_or(|last| windows.may_have_changed(*at, last.oldest_ns));
    let each = windows.each.each_ref().map(|window| (window, WindowCalls::of(window)));
    let groups = (0..stat.groups.len()).filter(is_new).map(|at| {
        let tick = tick.as_ref().map(|tick| Tick::of(&tick.groups[at], tick));
        let of_group = each.each_ref().map(|(window, calls)| {
            let is_refused = window.cpu_refused.is_some();
            GroupWindow::of(&stat.groups[at], &window.groups[at], calls, window.mono_ns, is_refused)
        });
        LiveGroup::of(&stat.groups[at], stat, tick, of_group)
    });
    SampleBody {
        unix_ms: *unix_ms,
        pid,
        name: &hello.name,
        full: last.is_none(),
        elapsed_ns: tick.as_ref().map(|tick| tick.mono_ns),
        threads: stat.thread_count(),
        keys_on: stat.keys_on,
        dropped: stat.dropped,
        clock: stat.clock.as_ref(),
        cpu_refused: stat.cpu_refused.as_deref(),
        own_bytes: stat.own.map(|own| own.memory_bytes),
        own_bytes_is_most: stat.own.is_some_and(|own| own.memory_is_most),
        limited: stat.limited.as_deref(),
        unmatched: &stat.unmatched,
        left_out: stat.left_out.map(|left_out| left_out.notice()),
        windows: windows.each.each_ref().map(ProcessWindow::of),
        groups: groups.collect(),
    }
}

impl<'a> LiveGroup<'a> {
    fn of(group: &'a GroupRow, stat: &Stat, tick: Option<Tick>, windows: [GroupWindow; 4]) -> LiveGroup<'a> {
        let requests = group.waits.as_ref().map(|waits| &waits.requests);
        LiveGroup {
            id: group.id,
            name: &group.name,
            alive: group.alive,
            started: group.started,
            requests: group.requests,
            cpu_ns: stat.cpu_refused.is_none().then_some(group.cpu_ns),
            slowest_ns: requests.map(|requests| requests.max_ns),
            slowest_task: requests.and_then(|requests| requests.max_task),
            exemplars: requests.map_or(&[], |requests| &requests.exemplars),
            tick,
            windows,
        }
    }
}

impl Tick {
    fn of(group: &GroupRow, tick: &Stat) -> Tick {
        Tick {
            cpu_percent: tick.cpu_refused.is_none().then(|| percent(group.cpu_ns, tick.mono_ns)),
            requests_per_s: ratio(group.requests, tick.mono_ns) * 1e9,
            latency: group
                .waits
                .as_ref()
                .map_or_else(Vec::new, |waits| waits.requests.clone().at_scale(EXPORTED_SCALE).buckets),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    use dormouse_protocol::{GroupRow, Hello, StatPart};
    use dormouse_testkit::viewers::printed;
    use dormouse_testkit::{assert_committed, skip};

    use crate::sample::totals::tests::answers;
    use crate::serve::page;

    fn snapshots(answers: [Stat; 2]) -> [Arc<Snapshot>; 2] {
        let hello = Arc::new(Hello::default());
        let begun = Instant::now().into_std();
        answers
            .map(|stat| Snapshot {
                hello: Arc::clone(&hello),
                unix_ms: 1_790_000_000_000 + stat.mono_ns / 1_000_000,
                at: begun + Duration::from_nanos(stat.mono_ns),
                stat,
                groups_left_out: 0,
                room: None,
                part: StatPart::Groups,
                whole: std::sync::OnceLock::new(),
                news: std::sync::OnceLock::new(),
            })
            .map(Arc::new)
    }

    /// The first sample of a reader is of this reading.
    fn seen(snapshot: &Arc<Snapshot>) -> Seen {
        Seen { snapshot: Arc::clone(snapshot), oldest_ns: snapshot.stat.mono_ns }
    }

    /// The data of the events for a reader who sees two answers of a service.
    fn events(answers: [Stat; 2]) -> String {
        let [first, then] = snapshots(answers);
        let mut history = History::default();
        history.add(&first, MOST_ROWS);
        let windows = history.windows(&first.stat);
        let whole = sample(7, &windows, &first, None);
        history.add(&then, MOST_ROWS);
        let windows = history.windows(&then.stat);
        let news = sample(7, &windows, &then, Some(&seen(&first)));
        format!("{}\n{}\n", as_document(&whole), as_document(&news))
    }

    /// The cells that the page shows after these events; `None` without node.
    fn cells(events: &str) -> Option<String> {
        if !Command::new("node").arg("--version").output().is_ok_and(|node| node.status.success()) {
            skip("node is not installed");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (scripts, events) = (file("scripts.js", &page::scripts_of_groups()), file("events", events));
        let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/figures/cells.mjs");
        Some(printed(Command::new("node").args([reader.as_ref(), &*scripts, &events]).output().unwrap()))
    }

    #[test]
    fn fixed_answers_give_the_committed_cells() {
        for (is_refused, name) in [(false, "page"), (true, "page_refused")] {
            let Some(shown) = cells(&events(answers(is_refused))) else { return };
            assert_committed(&format!("tests/figures/{name}.json"), &shown);
        }
    }

    #[test]
    fn refused_cpu_time_has_no_line() {
        for (is_refused, line) in [(false, "[0]"), (true, "[null]")] {
            let with_idle = answers(is_refused).map(|mut stat| {
                stat.groups.push(GroupRow { id: 99, name: "idle".into(), ..GroupRow::default() });
                stat
            });
            let Some(shown) = cells(&events(with_idle)) else { return };
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
            let groups = shown["last 1 s"].as_array().unwrap();
            let idle = groups.iter().find(|row| row["Group"] == "idle").unwrap();
            assert_eq!(idle["detail"]["charts"][0].to_string(), line);
        }
    }

    #[test]
    fn groups_of_another_program_are_gone() {
        let [_, then] = answers(false);
        let group =
            GroupRow { id: then.groups[0].id, name: "of another program".into(), ..GroupRow::default() };
        let other = events([(); 2].map(|()| Stat { groups: vec![group.clone()], ..then.clone() }));
        let last = other.lines().next().unwrap();
        let Some(shown) = cells(&format!("{}{last}", events(answers(false)))) else { return };
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let groups = shown["last 1 s"].as_array().unwrap();
        assert_eq!((groups.len(), &groups[0]["Group"]), (1, &"of another program".into()), "{groups:?}");
        assert!(
            !groups[0]["detail"]["charts"].to_string().contains(|c: char| c.is_ascii_digit()),
            "{groups:?}"
        );
    }

    #[test]
    fn readings_without_readers_are_dropped() {
        let now = Instant::now();
        let of = |pid, age| ((pid, 1), (Arc::default(), now - Duration::from_secs(age)));
        let read = (1..=3).map(|pid| of(pid, 0));
        let mut all: HashMap<_, _> = read.chain([of(4, 100), of(5, 200), of(6, 300), of(7, 700)]).collect();
        forget(&mut all);
        let mut left: Vec<u32> = all.keys().map(|(pid, _)| *pid).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 2, 3, 4]);
        all.extend((10..20).map(|pid| of(pid, 1)));
        forget(&mut all);
        assert_eq!(all.len(), 13, "all that are being read");
    }

    #[test]
    fn samples_have_what_changed() {
        let groups = |mono_ns, all: &[(u32, u64)]| {
            let group = |&(id, cpu_ns): &(u32, u64)| GroupRow { id, cpu_ns, ..GroupRow::default() };
            Stat { mono_ns, groups: all.iter().map(group).collect(), ..Stat::default() }
        };
        let [first, then] =
            snapshots([groups(1_000, &[(1, 5), (2, 5)]), groups(2_000, &[(1, 5), (2, 6), (3, 0)])]);
        let mut history = History::default();
        history.add(&first, MOST_ROWS);
        history.add(&then, MOST_ROWS);
        let windows = history.windows(&then.stat);
        let ids = |of: SampleBody<'_>| of.groups.iter().map(|group| group.id).collect::<Vec<_>>();
        assert_eq!(ids(sample(7, &windows, &then, Some(&seen(&first)))), [2, 3]);
        assert_eq!(ids(sample(7, &windows, &then, None)), [1, 2, 3]);
        // They are in a window yet.
        let again = Seen { oldest_ns: windows.oldest_ns, ..seen(&then) };
        assert_eq!(ids(sample(7, &windows, &then, Some(&again))), [2, 3]);
    }
}

//! A service while somebody looks at it: its totals once a second, as server-sent events.
//!
//! | event | says |
//! |---|---|
//! | `sample` | the totals: first of all groups and threads, then of those that have changed |
//! | `silent` | the service does not answer: it may be stopped |
//! | `end` | the service has ended, or refuses |
//!
//! All numbers are totals, and each sample is made against the last one that this reader took: a
//! reader that is slow gets fewer samples and loses nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use dormouse_protocol::{Stat, ThreadStat};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::answers::{EVENTS, busy, bytes};
use super::flow::{self, Gone, HEARTBEAT, Pen};
use super::hub::{Hub, Look, Seat, Standing};
use crate::output::as_document;

/// Streams at once.
const MOST: usize = 64;

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);

/// The places for streams.
#[derive(Debug)]
pub(super) struct Gallery {
    places: Arc<Semaphore>,
}

#[derive(Serialize)]
struct SampleBody<'a> {
    unix_ms: u64,
    pid: u32,
    name: &'a str,
    /// Whether all groups and threads are in it.
    full: bool,
    stat: Stat,
    /// Threads that were in an earlier sample and have ended.
    ended_threads: Vec<u32>,
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

impl Gallery {
    pub(super) fn new() -> Gallery {
        Gallery { places: Arc::new(Semaphore::new(MOST)) }
    }

    /// The stream of a service.
    pub(super) fn stream(&self, hub: Hub, seat: Arc<Seat>) -> Response {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return busy(&format!("{MOST} streams are being read"));
        };
        let (pen, body) = flow::body();
        tokio::spawn(async move {
            let _place = place;
            // The reader that leaves ends it.
            let _ = tokio::select! {
                told = tell(&hub, &seat, &pen) => told,
                () = pen.left() => Err(Gone),
            };
        });
        bytes(EVENTS, body)
    }
}

async fn tell(hub: &Hub, seat: &Arc<Seat>, pen: &Pen) -> Result<(), Gone> {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last, mut is_silent, mut told): (Option<Arc<Look>>, _, _) = (None, false, Instant::now());
    loop {
        ticks.tick().await;
        // First the reader, then the look: a slow one gets the newest.
        pen.ready().await?;
        let look = hub.look(seat).await;
        match (look, seat.standing()) {
            (Some(look), _) => {
                if last.as_ref().is_some_and(|last| last.at == look.at) {
                    continue;
                }
                let (seat, now, before) = (Arc::clone(seat), Arc::clone(&look), last.clone());
                let event = spawn_blocking(move || event(&seat, &now, before.as_deref())).await;
                pen.write(event.map_err(|_| Gone)?).await?;
                (last, is_silent, told) = (Some(look), false, Instant::now());
            }
            (None, Standing::Ended) => {
                let reason = "the process has ended".to_owned();
                return pen.event("end", &as_document(&EndBody { ended: true, reason })).await;
            }
            (None, Standing::Refused(report)) => {
                let reason = report.message.clone();
                return pen.event("end", &as_document(&EndBody { ended: false, reason })).await;
            }
            (None, _) if !is_silent => {
                let since_ms = seat.silent_for().unwrap_or_default().as_millis() as u64;
                pen.event("silent", &as_document(&SilentBody { since_ms })).await?;
                (is_silent, told) = (true, Instant::now());
            }
            (None, _) if told.elapsed() >= HEARTBEAT => {
                pen.beat().await?;
                told = Instant::now();
            }
            (None, _) => {}
        }
    }
}

/// The event for somebody who has seen `last`. All who read at the same pace share one.
fn event(seat: &Seat, look: &Look, last: Option<&Look>) -> Bytes {
    let make = || {
        format!("event: sample\ndata: {}\n\n", as_document(&sample(seat.process().pid, look, last))).into()
    };
    let Some(last) = last else { return look.whole.get_or_init(make).clone() };
    let (since, event) = look.news.get_or_init(|| (last.at, make()));
    if *since == last.at { event.clone() } else { make() }
}

fn sample<'a>(pid: u32, look: &'a Look, last: Option<&Look>) -> SampleBody<'a> {
    let (stat, ended_threads) = match last {
        None => (look.stat.clone(), Vec::new()),
        Some(last) => changed(&look.stat, &last.stat),
    };
    let (unix_ms, name) = (look.unix_ms, &*look.hello.name);
    SampleBody { unix_ms, pid, name, full: last.is_none(), stat, ended_threads }
}

/// The part that has changed since, and the threads that have ended.
fn changed(now: &Stat, before: &Stat) -> (Stat, Vec<u32>) {
    // Groups stay where they are for ever.
    let groups = now.groups.iter().enumerate().filter(|(at, group)| before.groups.get(*at) != Some(*group));
    let by_tid = |of: &'_ Stat| of.threads.iter().enumerate().map(|(at, of)| (of.tid, at)).collect();
    let (here, there): (HashMap<u32, usize>, HashMap<u32, usize>) = (by_tid(now), by_tid(before));
    let is_same = |of: &&ThreadStat| there.get(&of.tid).is_some_and(|&at| before.threads[at] == **of);
    let threads = now.threads.iter().filter(|thread| !is_same(thread));
    let is_gone = |tid: &u32| !here.contains_key(tid);
    let changed = Stat {
        groups: groups.map(|(_, group)| group.clone()).collect(),
        threads: threads.cloned().collect(),
        clock: now.clock.clone(),
        cpu_refused: now.cpu_refused.clone(),
        ..*now
    };
    (changed, before.threads.iter().map(|thread| thread.tid).filter(is_gone).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    use dormouse_protocol::{GroupRow, Hello};
    use dormouse_testkit::viewers::printed;
    use dormouse_testkit::{assert_committed, skip};

    use crate::sample::totals::tests::answers;
    use crate::serve::page;

    /// The data of the events for a reader who sees two answers of a service.
    fn events(answers: [Stat; 2]) -> String {
        let hello = Arc::new(Hello::default());
        let [first, then] = answers.map(|stat| Look {
            hello: Arc::clone(&hello),
            unix_ms: 1_790_000_000_000 + stat.mono_ns / 1_000_000,
            stat,
            at: Instant::now().into_std(),
            whole: std::sync::OnceLock::new(),
            news: std::sync::OnceLock::new(),
        });
        let [whole, news] = [sample(7, &first, None), sample(7, &then, Some(&first))];
        format!("{}\n{}\n", as_document(&whole), as_document(&news))
    }

    #[test]
    fn fixed_answers_give_the_committed_cells() {
        if !Command::new("node").arg("--version").output().is_ok_and(|node| node.status.success()) {
            return skip("node is not installed");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let scripts = file("scripts.js", &page::scripts_of_groups());
        let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/figures/cells.mjs");
        for (is_refused, name) in [(false, "page"), (true, "page_refused")] {
            let events = file("events", &events(answers(is_refused)));
            let shown =
                printed(Command::new("node").args([reader.as_ref(), &*scripts, &events]).output().unwrap());
            assert_committed(&format!("tests/figures/{name}.json"), &shown);
        }
    }

    fn stat(groups: &[(u32, u64)], threads: &[(u32, u64)]) -> Stat {
        let group = |&(id, cpu_ns): &(u32, u64)| GroupRow {
            id,
            name: format!("g{id}").into(),
            cpu_ns,
            entries: 0,
            alive: 0,
            started: 0,
            finished: 0,
            requests: 0,
            polls: 0,
            counts: Vec::new(),
            waits: None,
        };
        let thread =
            |&(tid, cpu_ns): &(u32, u64)| ThreadStat { tid, name: "t".into(), cpu_ns, runnable_ns: None };
        Stat {
            process_cpu_ns: 9,
            groups: groups.iter().map(group).collect(),
            threads: threads.iter().map(thread).collect(),
            keys_on: 3,
            ..Stat::default()
        }
    }

    #[test]
    fn samples_have_what_changed() {
        let before = stat(&[(1, 5), (2, 5)], &[(10, 1), (11, 1)]);
        let now = stat(&[(1, 5), (2, 6), (3, 0)], &[(11, 1), (12, 0)]);
        let (changed, ended) = changed(&now, &before);
        let ids: Vec<_> = changed.groups.iter().map(|group| group.id).collect();
        let tids: Vec<_> = changed.threads.iter().map(|thread| thread.tid).collect();
        assert_eq!((ids, tids, ended), (vec![2, 3], vec![12], vec![10]));
        assert_eq!((changed.keys_on, changed.process_cpu_ns), (3, 9));
    }
}

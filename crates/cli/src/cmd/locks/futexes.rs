//! The locks that nobody wraps: threads that sleep in a futex in the middle of a poll.
//!
//! A lock of std's, of `parking_lot`'s or of the C library's is a futex for those who wait for it.
//! Its address is in the arguments of the call, and the place of the wait is the thread's stack, as
//! reports on long polls have both. Its holder is unknown, except that a mutex of glibc's contains
//! the id of the thread that owns it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use dormouse_profile::NameFinder;
use dormouse_protocol::{LockUserRow, LongPollRow, LongPollsRequest};
use serde::Serialize;

use crate::client::Client;
use crate::exit::Outcome;
use crate::render::frame::CodeFrame;
use crate::waiting::place::most;
use crate::waiting::reports;
use crate::waiting::stacks::names_of;

/// A poll that lasts as long is looked at.
const THRESHOLD: Duration = Duration::from_millis(20);

/// The function of a mutex of the C library's.
const MUTEX: &str = "pthread_mutex_lock";

/// A lock for which threads wait in polls.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct FutexWaits {
    /// The address of the futex: that of the lock, or of a part of it.
    pub(super) address: u64,
    /// The innermost function of the service's own at which one of the threads waits; null if its
    /// stack is not known.
    pub(super) place: Option<CodeFrame>,
    /// The number of threads that wait.
    pub(super) waiting: u64,
    /// For how long the longest of their polls lasts, as far as it was reported.
    pub(super) longest_ns: u64,
    /// The groups that wait; empty for a task in none.
    pub(super) by: Vec<String>,
    /// The thread that owns a mutex of the C library's; null: unknown.
    pub(super) owner_tid: Option<u32>,
}

/// Has long polls reported from now on; whether the service does so.
pub(super) fn begin(client: &mut Client) -> Outcome<bool> {
    if !client.knows::<LongPollsRequest>() {
        return Ok(false);
    }
    reports::begin(client, THRESHOLD).map(|()| true)
}

/// The locks for which threads wait now. `noted` are the waits of `dormouse::sync`.
pub(super) fn read(client: &mut Client, noted: &[LockUserRow]) -> Outcome<Vec<FutexWaits>> {
    let (rows, ..) = reports::take(client)?;
    let rows = present(rows, noted);
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut finder = NameFinder::of(client.pid).ok();
    Ok(waits(&rows, |row| names_of(finder.as_mut(), &row.stack)))
}

/// The last report on each poll that goes on and sleeps in a futex, which is none of ours. `noted`
/// may be only a part of the waits for a lock: its futex is known by any of them.
fn present(rows: Vec<LongPollRow>, noted: &[LockUserRow]) -> Vec<LongPollRow> {
    let mut last: BTreeMap<u64, LongPollRow> = BTreeMap::new();
    for row in rows {
        last.insert(row.number, row);
    }
    let noted: HashSet<u32> = noted.iter().filter(|user| !user.place.awaited).map(|user| user.tid).collect();
    let futex = |row: &LongPollRow| {
        let now = row.now.as_ref().filter(|now| now.within == "futex" && !row.over)?;
        now.arguments.first().copied()
    };
    let is_noted = |row: &&LongPollRow| noted.contains(&row.tid);
    let ours: HashSet<u64> = last.values().filter(is_noted).filter_map(futex).collect();
    let is_other = |row: &LongPollRow| futex(row).is_some_and(|address| !ours.contains(&address));
    last.into_values().filter(|row| is_other(row) && !is_noted(&row)).collect()
}

fn waits(rows: &[LongPollRow], mut names: impl FnMut(&LongPollRow) -> Vec<CodeFrame>) -> Vec<FutexWaits> {
    let mut found: BTreeMap<u64, FutexWaits> = BTreeMap::new();
    for row in rows {
        let Some(now) = &row.now else { continue };
        let Some(&address) = now.arguments.first() else { continue };
        let frames = names(row);
        let is_mutex = frames.iter().any(|frame| frame.function.contains(MUTEX));
        let of = found.entry(address).or_insert_with(|| FutexWaits {
            address,
            place: most(&frames).cloned(),
            waiting: 0,
            longest_ns: 0,
            by: Vec::new(),
            owner_tid: None,
        });
        of.waiting += 1;
        of.longest_ns = of.longest_ns.max(row.lasted_ns);
        of.owner_tid = of.owner_tid.or(now.mutex_owner.filter(|_| is_mutex));
        if !of.by.contains(&row.group) {
            of.by.push(row.group.clone());
        }
    }
    let mut all: Vec<_> = found.into_values().collect();
    all.sort_by_key(|of| Reverse((of.waiting, of.longest_ns)));
    all
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::{LockPlaceRow, LongPollNowRow};

    use super::*;
    use crate::waiting::place::tests::frame;

    fn row(number: u64, tid: u32, group: &str, within: &str, address: u64) -> LongPollRow {
        let (arguments, mutex_owner) = (vec![address, 128, 2], Some(7));
        let now =
            LongPollNowRow { within: within.into(), arguments, mutex_owner, ..LongPollNowRow::default() };
        let lasted_ns = number * 1_000;
        LongPollRow { number, tid, group: group.into(), lasted_ns, now: Some(now), ..LongPollRow::default() }
    }

    #[test]
    fn threads_in_one_futex_wait_for_one_lock() {
        let over = LongPollRow { over: true, now: None, ..row(3, 13, "GET /c", "futex", 4096) };
        let rows = vec![
            row(1, 11, "GET /a", "on a CPU", 0),
            row(1, 11, "GET /a", "futex", 4096),
            row(2, 12, "GET /b", "futex", 4096),
            row(3, 13, "GET /c", "futex", 4096),
            over,
            row(4, 14, "GET /d", "read", 5),
            row(5, 15, "GET /e", "futex", 8192),
            row(6, 16, "GET /f", "futex", 12288),
            row(7, 17, "GET /g", "futex", 8192),
        ];
        let ours = |tid, awaited| LockUserRow {
            tid,
            place: LockPlaceRow { awaited, ..LockPlaceRow::default() },
            ..LockUserRow::default()
        };
        let rows = present(rows, &[ours(15, false), ours(16, true)]);
        let own = || frame("shop::orders", "/src/orders.rs", 42);
        let names = |row: &LongPollRow| match row.number {
            1 => vec![frame("std::sys::sync::mutex::futex::Mutex::lock_contended", "", 0), own()],
            2 => vec![own()],
            _ => vec![frame("___pthread_mutex_lock", "", 0), own()],
        };
        let found = waits(&rows, names);
        let seen: Vec<_> =
            found.iter().map(|of| (of.address, of.waiting, of.longest_ns, of.owner_tid)).collect();
        assert_eq!(seen, [(4096, 2, 2_000, None), (12288, 1, 6_000, Some(7))], "only a mutex has an owner");
        assert_eq!(found[0].by, ["GET /a", "GET /b"]);
        assert_eq!(found[0].place.as_ref().and_then(|place| place.line), Some(42));
    }
}

//! Outgoing calls: how many each group has made to each peer, how they ended, and how long they
//! took.
//!
//! A group has a row for each of its first [`PEERS`] peers. Calls to further peers are added up in
//! one more row, whose name is empty. So names that a client may choose take no memory without
//! bound: a process has at most `most` rows beside those.
//!
//! All threads share the rows. A call that ends adds to two or three words of its row. The row is
//! found by a hash of the name in a table of pointers, and compared by the whole name: two peers
//! never share a row, except the one of the further peers.
//!
//! # Invariants
//!
//! 1. A row's name is written before the row is published, and never changes.
//! 2. A row and a table stay where they are. A forked child has none; a call that its parent has
//!    begun adds to the child's copy of the parent's row, which no reader finds.
//!
//! # Async-signal-safety
//!
//! No lock, no allocation. A peer's first call maps memory. A handler that is quicker with the same
//! peer wins the place.
//!
//! # Safety
//!
//! The unsafe code makes references to mappings that stay, and writes to one that no other code has
//! seen.
#![allow(unsafe_code)]

mod buffer;
mod name;
mod statement;

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use dormouse_sys::Capability;

use crate::buckets::{self, BUCKETS, Histogram, SCALE};
use crate::memory::{self, Zeroed};
use crate::rows::{GROUPS, row_of};

pub use buffer::LONGEST_PEER;
pub use name::{CallKind, PeerName};

/// The peers of a group that have rows of their own.
pub const PEERS: usize = 64;

/// The most rows of a process, without those of further peers: 16 MB.
fn most() -> u64 {
    (16 << 20) / memory::size_of_mapping::<Row>(1) as u64
}

/// The calls of one group to one peer.
#[derive(Debug)]
#[repr(C, align(64))]
struct Row {
    name: PeerName,
    /// Calls that were answered, or failed, by their time.
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
    /// The number of these calls that failed, and of those of which nobody knows whether they did.
    errors: AtomicU64,
    unseen: AtomicU64,
    /// Calls that were given up before their end. They are in no bucket.
    cancelled: AtomicU64,
}

/// The calls of one group.
#[derive(Debug)]
#[repr(C, align(64))]
struct Table {
    peers: [AtomicPtr<Row>; PEERS],
    others: Row,
}

// SAFETY: atomics, and a name, of which zeros are the empty one.
unsafe impl Zeroed for Row {}
// SAFETY: as above.
unsafe impl Zeroed for Table {}

/// By the number of the group; row 0 is that of no group.
static TABLES: [AtomicPtr<Table>; GROUPS] = [const { AtomicPtr::new(ptr::null_mut()) }; GROUPS];

/// How many rows there are.
static MADE: AtomicU64 = AtomicU64::new(0);

/// The kernel has refused memory once: calls do not ask it again and again.
static HAS_NO_MEMORY: AtomicBool = AtomicBool::new(false);

/// Calls that are in no row.
static LOST: AtomicU64 = AtomicU64::new(0);

/// One peer of a group, to which calls are added.
#[derive(Debug, Clone, Copy)]
pub struct Peer(&'static Row);

/// The place of a peer that is perhaps not known yet.
#[derive(Debug, Default)]
pub struct PeerCell(AtomicPtr<Row>);

impl PeerCell {
    /// Puts a peer into it.
    pub fn set(&self, peer: Option<Peer>) {
        let row = peer.map_or(ptr::null_mut(), |Peer(row)| ptr::from_ref(row).cast_mut());
        // Release: pairs with the load in `get`.
        self.0.store(row, Ordering::Release);
    }

    /// The peer that is in it.
    pub fn get(&self) -> Option<Peer> {
        at(&self.0).map(Peer)
    }
}

/// The calls of one group to one peer, since times were first taken.
#[derive(Debug, Clone, Default)]
pub struct PeerCalls {
    /// The number of the group; 0 for calls that no group has made.
    pub group: u32,
    /// The peer; `None` for all that have no row of their own.
    pub peer: Option<PeerName>,
    /// Calls that were answered or failed, by their time.
    pub times: Histogram,
    /// The number of these calls that failed; `None` if nobody has seen whether any did.
    pub errors: Option<u64>,
    /// Calls that were given up before their end.
    pub cancelled: u64,
}

#[inline]
fn at<T: Zeroed>(place: &AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: null, or a mapping that stays (invariant 2). Acquire: pairs with the exchange in
    // `put`, and with the store in `PeerCell::set`.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// Zeroed memory, unless the kernel has refused it before.
fn map<T: Zeroed>() -> Option<ptr::NonNull<[T]>> {
    if HAS_NO_MEMORY.load(Ordering::Relaxed) {
        return None;
    }
    let made = memory::map(1);
    if made.is_none() {
        HAS_NO_MEMORY.store(true, Ordering::Relaxed);
    }
    made
}

#[cold]
fn begin_table(place: &AtomicPtr<Table>) -> Option<&'static Table> {
    // Another thread's may be there already.
    memory::put(place, map()?);
    at(place)
}

impl Table {
    #[inline]
    fn row(&'static self, name: &PeerName) -> &'static Row {
        let first = name.hash() as usize;
        for probe in 0..PEERS {
            let place = &self.peers[first.wrapping_add(probe) % PEERS];
            let Some(row) = at(place).or_else(|| begin_row(place, name)) else { break };
            if row.name == *name {
                return row;
            }
        }
        &self.others
    }
}

/// A peer's first call. The row in the place is perhaps another peer's: that one was quicker.
#[cold]
fn begin_row(place: &AtomicPtr<Row>, name: &PeerName) -> Option<&'static Row> {
    let more = |made: u64| (made < most()).then_some(made + 1);
    MADE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
    let made = map::<Row>();
    let is_put = made.is_some_and(|made| {
        // SAFETY: the place of one row, which no other code has seen (invariant 1).
        unsafe { (*made.cast::<Row>().as_ptr()).name = *name };
        memory::put(place, made)
    });
    if !is_put {
        MADE.fetch_sub(1, Ordering::Relaxed);
    }
    at(place)
}

impl Peer {
    /// A peer of the group with that number; `None` if there is no memory, which is counted.
    ///
    /// # Cost
    ///
    /// A look-up. A peer's first call maps 5 KB.
    #[inline]
    pub fn of(group: u32, name: &PeerName) -> Option<Self> {
        let place = &TABLES[row_of(group)];
        let table = at(place).or_else(|| begin_table(place));
        if table.is_none() {
            lose();
        }
        table.map(|table| Self(table.row(name)))
    }

    /// Adds a call that took this long. `is_error`: whether it failed, if that is known.
    #[inline]
    pub fn answered(self, ns: u64, is_error: Option<bool>) {
        let row = self.0;
        row.buckets[buckets::place(ns)].fetch_add(1, Ordering::Relaxed);
        row.sum_ns.fetch_add(ns, Ordering::Relaxed);
        if ns > row.max_ns.load(Ordering::Relaxed) {
            row.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
        match is_error {
            Some(false) => {}
            Some(true) => self.failed(),
            None => _ = row.unseen.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// A call that was answered has failed after all: by a trailer, or in its body.
    #[inline]
    pub fn failed(self) {
        self.0.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a call that was given up before its end.
    #[inline]
    pub fn cancelled(self) {
        self.0.cancelled.fetch_add(1, Ordering::Relaxed);
    }
}

impl Row {
    /// Whether there have been calls. If so, they are in `calls`.
    fn read(&self, calls: &mut PeerCalls) -> bool {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        // Failures first: no reading has more of them than calls.
        let (errors, unseen) = (load(&self.errors), load(&self.unseen));
        calls.cancelled = load(&self.cancelled);
        for (to, from) in calls.times.buckets.iter_mut().zip(&self.buckets) {
            *to = load(from);
        }
        calls.times.sum_ns = load(&self.sum_ns);
        calls.times.max_ns = load(&self.max_ns);
        calls.times.scale = SCALE;
        let count = calls.times.count();
        calls.errors = (unseen == 0 || errors > 0 || unseen < count).then_some(errors);
        calls.peer = Some(self.name).filter(|name| !name.as_str().is_empty());
        count + calls.cancelled > 0
    }
}

/// Reads the calls of all groups, those of no group first; `tell` is called for each peer.
///
/// # Cost
///
/// Reads 5 KB for each peer. No thread is stopped.
pub fn read_calls(mut tell: impl FnMut(&PeerCalls)) {
    // One for all: to move it costs more than to fill it again.
    let mut calls = PeerCalls::default();
    for (group, place) in TABLES.iter().enumerate() {
        calls.group = group as u32;
        read_table(place, &mut calls, &mut tell);
    }
}

/// Reads the calls of one group, as [`read_calls`] does.
pub fn read_calls_of(group: u32, mut tell: impl FnMut(&PeerCalls)) {
    if let Some(place) = TABLES.get(group as usize) {
        read_table(place, &mut PeerCalls { group, ..PeerCalls::default() }, &mut tell);
    }
}

fn read_table(place: &AtomicPtr<Table>, calls: &mut PeerCalls, tell: &mut impl FnMut(&PeerCalls)) {
    let Some(table) = at(place) else { return };
    for row in table.peers.iter().filter_map(at).chain([&table.others]) {
        if row.read(calls) {
            tell(calls);
        }
    }
}

/// An upper bound of the number of rows that [`read_calls`] reads, by one load.
pub fn most_calls() -> usize {
    MADE.load(Ordering::Relaxed) as usize + crate::groups()
}

/// Counts a call that could not be counted.
#[cold]
pub fn lose() {
    LOST.fetch_add(1, Ordering::Relaxed);
}

/// A line of `dormouse doctor` if calls are missing, or are in no row of their own peer, otherwise
/// `None`.
pub fn capability() -> Option<Capability> {
    let lost = LOST.load(Ordering::Relaxed);
    let (mut others, mut calls) = (0_u64, PeerCalls::default());
    for table in TABLES.iter().filter_map(at) {
        table.others.read(&mut calls);
        others += calls.times.count() + calls.cancelled;
    }
    let details = [
        (lost > 0).then(|| {
            format!(
                "{lost} outgoing calls are not counted: there was no memory, or too many were open at once"
            )
        }),
        (others > 0).then(|| {
            format!(
                "{others} outgoing calls are in rows of further peers: the first {PEERS} peers of a group, and \
                 the first {} of the process, keep rows of their own",
                most()
            )
        }),
    ];
    let details: Vec<String> = details.into_iter().flatten().collect();
    (!details.is_empty()).then(|| Capability::limited("calls.room", details.join("; ")))
}

/// In a forked child.
pub(crate) fn forget() {
    // Looked at first: what is written to is copied.
    for place in TABLES.iter().filter(|place| !place.load(Ordering::Relaxed).is_null()) {
        place.store(ptr::null_mut(), Ordering::Relaxed);
    }
    MADE.store(0, Ordering::Relaxed);
    LOST.store(0, Ordering::Relaxed);
    HAS_NO_MEMORY.store(false, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    /// The calls of one group, by peer.
    fn of(group: u32) -> Vec<(String, u64, Option<u64>, u64)> {
        let mut all = Vec::new();
        read_calls_of(group, |it| {
            let peer = it.peer.map_or_else(|| "(others)".into(), |peer| peer.as_str().to_owned());
            all.push((peer, it.times.count(), it.errors, it.cancelled));
        });
        all.sort();
        all
    }

    fn peer(group: u32, name: &str) -> Peer {
        Peer::of(group, &PeerName::of(CallKind::Http, name)).expect("memory")
    }

    #[test]
    fn calls_are_counted_by_their_ends() {
        peer(701, "a").answered(1_000_000, Some(false));
        peer(701, "a").answered(3_000_000, Some(true));
        peer(701, "a").cancelled();
        peer(701, "b").answered(5, None);
        peer(702, "a").answered(7, Some(false));
        assert_eq!(of(701), [("a".into(), 2, Some(1), 1), ("b".into(), 1, None, 0)]);
        assert_eq!(of(702), [("a".into(), 1, Some(0), 0)]);
        let (mut groups, mut times) = (Vec::new(), Vec::new());
        read_calls(|it| groups.push(it.group));
        read_calls_of(701, |it| times.push((it.times.sum_ns, it.times.max_ns)));
        assert!(groups.is_sorted() && groups.contains(&701) && groups.contains(&702));
        times.sort_unstable();
        assert_eq!(times, [(5, 5), (4_000_000, 3_000_000)]);
    }

    #[test]
    fn further_peers_share_a_row() {
        for n in 0..3 * PEERS {
            for _ in 0..=n % 2 {
                peer(703, &format!("host-{n}")).answered(100, Some(n % 4 == 0));
            }
        }
        let all = of(703);
        assert_eq!(all.len(), PEERS + 1);
        assert_eq!(all.iter().map(|(_, n, ..)| n).sum::<u64>(), 288);
        assert_eq!(all.iter().map(|(.., errors, _)| errors.unwrap()).sum::<u64>(), 48);
        assert!(all.iter().any(|(name, n, ..)| name == "(others)" && *n == 192), "{all:?}");
        let line = capability().map(|line| format!("{line:?}")).unwrap_or_default();
        assert!(line.contains("192 outgoing calls are in rows of further peers"), "{line}");
    }

    #[test]
    fn threads_make_one_row_for_a_peer() {
        const CALLS: u64 = if cfg!(miri) { 50 } else { 1_000 };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..CALLS {
                        peer(704, &format!("{}", n % 10)).answered(n, Some(false));
                    }
                });
            }
        });
        let all = of(704);
        assert_eq!(all.len(), 10);
        assert!(all.iter().all(|(_, n, ..)| *n == 4 * CALLS / 10), "{all:?}");
    }

    #[test]
    fn kinds_are_told_apart() {
        for kind in CallKind::ALL {
            let name = PeerName::of(kind, "GET");
            Peer::of(705, &name).expect("memory").answered(1, Some(false));
        }
        assert_eq!(of(705).len(), CallKind::ALL.len());
    }
}

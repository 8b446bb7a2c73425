//! Whether a client has put dormouse in this process to sleep, and which parts `DORMOUSE_MAX_CPU`
//! has.
//!
//! The agent's thread alone writes it. A forked child is asleep as its parent is, until its own
//! agent wakes it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dormouse_protocol::{Asleep, Code, WireError};
use dormouse_sys::clock::monotonic_ns;

use crate::core::panics;

/// When the sleep began, in nanoseconds of the monotonic clock; 0: awake.
static SINCE: AtomicU64 = AtomicU64::new(0);
/// The user and the process that began it, 32 bits each.
static BY: AtomicU64 = AtomicU64::new(0);

/// The parts that the limit has suspended, by bits.
static LIMITED: AtomicU8 = AtomicU8::new(0);
/// The use for which the last of them was, in thousandths of a percent of a CPU.
static USED: AtomicU64 = AtomicU64::new(0);

/// How often counts of groups have been suspended.
static COUNTS_STOPPED: AtomicU64 = AtomicU64::new(0);

/// A part of dormouse that can be suspended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Records,
    Times,
    Counts,
    Profiles,
    Watches,
}

impl Part {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Records, "records of probes"),
        (Self::Times, "times of tasks"),
        (Self::Counts, "counts of groups"),
        (Self::Profiles, "profiles"),
        (Self::Watches, "watches"),
    ];
}

/// Whether the limit has suspended the part.
pub(crate) fn is_limited(part: Part) -> bool {
    // Acquire: pairs with the change in `limit`. The use is there.
    LIMITED.load(Ordering::Acquire) & 1 << part as u8 != 0
}

/// The part is suspended because dormouse has used that much of a CPU.
pub(crate) fn limit(part: Part, percent: f64) {
    USED.store((percent * 1000.0) as u64, Ordering::Relaxed);
    // Release: pairs with the load in `is_limited`.
    LIMITED.fetch_or(1 << part as u8, Ordering::Release);
    if part == Part::Counts {
        COUNTS_STOPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often counts of groups have been suspended: between two moments with the same number they
/// lack nothing, if they were not suspended at the first.
pub(crate) fn counts_stopped() -> u64 {
    COUNTS_STOPPED.load(Ordering::Relaxed)
}

/// Why counts of groups are suspended, if they are.
pub(crate) fn counts_asleep() -> Option<String> {
    let sleep = || is_asleep().then(|| "dormouse is asleep".to_owned());
    why_limited(Part::Counts).or_else(sleep)
}

/// The suspended parts and the reason, if there are any.
pub(crate) fn limited() -> Option<String> {
    let parts = Part::ALL.into_iter().filter(|(part, _)| is_limited(*part));
    let names: Vec<&str> = parts.map(|(_, name)| name).collect();
    let percent = USED.load(Ordering::Relaxed) as f64 / 1000.0;
    (!names.is_empty()).then(|| {
        format!(
            "asleep: {}, because dormouse used {percent:.1} % of a CPU, more than DORMOUSE_MAX_CPU allows",
            names.join(", ")
        )
    })
}

/// Why the limit has suspended the part, if it has.
pub(crate) fn why_limited(part: Part) -> Option<String> {
    limited().filter(|_| is_limited(part))
}

/// Refuses a request that needs a suspended part.
pub(crate) fn check(part: Part) -> Result<(), WireError> {
    why_limited(part).map_or(Ok(()), |why| Err(WireError::new(Code::Asleep, why)))
}

/// Whether dormouse is asleep.
pub(crate) fn is_asleep() -> bool {
    SINCE.load(Ordering::Relaxed) != 0
}

/// The sleep, if there is one.
pub(crate) fn asleep() -> Option<Asleep> {
    // Acquire: pairs with the store in `begin`.
    let since = Some(SINCE.load(Ordering::Acquire)).filter(|&since| since != 0)?;
    let by = BY.load(Ordering::Relaxed);
    let for_ms = monotonic_ns().saturating_sub(since) / 1_000_000;
    Some(Asleep { for_ms, uid: (by >> 32) as u32, pid: by as u32 })
}

/// Begins a sleep by that user and process.
pub(crate) fn begin(uid: u32, pid: u32) {
    BY.store(u64::from(uid) << 32 | u64::from(pid), Ordering::Relaxed);
    // Release: pairs with the load in `asleep`. It is known who began it.
    SINCE.store(monotonic_ns().max(1), Ordering::Release);
    COUNTS_STOPPED.fetch_add(1, Ordering::Relaxed);
    panics::pause(true);
}

/// Ends it, and the limit's part in it.
pub(crate) fn end() {
    LIMITED.store(0, Ordering::Relaxed);
    SINCE.store(0, Ordering::Relaxed);
    panics::pause(false);
}

//! Watches of groups: armed on a thread while it runs a task of the group.
//!
//! The task switch calls [`sched_in`] and [`sched_out`]. A thread opens its own descriptors when it
//! first needs them. From then on a switch costs one system call for each register, or none if the
//! watch is in still. No other thread opens them for it: threads that never run a task of the group
//! cost nothing.
//!
//! A thread that cannot open a descriptor runs its tasks unarmed; that is counted with the reason,
//! so that a watch reports what it may have missed.
//!
//! # Locking
//!
//! 1. [`begin`] and [`end`] are called under the lock of watches, by one thread at a time. The rows
//!    are visited without it, when the [`Ending`] is dropped: that may take 20 ms for each thread
//!    that is descheduled in its row, and a fork waits for the lock. The task switch takes no lock
//!    and waits for no thread.
//! 2. [`end`] empties the entry of the watch, *then* its [`Ending`] shuts each row that was ever
//!    used. A thread enters its row, *then* reads the entry. So the thread finds the entry empty,
//!    or the [`Ending`] waits for it to leave the row and closes what it has opened. The entry's
//!    next watch has another number, which no thread can have before it has begun.
//!
//! # Fork
//!
//! A child has no watches, and closes its copies of the descriptors.
//!
//! # Safety
//!
//! The unsafe code follows the pointer of an entry, inside of a row; by rule 2 it is freed when all
//! rows have been left.
#![allow(unsafe_code)]

mod patience;
mod read;
mod row;
mod unarmed;

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use dormouse_sys::perf::{Attr, is_filtered, open_here};
use dormouse_sys::process::fork::{Phase, Reset};
use dormouse_sys::thread::{self, MAX_THREADS};

pub(super) use self::read::{covered, hits};
use self::row::{Line, MOST_LINES, Row, number_of, process_number, target};
use self::unarmed::{REASONS, Unarmed};
use super::hook;

/// The most watches of groups: a watch's number determines its entry, here as in the table of hits.
pub(super) const MOST_SCOPED: usize = 256;

/// How many switches pass before a thread again requests what the kernel has refused.
const PASS_OVER: u32 = 63;

/// A watch of a group.
#[derive(Debug)]
struct Entry {
    number: AtomicU32,
    group: AtomicU32,
    process: AtomicU64,
    /// One request for each register; null if there is no such watch.
    parts: AtomicPtr<Box<[Attr]>>,
    /// How many requests there are; 0 if there is no such watch.
    needs: AtomicU32,
    is_resting: AtomicBool,
    /// Counted by lines that have been turned or closed.
    hits: AtomicU64,
    /// The most that a reading has found.
    seen: AtomicU64,
    /// By reason: how often a task of the group came to a thread that could not be armed.
    unarmed: [AtomicU64; REASONS.len()],
}

static ENTRIES: [Entry; MOST_SCOPED] = [const { Entry::new() }; MOST_SCOPED];
static ROWS: [Row; MAX_THREADS] = [const { Row::new() }; MAX_THREADS];
/// One past the highest row that was ever used.
static USED: AtomicU32 = AtomicU32::new(0);
/// The most registers that the watches of one group need: a thread has at most that many lines.
static NEEDED: AtomicU32 = AtomicU32::new(0);
/// Open descriptors, and how many there may be.
static OPEN: AtomicU32 = AtomicU32::new(0);
static MOST_OPEN: AtomicU32 = AtomicU32::new(0);
/// Registers of threads are counted just now.
static IS_STILL: AtomicBool = AtomicBool::new(false);
/// Calls to the kernel that switch or turn a line.
static SWITCHES: AtomicU64 = AtomicU64::new(0);

static IN_CHILD: Reset = Reset::new(Phase::Lines, forget);

thread_local! {
    /// The index of the thread's row; `None` before its first watch and past its end.
    static ROW: Cell<Option<u32>> = const { Cell::new(None) };
}

impl Entry {
    const fn new() -> Self {
        Self {
            number: AtomicU32::new(0),
            group: AtomicU32::new(0),
            process: AtomicU64::new(0),
            parts: AtomicPtr::new(ptr::null_mut()),
            needs: AtomicU32::new(0),
            is_resting: AtomicBool::new(false),
            hits: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            unarmed: [const { AtomicU64::new(0) }; REASONS.len()],
        }
    }

    /// Its requests, if it is watch `number` of this process. The caller is in a row.
    fn parts(&self, number: u32) -> Option<&[Attr]> {
        // Sequentially consistent: rule 2.
        let parts = self.parts.load(Ordering::SeqCst);
        // SAFETY: null, or of `begin`, and freed when the caller has left its row (rule 2).
        let parts = unsafe { parts.as_ref() }?;
        (self.is_live(number) && self.process.load(Ordering::Relaxed) == process_number()).then_some(parts)
    }

    /// Whether it is watch `number`.
    fn is_live(&self, number: u32) -> bool {
        self.number.load(Ordering::Relaxed) == number && self.needs.load(Ordering::Relaxed) > 0
    }

    fn is_unarmed(&self, reason: Unarmed) {
        self.unarmed[reason as usize].fetch_add(1, Ordering::Relaxed);
    }
}

fn entry(number: u32) -> &'static Entry {
    &ENTRIES[number as usize % MOST_SCOPED]
}

fn entry_of(line: &Line) -> &'static Entry {
    entry(number_of(line.target()))
}

/// The coverage of a watch of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Covered {
    /// Threads that have a line for it now.
    pub(super) threads: u32,
    /// How often a task of the group came to a thread that could not be armed.
    pub(super) unarmed: u64,
    /// The most frequent reason.
    pub(super) reason: Option<&'static str>,
}

/// There is a watch of `group` from now on, for which a thread needs a register for each of
/// `parts`. False if it cannot be: threads could not give their registers back.
pub(super) fn begin(number: u32, group: u32, parts: Box<[Attr]>) -> bool {
    // The first question maps a page, which a switch must not.
    let process = process_number();
    if parts.len() > MOST_LINES || !thread::on_thread_exit(at_exit) || !IN_CHILD.join() {
        return false;
    }
    MOST_OPEN.store(quarter_of_descriptors(), Ordering::Relaxed);
    let entry = entry(number);
    entry.number.store(number, Ordering::Relaxed);
    entry.group.store(group, Ordering::Relaxed);
    entry.process.store(process, Ordering::Relaxed);
    entry.is_resting.store(false, Ordering::Relaxed);
    entry.hits.store(0, Ordering::Relaxed);
    entry.seen.store(0, Ordering::Relaxed);
    entry.unarmed.iter().for_each(|unarmed| unarmed.store(0, Ordering::Relaxed));
    entry.needs.store(parts.len() as u32, Ordering::Relaxed);
    let parts = Box::into_raw(Box::new(parts));
    // Pairs with the load in `Entry::parts`.
    entry.parts.store(parts, Ordering::SeqCst);
    NEEDED.store(needed(), Ordering::Relaxed);
    true
}

/// A watch that is ending: disarmed and closed on all threads when this is dropped.
///
/// # Cost
///
/// A check of each row that was ever used, and system calls for each line of the watch.
#[derive(Debug)]
#[must_use = "dropped without the lock of watches"]
pub(super) struct Ending {
    number: u32,
    /// Made by [`begin`] and taken out of the entry; null if the watch has ended already.
    parts: *mut Box<[Attr]>,
}

/// No thread takes the watch in any more.
pub(super) fn end(number: u32) -> Ending {
    let entry = entry(number);
    if entry.number.load(Ordering::Relaxed) != number {
        return Ending { number, parts: ptr::null_mut() };
    }
    // Rule 2.
    let parts = entry.parts.swap(ptr::null_mut(), Ordering::SeqCst);
    if !parts.is_null() {
        entry.needs.store(0, Ordering::Relaxed);
        NEEDED.store(needed(), Ordering::Relaxed);
    }
    Ending { number, parts }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.parts.is_null() && close_all(|line| number_of(line.target()) == self.number) {
            // SAFETY: of `begin`, taken out, and no thread is in a row that it entered before.
            drop(unsafe { Box::from_raw(self.parts) });
        }
    }
}

/// Until this is called with false, the watch goes out on each thread that hits it or switches, and
/// after that it comes in at each thread's next switch to the group. For any thread: the keeper has
/// none of the descriptors.
pub(super) fn set_resting(number: u32, resting: bool) {
    entry(number).is_resting.store(resting, Ordering::Relaxed);
}

/// The calling thread has hit a watch of a group, in a task of the group or not. Signal-safe.
pub(super) fn on_hit(number: u32, in_group: bool) {
    if entry(number).is_resting.load(Ordering::Relaxed) {
        sched_out(number);
    } else if !in_group {
        hook::stray(number);
    }
}

/// Closes these lines of all threads, and those that no group needs any more; false if a thread
/// does not leave its row.
fn close_all(is_over: impl Fn(&Line) -> bool) -> bool {
    let mut all = true;
    // Pairs with the exchange in `sched_in`.
    for row in &ROWS[..(USED.load(Ordering::SeqCst) as usize).min(ROWS.len())] {
        let Some(_alone) = row.shut(patience::SHORT) else {
            all = false;
            continue;
        };
        // A line that is left to its thread goes at the thread's next switch to a watched group.
        let close = |line: &Line| {
            if line.close(false, counted) {
                OPEN.fetch_sub(1, Ordering::Relaxed);
            }
        };
        row.lines.iter().filter(|line| line.is_open() && is_over(line)).for_each(close);
        let spare = row.open().saturating_sub(NEEDED.load(Ordering::Relaxed)) as usize;
        row.lines.iter().filter(|line| line.is_open() && !line.is_on()).take(spare).for_each(close);
    }
    all
}

/// A line has counted `n` hits of watch `number`, and is turned or closed.
fn counted(number: u32, n: u64) {
    let entry = entry(number);
    // Otherwise another watch has the entry by now, and these counts are not needed any more.
    if entry.number.load(Ordering::Relaxed) == number {
        entry.hits.fetch_add(n, Ordering::Relaxed);
    }
}

/// The most registers that one group needs.
fn needed() -> u32 {
    let needs = |entry: &Entry| entry.needs.load(Ordering::Relaxed);
    let group = |entry: &Entry| entry.group.load(Ordering::Relaxed);
    let live = || ENTRIES.iter().filter(|entry| needs(entry) > 0);
    let of = |of: u32| live().filter(|entry| group(entry) == of).map(needs).sum::<u32>();
    live().map(|entry| of(group(entry))).max().unwrap_or(0)
}

/// How often [`sched_in`] and [`sched_out`] have made system calls. For tests and benches.
#[doc(hidden)]
pub fn switches() -> u64 {
    SWITCHES.load(Ordering::Relaxed)
}

/// As long as this exists, no thread opens a line for a watch of a group. There is one at a time.
#[derive(Debug)]
pub(super) struct Still(());

/// See [`Still`]: for a caller that counts registers.
pub(super) fn hold_still() -> Still {
    // Pairs with the load in `open`: `registers_held` waits for the thread, or the thread opens
    // nothing.
    IS_STILL.store(true, Ordering::SeqCst);
    Still(())
}

impl Drop for Still {
    fn drop(&mut self) {
        IS_STILL.store(false, Ordering::Relaxed);
    }
}

/// The registers that thread `tid` holds for watches of groups.
pub(super) fn registers_held(tid: u32) -> u32 {
    thread::find(tid).map_or(0, |block| ROWS[block.index()].settled())
}

/// Call this when a task of the watch's group begins to run on the calling thread.
///
/// # Cost
///
/// One system call for each register, or none if the watch is still armed on the thread; two more
/// if the thread opens its descriptor.
///
/// # Async-signal-safety
///
/// Signal-safe.
pub fn sched_in(number: u32) {
    let entry = entry(number);
    let Some(row) = own_row() else { return entry.is_unarmed(Unarmed::Busy) };
    if row.is_inherited() {
        // A child by a bare system call, in which no handler of ours has run.
        row.forget();
    }
    let Some(_inside) = row.enter_own() else { return entry.is_unarmed(Unarmed::Busy) };
    let is_over = |line: &Line| line.is_open() && !entry_of(line).is_live(number_of(line.target()));
    if row.lines.iter().any(is_over) {
        match row.shut_own() {
            Some(_alone) => close_own(row, is_over),
            // Others look at counts: until the next switch.
            None => switch_off(row, is_over),
        }
    }
    let Some(parts) = entry.parts(number) else { return };
    if entry.is_resting.load(Ordering::Relaxed) {
        return switch_off(row, |line| number_of(line.target()) == number);
    }
    for (part, attr) in parts.iter().enumerate() {
        if let Err(reason) = arm(row, attr, target(number, part)) {
            entry.is_unarmed(reason);
        }
    }
}

/// Call this when no task of the watch's group runs on the calling thread any more.
///
/// # Cost
///
/// One system call for each register.
///
/// # Async-signal-safety
///
/// Signal-safe.
pub fn sched_out(number: u32) {
    let Some(row) = ROW.get().map(|row| &ROWS[row as usize]).filter(|row| !row.is_inherited()) else {
        return;
    };
    // `None`: the row is shut, by a thread that looks for lines that are on but not needed. The
    // handler filters hits until the next switch.
    let Some(_inside) = row.enter_own() else { return };
    switch_off(row, |line| number_of(line.target()) == number);
}

/// Switches these lines off. The thread is in its row.
fn switch_off(row: &Row, which: impl Fn(&Line) -> bool) {
    for line in row.lines.iter().filter(|line| line.is_on() && which(line)) {
        SWITCHES.fetch_add(1, Ordering::Relaxed);
        if !line.switch(false) {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Switches the line of this target on, or makes one. The thread is in its row.
fn arm(row: &Row, attr: &Attr, target: u64) -> Result<(), Unarmed> {
    let lines = || row.lines.iter().filter(|line| line.is_open());
    if let Some(line) = lines().find(|line| line.target() == target) {
        if line.is_on() {
            return Ok(());
        }
        SWITCHES.fetch_add(1, Ordering::Relaxed);
        if line.switch(true) {
            return Ok(());
        }
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
    let refusal = if row.open() < NEEDED.load(Ordering::Relaxed) {
        match open(row, attr, target) {
            Ok(()) => return Ok(()),
            Err(reason) => reason,
        }
    } else {
        Unarmed::Register
    };
    for line in lines().filter(|line| !line.is_on()) {
        SWITCHES.fetch_add(1, Ordering::Relaxed);
        if line.turn(attr, target, counted) {
            return Ok(());
        }
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
    Err(refusal)
}

#[cold]
fn open(row: &Row, attr: &Attr, target: u64) -> Result<(), Unarmed> {
    let Some(line) = row.lines.iter().find(|line| !line.is_open()) else { return Err(Unarmed::Register) };
    let passed = row.refused.load(Ordering::Relaxed);
    if passed > 0 {
        row.refused.store(passed - 1, Ordering::Relaxed);
        return Err(Unarmed::Register);
    }
    if IS_STILL.load(Ordering::SeqCst) {
        return Err(Unarmed::Busy);
    }
    let event = if is_filtered() {
        Err(Unarmed::Filtered)
    } else if OPEN.fetch_add(1, Ordering::Relaxed) >= MOST_OPEN.load(Ordering::Relaxed) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
        Err(Unarmed::Budget)
    } else {
        open_here(attr).map_err(|why| {
            OPEN.fetch_sub(1, Ordering::Relaxed);
            match why.raw_os_error() {
                Some(libc::ENOSPC) => Unarmed::Register,
                Some(libc::EMFILE | libc::ENFILE) => Unarmed::Limit,
                _ => Unarmed::Denied,
            }
        })
    };
    let event = event.inspect_err(|_| row.refused.store(PASS_OVER, Ordering::Relaxed))?;
    row.belongs_here();
    line.fill(event, target);
    Ok(())
}

/// The calling thread's row.
fn own_row() -> Option<&'static Row> {
    if ROW.get().is_none() {
        let index = thread::current()?.index() as u32;
        // Pairs with the load in `close_all`: rule 2.
        USED.fetch_max(index + 1, Ordering::SeqCst);
        ROW.set(Some(index));
    }
    ROW.get().map(|row| &ROWS[row as usize])
}

/// The calling thread ends.
fn at_exit() {
    let Some(row) = ROW.take().map(|row| &ROWS[row as usize]) else { return };
    if row.is_inherited() {
        return row.forget();
    }
    let Some(_alone) = row.shut(patience::LONG) else {
        OPEN.fetch_sub(row.open(), Ordering::Relaxed);
        return row.abandon();
    };
    close_own(row, |_| true);
    row.refused.store(0, Ordering::Relaxed);
}

/// Closes these lines. The calling thread is the row's, and has shut it.
fn close_own(row: &Row, which: impl Fn(&Line) -> bool) {
    for line in row.lines.iter().filter(|line| line.is_open() && which(line)) {
        line.close(true, counted);
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// In a fork child.
fn forget() {
    for row in &ROWS[..(USED.load(Ordering::Relaxed) as usize).min(ROWS.len())] {
        row.forget();
    }
    for entry in &ENTRIES {
        entry.parts.store(ptr::null_mut(), Ordering::Relaxed);
        entry.needs.store(0, Ordering::Relaxed);
    }
    IS_STILL.store(false, Ordering::Relaxed);
    NEEDED.store(0, Ordering::Relaxed);
    OPEN.store(0, Ordering::Relaxed);
}

fn quarter_of_descriptors() -> u32 {
    // Not rustix's, which takes for granted that the kernel answers: a filter may refuse.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if known { u32::try_from(limit.rlim_cur / 4).unwrap_or(u32::MAX) } else { 0 }
}

#[cfg(test)]
mod tests;

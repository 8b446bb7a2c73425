//! The unwind tables of this process, shared by all walks of its stacks.
//!
//! [`begin`] makes them, and they stay: what was learned for one profile is there for
//! the next one.
//!
//! A function is learned when a walk has missed it: [`step`] has a thread of the lowest priority
//! read it, and puts its rows into the tables when that thread has ended. Functions of stacks that
//! were copied are read by the thread that [follows](follow) the copy, because there the stack
//! waits for them. Each of the two takes a twentieth of a CPU at most (`learner.rs`).
//!
//! # Locking
//!
//! The lock of phase `Tables` is held while something is looked up in a copy of a stack, while rows
//! are put into the tables, and while tables are published. Walks do not take it, nor does the
//! thread that reads functions. A child of a fork has its parent's tables, which are as true there.

use std::time::Instant;

use dormouse_sys::process::fork::{Mutex, Phase};
use dormouse_sys::{Capability, environment, loader, memory};

use crate::function::Unlearned;
use crate::learner::{self, Allowance, Batch, Spending};
use crate::memory::ProcessMemory;
use crate::pool;
use crate::process::{LOOK, ProcessTables};
use crate::published::{self, Publisher, has_missed, take_missed};
use crate::rule::CallFrame;
use crate::tables::{CopyEnd, MOST};

/// The memory that a reading of the mappings may take: all that a kernel allows by default
/// (65,530), as text and as a list.
const ROOM: usize = 24 << 20;

/// The least limit of the memory of tables.
const LEAST: usize = 1 << 20;

static OWN: Mutex<Shared> = Mutex::new(
    Phase::Tables,
    Shared {
        tables: None,
        publisher: Publisher::new(),
        changes: 0,
        loaded: 0,
        asked: None,
        batch: None,
        allowance: Allowance::new(),
    },
);

#[derive(Debug)]
struct Shared {
    tables: Option<ProcessTables>,
    publisher: Publisher,
    /// The changes of the tables that walks have seen.
    changes: u64,
    /// The objects that had been loaded and unloaded when all mappings were last read.
    loaded: u64,
    /// When the loader was last asked for these.
    asked: Option<Instant>,
    /// The functions that are being read.
    batch: Option<Batch>,
    /// For those of copies.
    allowance: Allowance,
}

impl Shared {
    /// Whether to ask the loader now.
    fn is_due(&mut self) -> bool {
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= LOOK);
        if is_due {
            self.asked = Some(Instant::now());
        }
        is_due
    }

    /// Takes in what has been read meanwhile.
    fn take_in(&mut self) {
        let Some(learned) = self.batch.as_ref().and_then(Batch::take) else { return };
        self.batch = None;
        if let Some(tables) = &mut self.tables {
            for function in &learned {
                tables.tables().learn(function);
            }
        }
    }

    /// The functions that walks have missed, for the next batch. None while there is a batch.
    fn missed(&mut self) -> Vec<Unlearned> {
        let mut missed = Vec::new();
        let Self { tables: Some(tables), batch: None, .. } = self else { return missed };
        if has_missed() && missed.try_reserve_exact(learner::MOST).is_ok() {
            take_missed(|address| {
                missed.extend(tables.unlearned(address));
                missed.len() < learner::MOST
            });
        }
        missed
    }

    /// Shows walks what has been learned.
    fn publish(&mut self) {
        let Self { tables: Some(tables), publisher, changes, .. } = self else { return };
        let now = tables.tables().changes();
        if now != *changes && publisher.publish(tables.tables()) {
            *changes = now;
        }
    }
}

/// Reads what code is mapped. Walks by [`walk`](crate::walk) find functions from now on, each as
/// soon as it has been learned.
///
/// # Errors
///
/// The reason, in words: there is no memory, `/proc` is not mounted or another namespace's, or the
/// caller has interrupted another call. The other functions do nothing then.
///
/// # Cost
///
/// Reads the list of mappings, at most once a second.
pub fn begin() -> Result<(), String> {
    let mut own = OWN.lock().map_err(|_| "called in the middle of itself, or of a fork")?;
    pool::prepare();
    let has_room = memory::is_there(ROOM);
    match &mut own.tables {
        Some(tables) => _ = has_room && tables.look(),
        none => {
            if !has_room {
                return Err("there is no memory for the list of mappings".to_owned());
            }
            let mut tables = ProcessTables::own()
                .map_err(|error| format!("this process's memory cannot be read: {error}"))?;
            // Another process's, if another namespace's `/proc` is mounted.
            if !tables.is_code(begin as *const () as u64) {
                return Err("/proc does not show this process's mappings".to_owned());
            }
            tables.tables().set_most(most().0);
            *none = Some(tables);
        }
    }
    drop(own);
    step();
    Ok(())
}

/// Learns all functions of the object in which an address lies. Returns false if it has no table.
///
/// # Cost
///
/// Some ten milliseconds for a large library.
pub fn learn_object(address: u64) -> bool {
    let learn = |own: &mut Shared| own.tables.as_mut()?.tables().read_whole(address).map(drop);
    OWN.lock().is_ok_and(|mut own| {
        let has_table = learn(&mut own).is_some();
        own.publish();
        has_table
    })
}

/// Finds the functions in a copy of a stack from its stack pointer on, as
/// [`UnwindTables::follow`](crate::UnwindTables::follow) does, and how far they go. Those that were
/// not known are learned, unless that takes more than its share of a CPU: then the first of them is
/// noted, as by a walk that has missed it.
pub fn follow(from: CallFrame, copy: &[u8], into: &mut Vec<u64>) -> CopyEnd {
    into.clear();
    let Ok(mut own) = OWN.lock() else { return CopyEnd::Unlearned };
    let Shared { tables: Some(tables), allowance, .. } = &mut *own else { return CopyEnd::Unlearned };
    let (now, spending) = (Instant::now(), Spending::begin());
    let changes = tables.tables().changes();
    tables.tables().set_learning(allowance.is_left(now));
    let end = tables.follow(from, copy, into);
    tables.tables().set_learning(true);
    if tables.tables().changes() != changes {
        allowance.spend(spending.so_far(), now);
    }
    if end == CopyEnd::Unlearned
        && let Some(&last) = into.last()
    {
        published::miss(last as usize);
    }
    end
}

/// Starts a thread that reads what walks have missed, and shows them all that was learned. If
/// objects have been loaded or unloaded since the last time, reads the mappings again.
/// Returns whether there is more to learn.
pub fn step() -> bool {
    look();
    let Ok(mut own) = OWN.lock() else { return false };
    own.take_in();
    own.publish();
    let missed = own.missed();
    // Without memory what was missed is missed once more.
    if missed.is_empty() || !memory::is_there(learner::ROOM) {
        return own.batch.is_some();
    }
    let (batch, reading) = Batch::new(missed, ProcessMemory::own_again());
    own.batch = Some(batch);
    drop(own);
    reading.start();
    true
}

/// Learns what walks have missed, on the calling thread and at once: for tests and measurements.
/// Returns whether there was something.
pub fn learn_missed() -> bool {
    look();
    let Ok(mut own) = OWN.lock() else { return false };
    own.take_in();
    let Shared { tables: Some(tables), .. } = &mut *own else { return false };
    let has_missed = take_missed(|address| {
        if tables.is_code(address) || tables.look() {
            tables.tables().code(address);
        }
        true
    });
    own.publish();
    has_missed
}

/// Looks at the mappings, if it is time to, and objects have come or gone.
fn look() {
    if !OWN.lock().is_ok_and(|mut own| own.is_due()) {
        return;
    }
    // Not under the lock: a constructor that forks has the loader's, and waits for this one.
    let now = loader::changes();
    let Ok(mut own) = OWN.lock() else { return };
    if let Shared { tables: Some(tables), loaded, .. } = &mut *own
        && *loaded != now
        && memory::is_there(ROOM)
        && tables.look()
    {
        *loaded = now;
    }
}

/// The bytes of all tables: those that learn, those that walks search, and replaced ones that walks
/// may still read.
pub fn size() -> usize {
    let size = |own: &mut Shared| Some(own.tables.as_mut()?.tables().size() + own.publisher.size());
    OWN.lock().ok().and_then(|mut own| size(&mut own)).unwrap_or(0)
}

/// The check of `doctor`, once the tables are in use, or if their setting is wrong.
pub fn capability() -> Option<Capability> {
    const NAME: &str = "unwind.tables";
    let (most, config_error) = most();
    if let Some(why) = config_error {
        return Some(Capability::limited(NAME, why));
    }
    let bytes = size();
    let forgotten = OWN.lock().ok().and_then(|mut own| Some(own.tables.as_mut()?.tables().forgotten()))?;
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let so_far = format!("unwind tables take {:.1} of at most {:.0} MiB", mib(bytes), mib(2 * most));
    Some(match forgotten {
        0 => Capability::ok(NAME, so_far),
        times => {
            let why = format!("{so_far}: the longest was forgotten {times} times, and is learned again");
            Capability::limited(NAME, why).with_fix("set DORMOUSE_UNWIND_MEMORY to more")
        }
    })
}

/// The fault of `DORMOUSE_UNWIND_MEMORY`; the default is used instead.
pub fn config_error() -> Option<String> {
    most().1
}

/// The bytes of the tables that learn, and the fault of the setting. Walks search as much again.
fn most() -> (usize, Option<String>) {
    let Some(text) = &environment::variables().unwind_memory else { return (MOST / 2, None) };
    let text = text.to_string_lossy();
    match environment::bytes(&text).and_then(|bytes| usize::try_from(bytes).ok()) {
        Some(bytes) if bytes >= LEAST => (bytes / 2, None),
        _ => {
            let why = "is used: write a whole number and KiB, MiB or GiB, at least 1MiB";
            (MOST / 2, Some(format!("DORMOUSE_UNWIND_MEMORY is {text:?}, and 64MiB {why}")))
        }
    }
}

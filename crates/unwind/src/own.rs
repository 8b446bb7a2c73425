//! The unwind tables of this process, shared by all walks of its stacks.
//!
//! [`begin`] makes them, and they stay: what was learned for one profile is there for
//! the next one.
//!
//! # Locking
//!
//! The lock of phase `Tables` is held while something is learned. Walks do not take it. A child of
//! a fork has its parent's tables, which are as true there.

use std::time::Instant;

use dormouse_sys::process::fork::{Mutex, Phase};
use dormouse_sys::{loader, memory};

use crate::pool;
use crate::process::{LOOK, ProcessTables};
use crate::published::{self, Publisher};
use crate::rule::CallFrame;
use crate::tables::CopyEnd;

/// The memory that a reading of the mappings may take: all that a kernel allows by default
/// (65,530), as text and as a list.
const ROOM: usize = 24 << 20;

static OWN: Mutex<Shared> = Mutex::new(
    Phase::Tables,
    Shared { tables: None, publisher: Publisher::new(), changes: 0, loaded: 0, asked: None },
);

#[derive(Debug)]
struct Shared {
    tables: Option<ProcessTables>,
    publisher: Publisher,
    /// The changes of the tables that walks have seen.
    changes: u64,
    /// The objects that had been loaded and unloaded when the mappings were last looked at.
    loaded: u64,
    /// When the loader was last asked for these.
    asked: Option<Instant>,
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
    match &mut own.tables {
        Some(tables) => _ = tables.look(),
        none => {
            if !memory::is_there(ROOM) {
                return Err("there is no memory for the list of mappings".to_owned());
            }
            let tables = ProcessTables::own()
                .map_err(|error| format!("this process's memory cannot be read: {error}"))?;
            // Another process's, if another namespace's `/proc` is mounted.
            if !tables.is_code(begin as *const () as u64) {
                return Err("/proc does not show this process's mappings".to_owned());
            }
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
    let has_table = OWN.lock().is_ok_and(|mut own| learn(&mut own).is_some());
    step();
    has_table
}

/// Finds the functions in a copy of a stack from its stack pointer on, as
/// [`UnwindTables::follow`](crate::UnwindTables::follow) does, and how far they go. Those that were
/// not known are learned.
pub fn follow(from: CallFrame, copy: &[u8], into: &mut Vec<u64>) -> CopyEnd {
    into.clear();
    let Ok(mut own) = OWN.lock() else { return CopyEnd::Unknown };
    own.tables.as_mut().map_or(CopyEnd::Unknown, |tables| tables.follow(from, copy, into))
}

/// Learns what walks have missed, and shows them all that was learned. If objects have been loaded
/// or unloaded since the last time, looks at the mappings again. Returns whether something was
/// missed.
pub fn step() -> bool {
    let is_due = OWN.lock().is_ok_and(|mut own| own.is_due());
    // Not under the lock: a constructor that forks has the loader's, and waits for this one.
    let now = is_due.then(loader::changes);
    let Ok(mut own) = OWN.lock() else { return false };
    let Shared { tables: Some(tables), publisher, changes, loaded, .. } = &mut *own else { return false };
    if let Some(now) = now.filter(|now| now != loaded)
        && tables.look()
    {
        *loaded = now;
    }
    let has_missed = published::learn_missed(|address| tables.learn(address));
    if has_missed || tables.tables().changes() != *changes {
        *changes = tables.tables().changes();
        publisher.publish(tables.tables());
    }
    has_missed
}

/// The bytes of all tables.
pub fn size() -> usize {
    OWN.lock().ok().and_then(|mut own| Some(own.tables.as_mut()?.tables().size())).unwrap_or(0)
}

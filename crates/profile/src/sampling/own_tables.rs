//! The unwind tables of this process, on the sampler's thread, while profiles are taken.

use dormouse_sys::{loader, memory};
use dormouse_unwind::{CallFrame, CopyEnd, ProcessTables, Publisher};

/// The memory that a look at the mappings may take: all that a kernel allows by default (65,530),
/// as text and as a list.
const ROOM: usize = 24 << 20;

/// The tables that all profiles share.
#[derive(Debug, Default)]
pub(super) struct OwnTables {
    tables: Option<Shown>,
    /// Why there are none.
    why: Option<String>,
    frames: Vec<u64>,
}

#[derive(Debug)]
struct Shown {
    tables: ProcessTables,
    publisher: Publisher,
    /// The changes that handlers have seen.
    changes: u64,
}

impl OwnTables {
    /// Reads what code is mapped, unless that is known. Handlers find nothing in the tables yet:
    /// functions are learned when samples meet them.
    pub(super) fn begin(&mut self) {
        if self.tables.is_some() {
            return;
        }
        if !memory::is_there(ROOM) {
            self.why = Some("there is no memory for the list of mappings".to_owned());
            return;
        }
        match ProcessTables::own() {
            // Another process's, if another namespace's `/proc` is mounted.
            Ok(tables) if !tables.is_code(Self::begin as *const () as u64) => {
                self.why = Some("/proc does not show this process's mappings".to_owned());
            }
            Ok(tables) => {
                self.tables = Some(Shown { tables, publisher: Publisher::default(), changes: 0 });
                self.why = None;
            }
            Err(error) => self.why = Some(format!("this process's memory cannot be read: {error}")),
        }
    }

    /// Learns all of the C library, for samples that leave no copy of their stack: most of those
    /// that do not begin in the program's code begin there.
    ///
    /// # Cost
    ///
    /// Some ten milliseconds, and 150 KB while profiles are taken.
    pub(super) fn learn_library(&mut self) {
        let Some(Shown { tables, .. }) = &mut self.tables else { return };
        let known = libc::getpid as *const () as usize;
        if !loader::is_in_executable(known) {
            tables.tables().read_whole(known as u64);
            self.step();
        }
    }

    /// Forgets everything.
    pub(super) fn end(&mut self) {
        self.tables = None;
    }

    /// Why callers are found by frame pointers alone, if they are.
    pub(super) fn why_not(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// The functions in a copy of a stack from its stack pointer on, and how far they go. Those
    /// that were not known are learned.
    pub(super) fn follow(&mut self, from: CallFrame, copy: &[u8]) -> Option<(&[u64], CopyEnd)> {
        let Self { tables, frames, .. } = self;
        let end = tables.as_mut()?.tables.follow(from, copy, frames);
        Some((frames, end))
    }

    /// Learns what handlers have missed, and shows them all that was learned.
    pub(super) fn step(&mut self) {
        let Some(Shown { tables, publisher, changes }) = &mut self.tables else { return };
        let has_missed = publisher.learn_missed(|address| tables.learn(address));
        if has_missed || tables.tables().changes() != *changes {
            *changes = tables.tables().changes();
            publisher.publish(tables.tables());
        }
    }
}

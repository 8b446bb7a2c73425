//! The tables of one process, which follow its mappings.

use std::io;
use std::time::{Duration, Instant};

use dormouse_maps::read_maps;

use crate::function::Unlearned;
use crate::memory::ProcessMemory;
use crate::rule::CallFrame;
use crate::tables::{CopyEnd, UnwindTables};

/// The shortest time between two readings of the mappings of this process.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// The pause between two readings of another process, in times of what the last reading took. A
/// process that has just begun loads its libraries within milliseconds.
const PAUSE: u32 = 20;

/// The unwind tables of a process. When a stack has an address in unknown code, the kernel's list
/// of mappings is read again: an object may have been loaded since. This process's is read at most
/// once a second, another one's for at most a twentieth of the time.
#[derive(Debug)]
pub struct ProcessTables {
    /// `/proc/PID/maps`.
    maps: String,
    tables: UnwindTables<ProcessMemory>,
    is_own: bool,
    looked: Instant,
    /// The shortest time until the next reading.
    pause: Duration,
}

impl ProcessTables {
    /// The tables of this process.
    ///
    /// # Errors
    ///
    /// Those of [`ProcessMemory::own`], and of reading `/proc/self/maps`.
    pub fn own() -> io::Result<Self> {
        Self::new(ProcessMemory::own()?, "/proc/self/maps".to_owned(), true)
    }

    /// The tables of another process.
    ///
    /// # Errors
    ///
    /// Those of [`ProcessMemory::of`], and of reading `/proc/PID/maps`.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::new(ProcessMemory::of(pid)?, format!("/proc/{pid}/maps"), false)
    }

    fn new(memory: ProcessMemory, maps: String, is_own: bool) -> io::Result<Self> {
        let mut tables = UnwindTables::new(memory);
        tables.update(&read_maps(&maps)?);
        let pause = if is_own { LOOK } else { Duration::ZERO };
        Ok(Self { maps, tables, is_own, looked: Instant::now(), pause })
    }

    /// The tables.
    pub fn tables(&mut self) -> &mut UnwindTables<ProcessMemory> {
        &mut self.tables
    }

    /// Whether code lies at an address.
    pub fn is_code(&self, address: u64) -> bool {
        self.tables.is_code(address)
    }

    /// Follows a copy of a stack, as [`UnwindTables::follow`] does.
    pub fn follow(&mut self, from: CallFrame, copy: &[u8], into: &mut Vec<u64>) -> CopyEnd {
        let end = self.tables.follow(from, copy, into);
        let is_unknown = |&address: &u64| !self.tables.is_code(address);
        if end == CopyEnd::NoTable && into.last().is_some_and(is_unknown) && self.look() {
            return self.tables.follow(from, copy, into);
        }
        end
    }

    /// The function to be read to find the caller of an address. If no code is known there, looks
    /// at the mappings first.
    pub(crate) fn unlearned(&mut self, address: u64) -> Option<Unlearned> {
        if self.is_code(address) || self.look() { self.tables.unlearned(address) } else { None }
    }

    /// Looks at the mappings, if it is time to. Whether all of them and their objects were read.
    pub fn look(&mut self) -> bool {
        if self.looked.elapsed() < self.pause {
            return false;
        }
        let begun = Instant::now();
        let is_whole = read_maps(&self.maps).is_ok_and(|maps| self.tables.update(&maps));
        self.looked = Instant::now();
        if !self.is_own {
            self.pause = PAUSE * (self.looked - begun);
        }
        is_whole
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use dormouse_testkit::in_child;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_is_missed() {
        in_child(|| {
            let mut tables = ProcessTables::own().unwrap();
            tables.pause = Duration::ZERO;
            let before = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
            assert!(!tables.look());
            setrlimit(Resource::Nofile, before).unwrap();
            assert!(tables.look());
        });
    }

    #[test]
    fn a_list_that_breaks_off_changes_nothing() {
        let mut tables = ProcessTables::own().unwrap();
        tables.pause = Duration::ZERO;
        let own = a_list_that_breaks_off_changes_nothing as *const () as u64;
        assert!(tables.is_code(own));
        // A mapping that has grown while the kernel went on to the next page.
        let file = tempfile();
        std::fs::write(&file, "1000-2000 rw-p 00000000 00:00 0 \n1000-3000 rw-p 00000000 00:00 0 \n")
            .unwrap();
        let maps = std::mem::replace(&mut tables.maps, file.to_str().unwrap().to_owned());
        assert!(!tables.look());
        assert!(tables.is_code(own));
        tables.maps = maps;
        assert!(tables.look());
        std::fs::remove_file(file).unwrap();
    }

    /// A path that no other test uses.
    fn tempfile() -> std::path::PathBuf {
        std::env::temp_dir().join(format!("dormouse-maps-{}", std::process::id()))
    }
}

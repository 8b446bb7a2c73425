//! From the kernel's records to the operations of a trace: who is whose child, and which mappings grew.
//!
//! The kernel reports a mapping as it is after it was merged with its neighbours, and reports nothing when one is
//! taken away. So a record that reaches over exactly what was there, and whose backing goes on where
//! the old one's did, is the old mapping grown; what is reported again as it was is left out.

use std::collections::{BTreeMap, HashMap};

use dormouse_bench::trace::Op;
use dormouse_sys::perf::{Record, What};

const PAGE_BITS: u32 = 12;

/// A trace in the making.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) ops: Vec<Op>,
    /// Faults in no known mapping.
    pub(crate) unknown: u64,
    processes: u32,
    threads: u32,
    /// By pid, which can be used again.
    alive: HashMap<u32, Process>,
    /// By tid.
    running: HashMap<u32, u32>,
    faults: usize,
}

#[derive(Debug, Clone)]
struct Process {
    number: u32,
    /// By first page.
    mappings: BTreeMap<u64, Mapping>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping {
    end: u64,
    file: Vec<u8>,
    /// First page minus page of the file, for files: equal for pieces of one run.
    bias: u64,
}

/// The operations of `records`, up to so many faults.
pub(crate) fn ops(records: &[Record], most: usize) -> Replayed {
    let mut replayed = Replayed::default();
    for record in records {
        if replayed.faults == most {
            break;
        }
        replayed.take(&record.what);
    }
    replayed
}

impl Replayed {
    fn take(&mut self, what: &What) {
        match what {
            What::Exec { pid, tid } => {
                self.end(*pid);
                self.process(*pid, None);
                self.thread(*pid, *tid);
            }
            What::Fork { pid, parent, tid } => {
                if pid != parent {
                    self.process(*pid, Some(*parent));
                }
                self.thread(*pid, *tid);
            }
            What::Exit { pid, tid } => {
                self.running.remove(tid);
                if pid == tid {
                    self.end(*pid);
                }
            }
            What::Mapping { pid, start, len, offset, file } => {
                // A mapping that ends at the last address would have no end; there is none below the
                // kernel's half.
                let (page, pages) = (start >> PAGE_BITS, len >> PAGE_BITS);
                let Some(process) = self.alive.get_mut(pid) else { return };
                if pages == 0 || *start >= 1 << 63 {
                    return;
                }
                let anonymous = !file.starts_with(b"/") || file.starts_with(b"//");
                let bias = if anonymous { 0 } else { page.wrapping_sub(offset >> PAGE_BITS) };
                let new = Mapping { end: page + pages, file: file.clone(), bias };
                let process_number = process.number;
                match process.overlay(page, new) {
                    Change::None => {}
                    Change::Grown => self.ops.push(Op::Grow { process: process_number, page, pages }),
                    Change::Mapped => self.ops.push(Op::Map { process: process_number, page, pages }),
                }
            }
            What::Sample { pid, tid, addr, .. } => {
                let page = addr >> PAGE_BITS;
                let known = self.alive.get(pid).is_some_and(|process| process.covers(page));
                match self.running.get(tid) {
                    Some(&thread) if known => {
                        self.ops.push(Op::Fault { thread, page });
                        self.faults += 1;
                    }
                    _ => self.unknown += 1,
                }
            }
            _ => {}
        }
    }

    fn process(&mut self, pid: u32, parent: Option<u32>) {
        let parent = parent.and_then(|pid| self.alive.get(&pid)).cloned();
        self.ops.push(Op::Process { parent: parent.as_ref().map(|parent| parent.number) });
        let mappings = parent.map(|parent| parent.mappings).unwrap_or_default();
        self.alive.insert(pid, Process { number: self.processes, mappings });
        self.processes += 1;
    }

    fn thread(&mut self, pid: u32, tid: u32) {
        let Some(process) = self.alive.get(&pid) else { return };
        self.ops.push(Op::Thread { process: process.number });
        self.running.insert(tid, self.threads);
        self.threads += 1;
    }

    fn end(&mut self, pid: u32) {
        if let Some(process) = self.alive.remove(&pid) {
            self.ops.push(Op::Exit { process: process.number });
        }
    }
}

enum Change {
    None,
    Grown,
    Mapped,
}

impl Process {
    fn covers(&self, page: u64) -> bool {
        self.mappings.range(..=page).next_back().is_some_and(|(_, mapping)| page < mapping.end)
    }

    fn overlay(&mut self, page: u64, new: Mapping) -> Change {
        let first = self.mappings.range(..=page).next_back().filter(|(_, m)| m.end > page).map(|(&s, _)| s);
        let from = first.unwrap_or(page);
        let there: Vec<(u64, Mapping)> =
            self.mappings.range(from..new.end).map(|(&start, mapping)| (start, mapping.clone())).collect();
        let mut change = Change::Mapped;
        if let [(start, old)] = there.as_slice() {
            let inside = *start >= page && old.end <= new.end;
            if inside && old.file == new.file && old.bias == new.bias {
                let same = *start == page && old.end == new.end;
                change = if same { Change::None } else { Change::Grown };
            }
        }
        for (start, old) in there {
            self.mappings.remove(&start);
            if start < page {
                self.mappings.insert(start, Mapping { end: page, ..old.clone() });
            }
            if old.end > new.end {
                self.mappings.insert(new.end, old);
            }
        }
        self.mappings.insert(page, new);
        change
    }
}

//! From the kernel's records to the operations of a trace: who is whose child, and which mappings
//! grew.
//!
//! The kernel reports a mapping as it is after it was merged with its neighbours, and reports
//! nothing when one is taken away. So a record that reaches over exactly what was there, and whose
//! backing goes on where the old one's did, is the old mapping grown; what is reported again as it
//! was is left out.

use std::collections::{BTreeMap, HashMap};

use dormouse_sys::perf::What;

use super::trace::FaultOp as Op;

const PAGE_BITS: u32 = 12;

/// The processes, threads and mappings so far.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// Faults after which nothing more is told.
    most: u64,
    /// Operations that nobody has taken yet.
    ops: Vec<Op>,
    pub(super) counts: Counts,
    /// By pid, which can be used again.
    alive: HashMap<u32, Process>,
    /// By tid.
    running: HashMap<u32, u32>,
}

/// The contents of a trace, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Page faults.
    pub faults: u64,
    /// Faults in no known mapping, which are left out.
    pub faults_outside: u64,
    /// Programs, and their forks.
    pub processes: u32,
    /// Threads.
    pub threads: u32,
    /// New mappings.
    pub mapped: u64,
    /// Mappings that grew.
    pub grown: u64,
    /// Records that did not fit into the kernel's buffers.
    pub lost: u64,
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

impl Story {
    /// An empty story that holds at most `most` faults.
    pub(super) fn up_to(most: u64) -> Self {
        Self { most, ..Self::default() }
    }

    /// Whether it has all the faults that it may have.
    pub(super) fn is_full(&self) -> bool {
        self.counts.faults == self.most
    }

    /// The operations that have not been taken yet.
    pub(super) fn take(&mut self) -> std::vec::Drain<'_, Op> {
        self.ops.drain(..)
    }

    /// Goes on with what happened next.
    pub(super) fn tell(&mut self, what: &What) {
        if self.is_full() {
            return;
        }
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
                // A mapping that ends at the last address would have no end; there is none below
                // the kernel's half.
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
                    Change::Grown => {
                        self.ops.push(Op::Grow { process: process_number, page, pages });
                        self.counts.grown += 1;
                    }
                    Change::Mapped => {
                        self.ops.push(Op::Map { process: process_number, page, pages });
                        self.counts.mapped += 1;
                    }
                }
            }
            What::Sample { pid, tid, addr, .. } => {
                let page = addr >> PAGE_BITS;
                let known = self.alive.get(pid).is_some_and(|process| process.covers(page));
                match self.running.get(tid) {
                    Some(&thread) if known => {
                        self.ops.push(Op::Fault { thread, page });
                        self.counts.faults += 1;
                    }
                    _ => self.counts.faults_outside += 1,
                }
            }
            What::Lost(records) => self.counts.lost += records,
            _ => {}
        }
    }

    fn process(&mut self, pid: u32, parent: Option<u32>) {
        let parent = parent.and_then(|pid| self.alive.get(&pid)).cloned();
        self.ops.push(Op::Process { parent: parent.as_ref().map(|parent| parent.number) });
        let mappings = parent.map(|parent| parent.mappings).unwrap_or_default();
        self.alive.insert(pid, Process { number: self.counts.processes, mappings });
        self.counts.processes += 1;
    }

    fn thread(&mut self, pid: u32, tid: u32) {
        let Some(process) = self.alive.get(&pid) else { return };
        self.ops.push(Op::Thread { process: process.number });
        self.running.insert(tid, self.counts.threads);
        self.counts.threads += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1 << PAGE_BITS;

    fn mapping(pages: std::ops::Range<u64>, file: &str) -> What {
        let (start, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        What::Mapping { pid: 1, start, len, offset: 0, file: file.into() }
    }

    fn fault(tid: u32, page: u64) -> What {
        What::Sample { pid: 1, tid, ip: 0, addr: page * PAGE + 7, callchain: Vec::new(), stack: None }
    }

    /// The operations for events of process 1 with threads 1 and 2 and two mappings.
    fn told(happened: &[What]) -> (Vec<Op>, Counts) {
        let mut story = Story::up_to(u64::MAX);
        let begun = [
            What::Exec { pid: 1, tid: 1 },
            What::Fork { pid: 1, parent: 1, tid: 2 },
            mapping(10..20, "//anon"),
            mapping(20..30, "/bin/x"),
        ];
        for what in &begun {
            story.tell(what);
        }
        assert_eq!(story.take().count(), 5);
        for what in happened {
            story.tell(what);
        }
        (story.take().collect(), story.counts)
    }

    #[test]
    fn a_mapping_is_new_or_grown_or_known() {
        let (ops, counts) = told(&[
            mapping(10..20, "//anon"),
            mapping(10..20, "/bin/y"),
            mapping(30..40, "//anon"),
            mapping(25..45, "//anon"),
            mapping(45..50, "//anon"),
            mapping(44..50, "//anon"),
        ]);
        let map = |page, pages| Op::Map { process: 0, page, pages };
        // 25 to 45 reaches over a piece of a file as well; the last but one lies beside.
        assert_eq!(ops, [map(10, 10), map(30, 10), map(25, 20), map(45, 5), map(44, 6)]);
        assert_eq!((counts.mapped, counts.grown), (7, 0));
        let (ops, counts) = told(&[mapping(5..20, "//anon")]);
        assert_eq!((ops.as_slice(), counts.grown), (&[Op::Grow { process: 0, page: 5, pages: 15 }][..], 1));
    }

    #[test]
    fn threads_and_processes_come_once_and_go() {
        let (ops, counts) = told(&[
            What::Fork { pid: 1, parent: 1, tid: 3 },
            fault(3, 11),
            What::Fork { pid: 9, parent: 1, tid: 9 },
            What::Exit { pid: 1, tid: 3 },
            fault(3, 11),
            What::Exec { pid: 9, tid: 9 },
            What::Exit { pid: 1, tid: 1 },
        ]);
        assert_eq!(
            ops,
            [
                Op::Thread { process: 0 },
                Op::Fault { thread: 2, page: 11 },
                Op::Process { parent: Some(0) },
                Op::Thread { process: 1 },
                Op::Exit { process: 1 },
                Op::Process { parent: None },
                Op::Thread { process: 2 },
                Op::Exit { process: 0 },
            ]
        );
        assert_eq!((counts.processes, counts.threads, counts.faults_outside), (3, 5, 1));
    }

    #[test]
    fn lost_and_outside_faults_are_counted() {
        let (ops, counts) = told(&[fault(1, 9), fault(1, 10), What::Lost(7), fault(2, 30), fault(4, 10)]);
        assert_eq!(ops, [Op::Fault { thread: 0, page: 10 }]);
        assert_eq!((counts.faults, counts.faults_outside, counts.lost), (1, 3, 7));
    }
}

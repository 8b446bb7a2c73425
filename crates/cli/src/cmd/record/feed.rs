//! The kernel's records of page faults, of mappings and of the life of threads, in order of time.
//!
//! An inherited event has a buffer only on one processor, and is inherited only by what its thread
//! starts later. So each thread that runs already gets an event on each processor, and threads are
//! looked for again until none is new. A thread that comes in the middle of that may be found
//! twice, as itself and as a child: of each thread's records those of one buffer's owner count.
//!
//! # Order
//!
//! Each buffer is in order, all of them together are not. The latest moment that one pass over them
//! found was over before the next pass began, so after that one everything up to it is here and can
//! be told in order. Memory is bounded by what happens between two passes.

use std::collections::{HashMap, HashSet};
use std::num::NonZero;
use std::{fs, io};

use dormouse_maps::{MappingKind, MapsLine, parse};
use dormouse_sys::perf::{
    Attr, Buffer, Error, KernelEvent, PerfRecord, Sampling, Subject, What, online_cpus,
};

use crate::target::Proc;

/// Bytes of all buffers together, where they may be locked, and of one, at most.
const ALL: usize = 128 << 20;
const LARGEST: usize = 32 << 20;
/// Every fault; also new mappings, and threads that begin and end.
const SAMPLING: Sampling =
    Sampling { every: NonZero::<u64>::MIN, life: true, callchain: false, stack_bytes: 0 };

/// Buffers, and what was read from them but not told yet.
#[derive(Debug)]
pub(super) struct Feed {
    cpus: Vec<u32>,
    attr: Attr,
    /// Faults that the kernel takes for a process are missing, because more is not allowed.
    pub(super) user_only: bool,
    /// With the thread that each was opened for.
    buffers: Vec<(u32, Buffer)>,
    /// In order up to where the last pass began.
    pending: Vec<(u32, PerfRecord)>,
    /// The latest moment of the pass before.
    latest: u64,
    sources: Sources,
}

/// Whose buffer speaks for a thread.
#[derive(Debug, Default)]
struct Sources {
    /// Threads that have buffers of their own.
    own: HashSet<u32>,
    /// Their descendants, by the owner of the first buffer that spoke of them.
    inherited: HashMap<u32, u32>,
}

impl Feed {
    /// A feed for what the calling thread starts: from each program's start on.
    pub(super) fn of_children() -> Result<Self, Error> {
        let mut feed = Self::new(Attr::count(KernelEvent::PageFaults).inherited().from_exec());
        feed.open(rustix::thread::gettid().as_raw_pid().cast_unsigned(), 1)?;
        Ok(feed)
    }

    /// A feed for a running process, and for what it starts. Also returns the threads that it has.
    pub(super) fn of_process(pid: u32, proc: &Proc) -> Result<(Self, Vec<u32>), Error> {
        let mut feed = Self::new(Attr::count(KernelEvent::PageFaults).inherited());
        let mut known = HashSet::new();
        loop {
            let tids = proc.tids(pid).unwrap_or_default();
            // Those that were inherited in the meantime have said so.
            feed.drain();
            known.extend(feed.pending.iter().filter_map(|(_, record)| match record.what {
                What::Fork { pid: of, tid, .. } if of == pid => Some(tid),
                _ => None,
            }));
            let new: Vec<u32> = tids.into_iter().filter(|&tid| known.insert(tid)).collect();
            if new.is_empty() {
                break;
            }
            for &tid in &new {
                match feed.open(tid, new.len()) {
                    // It has ended since.
                    Err(Error::NoSuchThread { .. }) => {}
                    result => result?,
                }
            }
        }
        if feed.buffers.is_empty() {
            return Err(Error::NoSuchThread { tid: pid });
        }
        Ok((feed, known.into_iter().collect()))
    }

    fn new(attr: Attr) -> Self {
        Self {
            cpus: online_cpus(),
            attr,
            user_only: false,
            buffers: Vec::new(),
            pending: Vec::new(),
            latest: 0,
            sources: Sources::default(),
        }
    }

    /// Opens an event of `tid`, one of `threads` threads, on each processor.
    fn open(&mut self, tid: u32, threads: usize) -> Result<(), Error> {
        let mut bytes = (ALL / threads / self.cpus.len().max(1)).min(LARGEST);
        for at in 0..self.cpus.len() {
            let subject = Subject::ThreadOnCpu { tid, cpu: self.cpus[at] };
            let buffer = loop {
                match Buffer::open(&self.attr, SAMPLING, subject, bytes) {
                    Err(Error::Denied { .. }) if !self.user_only => {
                        self.user_only = true;
                        self.attr = self.attr.user_only();
                    }
                    // Not every user may lock that much memory.
                    Err(Error::LockedMemory { .. }) if bytes > rustix::param::page_size() => bytes /= 2,
                    // Switched off since.
                    Err(Error::NoSuchCpu { .. }) => break None,
                    result => break Some(result?),
                }
            };
            self.buffers.extend(buffer.map(|buffer| (tid, buffer)));
        }
        self.sources.own.insert(tid);
        Ok(())
    }

    /// Tells `tell` what is known to be in order.
    pub(super) fn pass(&mut self, tell: impl FnMut(&What)) {
        let limit = self.drain();
        self.tell_until(limit, tell);
    }

    /// Tells it everything that there is.
    pub(super) fn finish(&mut self, tell: impl FnMut(&What)) {
        self.drain();
        self.tell_until(u64::MAX, tell);
    }

    /// Reads all buffers; up to which moment everything is here now.
    fn drain(&mut self) -> u64 {
        let limit = self.latest;
        for (owner, buffer) in &mut self.buffers {
            buffer.drain(|record| {
                self.latest = self.latest.max(record.time);
                self.pending.push((*owner, record));
            });
        }
        limit
    }

    fn tell_until(&mut self, limit: u64, mut tell: impl FnMut(&What)) {
        // Stable: records of one moment and one buffer stay in order.
        self.pending.sort_by_key(|(_, record)| record.time);
        let count = self.pending.partition_point(|(_, record)| record.time <= limit);
        for (owner, record) in self.pending.drain(..count) {
            if self.sources.speaks(owner, &record.what) {
                tell(&record.what);
            }
        }
    }
}

impl Sources {
    fn speaks(&mut self, owner: u32, what: &What) -> bool {
        let (What::Sample { tid, .. }
        | What::Fork { tid, .. }
        | What::Exec { tid, .. }
        | What::Exit { tid, .. }) = what
        else {
            return true;
        };
        let source = if self.own.contains(tid) { *tid } else { *self.inherited.entry(*tid).or_insert(owner) };
        let speaks = source == owner;
        if speaks && matches!(what, What::Exit { .. }) {
            // The number may be given to another thread.
            self.own.remove(tid);
            self.inherited.remove(tid);
        }
        speaks
    }
}

/// The mappings of a process as the kernel would have reported them.
pub(super) fn mappings_of(pid: u32, proc: &Proc) -> io::Result<Vec<What>> {
    Ok(mappings_in(pid, &fs::read(proc.path(pid, "maps"))?))
}

/// The mappings in the text of a maps file. The process may change them while it is read, so a line
/// that does not lie behind the one before it, or breaks off, is left out.
fn mappings_in(pid: u32, text: &[u8]) -> Vec<What> {
    let mapping = |line: MapsLine<'_>| {
        let file = match line.kind {
            // As its records call memory without a file.
            MappingKind::Anonymous => b"//anon".to_vec(),
            _ if line.name.starts_with(b"[anon") => b"//anon".to_vec(),
            // The kernel's own records of mappings have the mark.
            MappingKind::Deleted | MappingKind::Memfd => [&line.name[..], b" (deleted)"].concat(),
            _ => line.name.into_owned(),
        };
        What::Mapping { pid, start: line.start, len: line.last - line.start + 1, offset: line.offset, file }
    };
    parse(text).filter_map(Result::ok).map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_read_as_the_kernel_reports_mappings() {
        let text = b"1000-3000 r-xp 00002000 fe:01 12   /a b\n\
            3000-5000 rw-p 00000000 00:00 0 \n\
            5000-7000 rw-p 00000000 00:00 0  [anon: x]\n\
            5000-7000 rw-p 00000000 00:00 0  [heap]\n\
            7000-9000 rw-p 00000000 00:00 0  [heap]\n\
            9000-a000 rw-p 0000";
        let read = mappings_in(7, text).into_iter().map(|what| match what {
            What::Mapping { pid: 7, start, len, offset, file } => {
                (start, len, offset, String::from_utf8(file).unwrap())
            }
            other => panic!("{other:?}"),
        });
        let right = [
            (0x1000, 0x2000, 0x2000, "/a b"),
            (0x3000, 0x2000, 0, "//anon"),
            (0x5000, 0x2000, 0, "//anon"),
            (0x7000, 0x2000, 0, "[heap]"),
        ];
        assert!(read.eq(right.map(|(start, len, offset, file)| (start, len, offset, file.to_owned()))));
    }

    #[test]
    fn one_buffer_speaks_for_a_thread() {
        let mut sources = Sources { own: HashSet::from([1, 2]), inherited: HashMap::new() };
        let sample = |tid| What::Sample { pid: 1, tid, ip: 0, addr: 0, callchain: Vec::new(), stack: None };
        // 2 is also a child of 1, and 3 one of both.
        for (owner, tid, speaks) in [(1, 1, true), (1, 2, false), (2, 2, true), (2, 3, true), (1, 3, false)] {
            assert_eq!(sources.speaks(owner, &sample(tid)), speaks, "{tid} by {owner}");
        }
        assert!(sources.speaks(2, &What::Exit { pid: 1, tid: 2 }));
        assert!(sources.speaks(1, &sample(2)), "another thread of that number");
        assert!(sources.speaks(1, &What::Lost(1)));
    }
}

//! The kernel's records of page faults, of mappings and of the life of threads, in the order of time.
//!
//! An inherited event has a buffer only on one processor, and is inherited only by what its thread starts later. So
//! each thread that runs already gets an event on each processor, and threads are looked for again until none is new. A
//! thread that comes in the middle of that may be found twice, as itself and as a child: of each thread's records those
//! of one buffer's owner count.
//!
//! # Order
//!
//! Each buffer is in order, all of them together are not. What one pass over them has found to be the latest moment was over
//! before the next pass began, so after that one everything up to it is here and can be told in order. Memory is bounded
//! by what happens between two passes.

use std::collections::{HashMap, HashSet};
use std::num::NonZero;
use std::{fs, io};

use dormouse_sys::perf::{Attr, Buffer, Counted, Error, Record, Sampling, Subject, What};

use crate::target::Proc;

/// Bytes of all buffers together, where they may be locked, and of one, at most.
const ALL: usize = 128 << 20;
const LARGEST: usize = 32 << 20;
/// Every fault; also what maps and who lives.
const SAMPLING: Sampling = Sampling { every: NonZero::<u64>::MIN, life: true };

/// Buffers, and what was read from them but not told yet.
#[derive(Debug)]
pub(super) struct Feed {
    cpus: Vec<u32>,
    attr: Attr,
    user_only: bool,
    /// With the thread that each was opened for.
    buffers: Vec<(u32, Buffer)>,
    /// In order up to where the last pass began.
    pending: Vec<(u32, Record)>,
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
    /// Of what the calling thread starts: from each program's start on.
    pub(super) fn of_children() -> Result<Self, Error> {
        let mut feed = Self::new(Attr::count(Counted::PageFaults).inherited().from_exec());
        feed.open(rustix::thread::gettid().as_raw_pid().cast_unsigned(), 1)?;
        Ok(feed)
    }

    /// Of a process that runs, and of what it starts; also the threads that it has.
    pub(super) fn of_process(pid: u32, proc: &Proc) -> Result<(Self, Vec<u32>), Error> {
        let mut feed = Self::new(Attr::count(Counted::PageFaults).inherited());
        let mut known = HashSet::new();
        loop {
            let tids = threads_of(pid, proc).unwrap_or_default();
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
            cpus: online(),
            attr,
            user_only: false,
            buffers: Vec::new(),
            pending: Vec::new(),
            latest: 0,
            sources: Sources::default(),
        }
    }

    /// Whether faults that the kernel takes for a process are missing, because more is not allowed.
    pub(super) fn is_user_only(&self) -> bool {
        self.user_only
    }

    /// Opens an event of `tid`, one of so many threads, on each processor.
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
                    // Not everybody may lock so much.
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

/// The threads of a process.
fn threads_of(pid: u32, proc: &Proc) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(proc.path(pid, "task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The processors that are on.
fn online() -> Vec<u32> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let cpus = processors(list.trim());
    if cpus.is_empty() {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get);
        return (0..count as u32).collect();
    }
    cpus
}

/// The numbers in a list as `0-3,5`.
fn processors(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// The mappings of a process as the kernel would have reported them. None when they cannot be read.
pub(super) fn mappings_of(pid: u32, proc: &Proc) -> io::Result<Vec<What>> {
    let text = fs::read(proc.path(pid, "maps"))?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(|line| mapping(pid, line)).collect())
}

/// A line of `/proc/PID/maps`: `start-end rights offset device inode` and the path, which is the rest.
fn mapping(pid: u32, line: &[u8]) -> Option<What> {
    let mut rest = line;
    let mut columns = [""; 5];
    for column in &mut columns {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (text, after) = rest.split_at(end);
        (*column, rest) = (std::str::from_utf8(text).ok()?, after);
    }
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = columns[0].split_once('-')?;
    let (start, end) = (number(start)?, number(end)?);
    let file = match rest.trim_ascii_start() {
        // As its records call memory without a file.
        b"" => b"//anon".to_vec(),
        name if name.starts_with(b"[anon") => b"//anon".to_vec(),
        name => name.to_vec(),
    };
    Some(What::Mapping { pid, start, len: end.checked_sub(start)?, offset: number(columns[2])?, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read_as_the_kernel_reports_mappings() {
        let read = |line: &str| match mapping(7, line.as_bytes())? {
            What::Mapping { pid: 7, start, len, offset, file } => {
                Some((start, len, offset, String::from_utf8(file).unwrap()))
            }
            other => panic!("{other:?}"),
        };
        for (line, right) in [
            ("1000-3000 r-xp 00002000 fe:01 12   /a b", Some((0x1000, 0x2000, 0x2000, "/a b"))),
            ("1000-3000 rw-p 00000000 00:00 0 ", Some((0x1000, 0x2000, 0, "//anon"))),
            ("1000-3000 rw-p 00000000 00:00 0  [anon: x]", Some((0x1000, 0x2000, 0, "//anon"))),
            ("1000-3000 rw-p 00000000 00:00 0  [heap]", Some((0x1000, 0x2000, 0, "[heap]"))),
            ("3000-1000 rw-p 00000000 00:00 0", None),
            ("1000 rw-p 00000000 00:00 0", None),
            ("", None),
        ] {
            let right = right.map(|(start, len, offset, file)| (start, len, offset, file.to_owned()));
            assert_eq!(read(line), right, "{line:?}");
        }
    }

    #[test]
    fn lists_of_processors_are_read() {
        for (list, right) in [("0", &[0][..]), ("0-2,5", &[0, 1, 2, 5]), ("", &[]), ("x-1,7", &[7])] {
            assert_eq!(processors(list), right, "{list:?}");
        }
    }

    #[test]
    fn of_what_two_buffers_say_of_a_thread_one_counts() {
        let mut sources = Sources { own: HashSet::from([1, 2]), inherited: HashMap::new() };
        let sample = |tid| What::Sample { pid: 1, tid, ip: 0, addr: 0 };
        // 2 is also a child of 1, and 3 one of both.
        for (owner, tid, speaks) in [(1, 1, true), (1, 2, false), (2, 2, true), (2, 3, true), (1, 3, false)] {
            assert_eq!(sources.speaks(owner, &sample(tid)), speaks, "{tid} by {owner}");
        }
        assert!(sources.speaks(2, &What::Exit { pid: 1, tid: 2 }));
        assert!(sources.speaks(1, &sample(2)), "another thread of that number");
        assert!(sources.speaks(1, &What::Lost(1)));
    }
}

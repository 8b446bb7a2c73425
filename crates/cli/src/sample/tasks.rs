//! What the kernel tells everybody of a process and its threads: CPU time, switches, faults, memory.
//!
//! CPU time of a thread is in `schedstat`, in nanoseconds, as of the kernel's last look at it: a tick or a switch. (A
//! thread's clock would be exact, but may be read from inside its process only.) That of the process, with the threads
//! that have ended, is its CPU clock. The split into user and kernel mode is in units of `USER_HZ`.
//!
//! A thread may end between two reads; it is then left out.
//!
//! # Safety
//!
//! The unsafe code is `clock_gettime` on a clock id that rustix has no name for.
#![allow(unsafe_code)]

use std::io;
use std::path::PathBuf;

use dormouse::wire::Count;

use crate::target::process::{line, read_text, stat_fields};
use crate::target::{Proc, Process};

/// One unit of `USER_HZ`, in nanoseconds; no kernel's tick is longer.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// What a thread or a process has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
}

/// One thread.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Thread {
    /// In the service's own namespace.
    pub(crate) tid: u32,
    /// With `tid` never given again; 0 where only the agent knows the thread.
    pub(crate) start_ticks: u64,
    pub(crate) name: String,
    pub(crate) cpu_ns: u64,
    /// Absent where `/proc` does not show it.
    pub(crate) usage: Option<Usage>,
}

/// The process at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) cpu_ns: u64,
    /// Of its switches, those of the threads that are.
    pub(crate) usage: Usage,
    pub(crate) max_rss_bytes: Option<u64>,
    pub(crate) threads: Vec<Thread>,
}

/// A process to look at.
#[derive(Debug)]
pub(crate) struct Tasks {
    proc: Proc,
    pid: u32,
    start_ticks: u64,
}

impl Usage {
    /// What came since `before`.
    pub(crate) fn since(self, before: Usage) -> Usage {
        self.zip(before, u64::saturating_sub)
    }

    /// Both together.
    pub(crate) fn plus(self, other: Usage) -> Usage {
        self.zip(other, u64::saturating_add)
    }

    fn zip(self, other: Usage, with: fn(u64, u64) -> u64) -> Usage {
        Usage {
            user_ns: with(self.user_ns, other.user_ns),
            system_ns: with(self.system_ns, other.system_ns),
            voluntary: with(self.voluntary, other.voluntary),
            involuntary: with(self.involuntary, other.involuntary),
            minor_faults: with(self.minor_faults, other.minor_faults),
            major_faults: with(self.major_faults, other.major_faults),
        }
    }

    /// How often an event of that name happened, if the kernel counts it for every thread.
    pub(crate) fn count(&self, event: &str) -> Option<u64> {
        match event {
            "context-switches" => Some(self.voluntary + self.involuntary),
            "page-faults" => Some(self.minor_faults + self.major_faults),
            "major-faults" => Some(self.major_faults),
            _ => None,
        }
    }
}

impl Tasks {
    /// Those of `process`.
    pub(crate) fn of(process: &Process) -> Tasks {
        Tasks { proc: Proc::system(), pid: process.pid, start_ticks: process.start_ticks }
    }

    /// How it stands; `None` when it has ended.
    pub(crate) fn look(&self) -> io::Result<Option<Seen>> {
        // The clock first: it goes with the process, and what comes after may only be more.
        let clock = process_clock_ns(self.pid);
        let Some(stat) = there(read_text(&self.proc.path(self.pid, "stat")))? else { return Ok(None) };
        let status = there(read_text(&self.proc.path(self.pid, "status")))?.unwrap_or_default();
        let threads = match there(self.threads())? {
            // A zombie has one thread and no clock worth reading.
            Some(threads) if !is_over(&stat) => threads,
            _ => return Ok(None),
        };
        let Some(fields) = Fields::of(&stat).filter(|fields| fields.start_ticks == self.start_ticks) else {
            return Ok(None);
        };
        let mut usage = fields.usage;
        for of_thread in threads.iter().filter_map(|thread| thread.usage) {
            usage.voluntary += of_thread.voluntary;
            usage.involuntary += of_thread.involuntary;
        }
        Ok(Some(Seen {
            cpu_ns: clock.unwrap_or(usage.user_ns + usage.system_ns),
            usage,
            max_rss_bytes: peak(&status),
            threads,
        }))
    }

    fn threads(&self) -> io::Result<Vec<Thread>> {
        let mut threads = Vec::new();
        for entry in std::fs::read_dir(self.proc.path(self.pid, "task"))? {
            threads.extend(thread(&entry?.path()));
        }
        threads.sort_unstable_by_key(|thread| thread.tid);
        Ok(threads)
    }
}

fn thread(path: &std::path::Path) -> Option<Thread> {
    let file = |name: &str| -> PathBuf { path.join(name) };
    let stat = read_text(&file("stat")).ok()?;
    let status = read_text(&file("status")).ok()?;
    let fields = Fields::of(&stat)?;
    let number = |name: &str| line(&status, name)?.parse().ok();
    let usage = Usage {
        voluntary: number("voluntary_ctxt_switches").unwrap_or(0),
        involuntary: number("nonvoluntary_ctxt_switches").unwrap_or(0),
        ..fields.usage
    };
    let run_ns = read_text(&file("schedstat")).ok();
    let run_ns = run_ns.as_deref().and_then(|text| text.split_ascii_whitespace().next()?.parse().ok());
    let own = path.file_name()?.to_str()?.parse().ok()?;
    Some(Thread {
        tid: line(&status, "NSpid")
            .and_then(|ids| ids.split_ascii_whitespace().last()?.parse().ok())
            .unwrap_or(own),
        start_ticks: fields.start_ticks,
        name: fields.name.to_owned(),
        // 0 where the kernel was built without it.
        cpu_ns: run_ns.filter(|&ns| ns > 0).unwrap_or(usage.user_ns + usage.system_ns),
        usage: Some(usage),
    })
}

/// The numbers of a `stat` line.
struct Fields<'a> {
    name: &'a str,
    start_ticks: u64,
    usage: Usage,
}

impl<'a> Fields<'a> {
    fn of(stat: &'a str) -> Option<Fields<'a>> {
        let (name, fields) = stat_fields(stat)?;
        // From field 3 on, so field n is at n - 3.
        let fields: Vec<&str> = fields.collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let ticks = |field| number(field).map(|ticks| ticks.saturating_mul(TICK_NS));
        let usage = Usage {
            user_ns: ticks(14)?,
            system_ns: ticks(15)?,
            minor_faults: number(10)?,
            major_faults: number(12)?,
            ..Usage::default()
        };
        Some(Fields { name, start_ticks: number(22)?, usage })
    }
}

fn is_over(stat: &str) -> bool {
    stat_fields(stat).and_then(|(_, mut fields)| fields.next()).is_none_or(|state| matches!(state, "Z" | "X"))
}

/// The most memory that this process has had.
pub(crate) fn own_peak() -> Option<u64> {
    peak(&read_text(&Proc::system().own_path("status")).ok()?)
}

fn peak(status: &str) -> Option<u64> {
    let kib: u64 = line(status, "VmHWM")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// A file of a process that may be gone.
fn there<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        // ESRCH: it ended after the file was opened.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The CPU clock of a process: any process's may be read. `None` when there is no such process.
fn process_clock_ns(pid: u32) -> Option<u64> {
    // The clock id of a process: its complement, then "per process" and "scheduler time".
    let clock = (!pid.cast_signed() << 3) | 0b010;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place; an id of no process is refused.
    let asked = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (asked == 0).then(|| time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// `value` as a count that was taken all the time.
pub(crate) fn whole(event: &str, value: u64, elapsed_ns: u64) -> Count {
    Count { event: event.to_owned(), value, enabled_ns: elapsed_ns, running_ns: elapsed_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_becomes_numbers_whatever_the_name() {
        let stat = "7 (a) S) b) R 1 2 3 4 5 6 100 0 7 0 30 12 0 0 20 0 1 0 4242 0 0";
        let fields = Fields::of(stat).unwrap();
        assert_eq!((fields.name, fields.start_ticks), ("a) S) b", 4242));
        assert_eq!((fields.usage.minor_faults, fields.usage.major_faults), (100, 7));
        assert_eq!((fields.usage.user_ns, fields.usage.system_ns), (300_000_000, 120_000_000));
        assert!(Fields::of("7 (short) R 1 2").is_none() && Fields::of("").is_none());
        assert!(is_over("7 (x) Z 1") && is_over("") && !is_over(stat));
    }

    #[test]
    fn this_process_is_seen_with_its_threads_and_what_it_used() {
        let me = Proc::system().process(std::process::id()).unwrap();
        let tasks = Tasks::of(&me);
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 20 {}
        let seen = tasks.look().unwrap().expect("this process");
        let own = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        let thread = seen.threads.iter().find(|thread| thread.tid == own).expect("this thread");
        assert!(seen.cpu_ns > 0 && thread.cpu_ns > 0 && seen.max_rss_bytes > Some(0), "{seen:?}");
        assert!(seen.usage.minor_faults > 0);
        let other = Tasks { start_ticks: tasks.start_ticks + 1, ..tasks };
        assert_eq!(other.look().unwrap(), None, "a process id that was given again is another process");
    }

    #[test]
    fn a_process_that_has_ended_is_none() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let tasks = Tasks::of(&Proc::system().process(child.id()).unwrap());
        child.wait().unwrap();
        assert_eq!(tasks.look().unwrap(), None);
    }
}

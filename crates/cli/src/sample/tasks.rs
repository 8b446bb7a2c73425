//! The kernel's part of a sample, which any user may read: CPU time, switches, faults, memory.
//!
//! CPU time of a thread is in `schedstat`, in nanoseconds, as of the kernel's last update: a tick
//! or a switch. (A thread's clock would be exact, but can be read only from inside its process.)
//! That of the process, including ended threads, is its CPU clock. The split into user and kernel
//! mode is in units of `USER_HZ`.
//!
//! A thread may end between two reads; then it is left out.
//!
//! # Safety
//!
//! The unsafe code is `clock_gettime` on a clock id for which rustix has no name.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::process::schedstat::Schedstat;

use super::totals::{Sample, Thread, Usage};
use crate::target::process::{line, read_text, stat_fields};
use crate::target::{Proc, Process};

/// One unit of `USER_HZ`, in nanoseconds; no kernel's tick is longer.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// A process to look at.
#[derive(Debug)]
pub(crate) struct Tasks {
    proc: Proc,
    pid: u32,
    start_ticks: u64,
}

/// The numbers here of threads that a service in a pid namespace of its own names by theirs.
#[derive(Debug)]
pub(crate) struct Numbers {
    proc: Proc,
    pid: u32,
    /// By the number inside; a thread that has ended may still be in it.
    outer: HashMap<u32, u32>,
}

impl Tasks {
    /// The threads of `process`.
    pub(crate) fn of(process: &Process) -> Tasks {
        Tasks { proc: Proc::system(), pid: process.pid, start_ticks: process.start_ticks }
    }

    /// A sample without the agent's part; `None` when the process has ended.
    pub(crate) fn look(&self) -> io::Result<Option<Sample>> {
        // The clock first: it ends with the process, and later readings can only be larger.
        let clock = process_clock_ns(self.pid);
        let Some(stat) = there(read_text(&self.proc.path(self.pid, "stat")))? else { return Ok(None) };
        let status = there(read_text(&self.proc.path(self.pid, "status")))?.unwrap_or_default();
        let threads = match there(self.threads())? {
            // A zombie has one thread and no clock worth reading, unless its other threads go on.
            Some(threads) if threads.len() > 1 || !is_over(&stat) => threads,
            _ => return Ok(None),
        };
        let Some(fields) = Fields::of(&stat).filter(|fields| fields.start_ticks == self.start_ticks) else {
            return Ok(None);
        };
        let usage = fields.usage;
        Ok(Some(Sample {
            mono_ns: monotonic_ns(),
            cpu_ns: clock.unwrap_or(usage.user_ns + usage.system_ns),
            usage: Some(usage),
            max_rss_bytes: peak(&status),
            threads,
            inside: None,
        }))
    }

    fn threads(&self) -> io::Result<Vec<Thread>> {
        let path = |tid| self.proc.path(self.pid, &format!("task/{tid}"));
        Ok(self.proc.tids(self.pid)?.into_iter().filter_map(|tid| thread(&path(tid))).collect())
    }
}

impl Numbers {
    /// The numbers of a process; `None` if its thread ids are the same as here.
    pub(crate) fn of(proc: Proc, pid: u32) -> Option<Numbers> {
        let status = read_text(&proc.path(pid, "status")).ok()?;
        (inner(&status)? != pid).then(|| Numbers { proc, pid, outer: HashMap::new() })
    }

    /// The number here of a thread that is `inner_tid` inside; `None` if it has ended.
    pub(crate) fn outer(&mut self, inner_tid: u32) -> Option<u32> {
        let known = self.outer.get(&inner_tid).copied();
        // Both numbers may have been given again since.
        if known.is_none_or(|tid| self.inner(tid) != Some(inner_tid)) {
            let tids = self.proc.tids(self.pid).ok()?.into_iter();
            self.outer = tids.filter_map(|tid| Some((self.inner(tid)?, tid))).collect();
        }
        self.outer.get(&inner_tid).copied()
    }

    fn inner(&self, tid: u32) -> Option<u32> {
        inner(&read_text(&self.proc.path(self.pid, &format!("task/{tid}/status"))).ok()?)
    }
}

/// The number of a process or thread of this `status` in its own namespace.
fn inner(status: &str) -> Option<u32> {
    line(status, "NSpid")?.split_ascii_whitespace().last()?.parse().ok()
}

fn thread(path: &std::path::Path) -> Option<Thread> {
    let file = |name: &str| -> PathBuf { path.join(name) };
    let stat = read_text(&file("stat")).ok()?;
    let status = read_text(&file("status")).ok()?;
    let fields = Fields::of(&stat)?;
    let number = |name: &str| line(&status, name)?.parse().ok();
    let usage = Usage {
        voluntary_switches: number("voluntary_ctxt_switches").unwrap_or(0),
        involuntary_switches: number("nonvoluntary_ctxt_switches").unwrap_or(0),
        ..fields.usage
    };
    let account = read_text(&file("schedstat")).ok().as_deref().and_then(Schedstat::parse);
    let own = path.file_name()?.to_str()?.parse().ok()?;
    Some(Thread {
        tid: own,
        inner_tid: inner(&status).unwrap_or(own),
        start_ticks: fields.start_ticks,
        name: fields.name.to_owned(),
        // 0 where the kernel was built without it.
        cpu_ns: account.map(|of| of.run_ns).filter(|&ns| ns > 0).unwrap_or(usage.user_ns + usage.system_ns),
        runnable_ns: account.and_then(|of| of.runnable_ns),
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
    dormouse_sys::clock::ask(clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_in_stat_is_read() {
        let stat = "7 (a) S) b) R 1 2 3 4 5 6 100 0 7 0 30 12 0 0 20 0 1 0 4242 0 0";
        let fields = Fields::of(stat).unwrap();
        assert_eq!((fields.name, fields.start_ticks), ("a) S) b", 4242));
        assert_eq!((fields.usage.minor_faults, fields.usage.major_faults), (100, 7));
        assert_eq!((fields.usage.user_ns, fields.usage.system_ns), (300_000_000, 120_000_000));
        assert!(Fields::of("7 (short) R 1 2").is_none() && Fields::of("").is_none());
        assert!(is_over("7 (x) Z 1") && is_over("") && !is_over(stat));
    }

    #[test]
    fn a_thread_has_outer_and_inner_numbers() {
        let task = tempfile::tempdir().unwrap();
        let path = task.path().join("6114");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("stat"), format!("6114 (brew) R {}4242", "0 ".repeat(18))).unwrap();
        for (status, inner) in [("NSpid:\t6114\t3\n", 3), ("NSpid:\t6114\n", 6114), ("", 6114)] {
            std::fs::write(path.join("status"), status).unwrap();
            let thread = thread(&path).unwrap();
            assert_eq!((thread.tid, thread.inner_tid), (6114, inner), "{status:?}");
        }
    }

    #[test]
    fn an_inner_number_leads_to_its_thread() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, ids: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("status"), format!("NSpid:\t{ids}\n")).unwrap();
        };
        put("50", "50");
        assert!(Numbers::of(Proc::at(root.path()), 50).is_none(), "the same namespace");
        put("60", "60\t1");
        put("60/task/60", "60\t1");
        put("60/task/64", "64\t3");
        let mut numbers = Numbers::of(Proc::at(root.path()), 60).unwrap();
        assert_eq!([1, 3, 4].map(|inner| numbers.outer(inner)), [Some(60), Some(64), None]);
        put("60/task/64", "64\t4");
        put("60/task/65", "65\t3");
        assert_eq!([3, 4].map(|inner| numbers.outer(inner)), [Some(65), Some(64)], "given again");
        std::fs::remove_dir_all(root.path().join("60/task/65")).unwrap();
        assert_eq!(numbers.outer(3), None);
    }

    #[test]
    fn this_process_and_its_threads_are_seen() {
        let me = Proc::system().process(std::process::id()).unwrap();
        let tasks = Tasks::of(&me);
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 20 {}
        let seen = tasks.look().unwrap().expect("this process");
        let own = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        let thread = seen.threads.iter().find(|thread| thread.tid == own).expect("this thread");
        assert!(seen.cpu_ns > 0 && thread.cpu_ns > 0 && seen.max_rss_bytes > Some(0), "{seen:?}");
        assert!(seen.usage.unwrap().minor_faults > 0);
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

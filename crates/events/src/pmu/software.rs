//! Events that the kernel counts for each thread and reports without a descriptor.
//!
//! `getrusage(RUSAGE_THREAD)` returns context switches and page faults of kernel and user mode
//! alike, even where `perf_event_paranoid` restricts unprivileged perf events to user mode
//! (measured there: 0 of 100 switches, 400 of 800 faults).
//!
//! It does not return migrations. A perf event would, for a descriptor for each thread and 400 ns
//! for each read. Here the current processor is compared with that of the last read, which costs a
//! few loads and counts several moves between two reads as one.
//!
//! For another thread, two files of `/proc/self/task`, in two formats, hold the same counts.
//!
//! # Safety
//!
//! The unsafe code is a call of the C library.
#![allow(unsafe_code)]

use std::cell::Cell;

use dormouse_sys::brief;
use dormouse_sys::thread::ThreadBlock;

use super::cells;
use super::event::{Event, Pmu};
use super::usage::Usage;
use crate::error::Error;

const CONTEXT_SWITCHES: u32 = 0;
const PAGE_FAULTS: u32 = 1;
const MAJOR_FAULTS: u32 = 2;

impl Event {
    /// Voluntary and involuntary context switches of the thread.
    pub const CONTEXT_SWITCHES: Self = Self::new("context-switches", &Software, CONTEXT_SWITCHES);
    /// Page faults of the thread, minor and major.
    pub const PAGE_FAULTS: Self = Self::new("page-faults", &Software, PAGE_FAULTS);
    /// Page faults that read from a disk.
    pub const MAJOR_FAULTS: Self = Self::new("major-faults", &Software, MAJOR_FAULTS);
    /// Moves of the thread to another processor, as far as two successive reads show them: a lower
    /// bound.
    pub const CPU_MIGRATIONS: Self = Self::new("cpu-migrations", &Processor, 0);
}

/// Switches and faults of the calling thread.
#[derive(Debug)]
struct Software;

impl Pmu for Software {
    fn name(&self) -> &'static str {
        "software"
    }

    fn read(&self, events: &[u32], values: &mut [u64]) {
        let usage = Usage::now();
        for (event, value) in events.iter().zip(values) {
            *value = match *event {
                CONTEXT_SWITCHES => usage.switches,
                PAGE_FAULTS => usage.faults,
                _ => usage.major_faults,
            };
        }
    }

    fn begin(&self, _events: &[u32]) -> Result<(), Error> {
        super::usage::measure();
        Ok(())
    }

    fn read_of(&self, thread: &ThreadBlock, events: &[u32], values: &mut [u64]) -> bool {
        let tid = thread.tid();
        // Names of threads are in them, which need not be UTF-8.
        let file = |name| brief::read(format!("/proc/self/task/{tid}/{name}")).ok();
        let switches = || file("status").and_then(|text| switches_in(&String::from_utf8_lossy(&text)));
        let faults = || file("stat").and_then(|text| faults_in(&String::from_utf8_lossy(&text)));
        let switches = if events.contains(&CONTEXT_SWITCHES) { switches() } else { None };
        let faults = if events.iter().any(|&event| event != CONTEXT_SWITCHES) { faults() } else { None };
        events.iter().zip(values).all(|(&event, value)| {
            let found = match event {
                CONTEXT_SWITCHES => switches,
                PAGE_FAULTS => faults.map(|(minor, major)| minor + major),
                _ => faults.map(|(_, major)| major),
            };
            found.inspect(|&found| *value = found).is_some()
        })
    }
}

/// Voluntary and involuntary ones in `status`.
fn switches_in(status: &str) -> Option<u64> {
    let field = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    Some(field("voluntary_ctxt_switches:")? + field("nonvoluntary_ctxt_switches:")?)
}

/// Minor and major ones in `stat`: its fields 10 and 12, of which the second is a name in brackets
/// that may hold anything.
fn faults_in(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat[stat.rfind(')')?..].split_ascii_whitespace();
    let minor = fields.nth(8)?.parse().ok()?;
    let major = fields.nth(1)?.parse().ok()?;
    Some((minor, major))
}

/// Moves of the calling thread that its reads have noticed.
#[derive(Debug)]
struct Processor;

thread_local! {
    /// Processor at the last read, -1 before the first.
    static SEEN: Cell<i32> = const { Cell::new(-1) };
}

impl Pmu for Processor {
    fn name(&self) -> &'static str {
        "processor"
    }

    #[inline]
    fn read(&self, _events: &[u32], values: &mut [u64]) {
        // SAFETY: no arguments; glibc reads its rseq area or asks the vDSO.
        let cpu = unsafe { libc::sched_getcpu() };
        values.fill(cells::shown(|cells| {
            if SEEN.with(|seen| moved(seen, cpu)) {
                cells.moves.add(1);
            }
            cells.moves.value()
        }));
    }

    fn read_of(&self, thread: &ThreadBlock, _events: &[u32], values: &mut [u64]) -> bool {
        cells::of(thread, |cells| values.fill(cells.moves.value())).is_some()
    }

    fn note(&self, _event: u32) -> Option<&'static str> {
        Some("lower bound: moves between two reads count as one")
    }
}

#[inline]
fn moved(seen: &Cell<i32>, cpu: i32) -> bool {
    let last = seen.replace(cpu);
    last != cpu && last >= 0 && cpu >= 0
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use dormouse_sys::thread;

    use super::*;

    #[test]
    fn a_new_processor_counts_as_a_move() {
        let seen = Cell::new(-1);
        let moves = [3, 3, 1, 1, 3].map(|cpu| moved(&seen, cpu));
        assert_eq!(moves, [false, false, true, false, true]);
    }

    #[test]
    fn files_of_oddly_named_threads_are_parsed() {
        let stat = "7 (a) 1 2 (b) R 1 1 1 0 -1 4194304 101 0 3 0 0 0";
        assert_eq!(faults_in(stat), Some((101, 3)));
        assert_eq!(faults_in("7 (a"), None);
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(switches_in(status), Some(12));
        assert_eq!(switches_in("Name:\tx\n"), None);
    }

    #[test]
    fn a_remote_read_agrees_with_the_thread() {
        const EVENTS: [u32; 3] = [CONTEXT_SWITCHES, PAGE_FAULTS, MAJOR_FAULTS];
        let (send, receive) = channel();
        let (stop, stopped) = channel::<()>();
        let sleeper = std::thread::spawn(move || {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_micros(50));
            }
            let mut own = [0; 3];
            Software.read(&EVENTS, &mut own);
            send.send((thread::current().unwrap(), own)).unwrap();
            stopped.recv().unwrap_err();
        });
        let (block, own) = receive.recv().unwrap();
        let mut seen = [0; 3];
        assert!(Software.read_of(block, &EVENTS, &mut seen));
        // Between its read and its sleep it may have been switched a few times more, and faulted.
        assert!(own[0] >= 20 && seen[0] >= own[0] && seen[0] < own[0] + 100, "{own:?} {seen:?}");
        assert!(seen[1] >= own[1] && seen[1] < own[1] + 100, "{own:?} {seen:?}");
        assert!(seen[2] >= own[2], "{own:?} {seen:?}");
        drop(stop);
        sleeper.join().unwrap();
    }
}

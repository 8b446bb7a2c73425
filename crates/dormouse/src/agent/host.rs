//! What the agent reads of the process that it serves.

use dormouse_sys::{Capability, State, ring, thread};

use crate::group::Group;
use crate::wire::{Check, CheckState, ClockPoint, Doctor, GroupStat, Hello, PROTOCOL, Stat, ThreadStat};

pub(super) fn clock_point() -> ClockPoint {
    let point = dormouse_clock::point();
    ClockPoint { tsc: point.tsc, tsc_hz: point.hz, mono_ns: point.monotonic_ns, real_ns: point.realtime_ns }
}

/// A file of `/proc`, empty where there is none. The kernel cuts names anywhere, also in the middle of a character.
fn read(path: &str) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// The name of a thread of this process; empty when it has ended.
pub(super) fn thread_name(tid: u32) -> String {
    read(&format!("/proc/self/task/{tid}/comm")).trim_end().to_owned()
}

fn threads() -> Vec<ThreadStat> {
    let Ok(entries) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let mut threads: Vec<ThreadStat> = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .filter_map(|tid| {
            let cpu_ns = dormouse_clock::thread_cpu_ns_of(tid)?;
            Some(ThreadStat { tid, name: thread_name(tid), cpu_ns })
        })
        .collect();
    threads.sort_unstable_by_key(|t| t.tid);
    threads
}

pub(super) fn stat() -> Stat {
    let groups: Vec<GroupStat> = Group::all()
        .into_iter()
        .map(|group| {
            let stat = group.stat();
            GroupStat {
                id: group.id(),
                name: stat.name.to_owned(),
                cpu_ns: stat.cpu.as_nanos() as u64,
                entries: stat.entries,
                alive: stat.alive,
                started: stat.started,
                finished: stat.finished,
            }
        })
        .collect();
    // Then the threads, whose clocks make the kernel bring the process's account up to date, and the process last:
    // it has used at least what its groups have.
    let threads = threads();
    let process_cpu_ns = dormouse_clock::process_cpu_ns();
    let attributed: u64 = groups.iter().map(|g| g.cpu_ns).sum();
    Stat {
        mono_ns: dormouse_clock::point().monotonic_ns,
        process_cpu_ns,
        unattributed_cpu_ns: process_cpu_ns.saturating_sub(attributed),
        groups,
        threads,
        keys_on: dormouse_keys::list(|k| k.key.is_enabled()).into_iter().filter(|&on| on).count(),
        dropped: ring::dropped(),
    }
}

pub(super) fn hello() -> Hello {
    let status = read("/proc/self/stat");
    // The name in parentheses may hold anything, so count from its end: `starttime` is field 22.
    let start_ticks = status
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .and_then(|field| field.parse().ok())
        .unwrap_or(0);
    let name = read("/proc/self/comm").trim_end().to_owned();
    let sites = dormouse_keys::list(|used| used.sites);
    Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        start_ticks,
        name,
        exe: std::env::current_exe().map(|p| p.display().to_string()).unwrap_or_default(),
        uid: rustix::process::geteuid().as_raw(),
        keys: sites.len(),
        sites: sites.into_iter().sum(),
    }
}

fn threads_check() -> Capability {
    match (thread::refused(), dormouse_events::overflows()) {
        (0, 0) => Capability::ok("records.threads", format!("room for {} threads", thread::MAX_THREADS)),
        (refused, deep) => Capability::limited(
            "records.threads",
            format!("{refused} threads found no place, {deep} tasks were nested too deep to be counted"),
        ),
    }
}

pub(super) fn doctor() -> Doctor {
    let rings = match ring::dropped() {
        0 => Capability::ok(
            "records.rings",
            format!("{} rings of {} KiB, nothing dropped", ring::RINGS, ring::RING_BYTES / 1024),
        ),
        dropped => Capability::limited("records.rings", format!("{dropped} records dropped so far")),
    };
    let checks = dormouse_keys::capability()
        .into_iter()
        .chain(crate::environment::capability())
        .chain(dormouse_clock::capability())
        .chain([rings, threads_check()])
        .map(|c| Check {
            name: c.name.to_owned(),
            state: match c.state {
                State::Ok => CheckState::Ok,
                State::Limited => CheckState::Limited,
                State::Unavailable => CheckState::Unavailable,
            },
            detail: c.detail.into_owned(),
            fix: c.fix.map(std::borrow::Cow::into_owned),
        })
        .collect();
    Doctor { checks }
}

//! The process that the agent serves: its identity, its threads and groups, and the checks of
//! `doctor`.

use std::ops::Range;

use dormouse_events::ToldPolls;
use dormouse_protocol::{
    Check, CheckState, Clock, CountedCpu, Doctor, GroupRow, Hello, PROTOCOL, Stat, TaskPolls, ThreadStat,
};
use dormouse_sys::process::{identity, schedstat::Schedstat};
use dormouse_sys::{Capability, State, records, thread};

use super::counting::ClientEvents;
use super::history;
use super::waiting::{GroupTimes, Telling};
use crate::group::Group;
use crate::memory;

dormouse_keys::static_key! {
    /// On while a client experiments: it switches keys, and two at once would disturb each other.
    /// The client whose `on` changes this key has the process for itself.
    static EXPERIMENT: "dormouse.experiment" = false;
}

/// How often a snapshot is taken, at most, until one is quick.
const SNAPSHOTS: u32 = 3;

/// A snapshot that takes no longer is good enough: as good as the clock that groups are charged by.
const QUICK_NS: u64 = dormouse_clock::EPOCH_NS;

/// Each group takes less than this.
const GROUP_NS: u64 = 2_000;

/// A snapshot that takes longer does so because of the number of threads.
const SLOW_NS: u64 = 10 * QUICK_NS;

/// Reads of a clock that are timed together.
const READS: u32 = 1000;

/// The memory of an answer for each key, group and thread: some hundred bytes, first as a structure
/// and then as text.
pub(crate) const EACH: usize = 1024;

/// Whether there is memory for what has to do with all keys and groups.
pub(crate) fn has_memory() -> bool {
    memory::is_there(memory::MUCH) && {
        // Nothing is kept of them, and so nothing allocated.
        let keys = dormouse_keys::list(|_| ()).len();
        memory::is_there(memory::MUCH + (keys + Group::most()) * EACH)
    }
}

/// A file of `/proc`, empty where there is none. The kernel cuts names anywhere, also in the middle
/// of a character.
fn read(path: &str) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// The threads there are.
fn tids() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let mut tids: Vec<u32> = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    tids
}

/// Whether there is memory for what has to do with all threads.
pub(crate) fn has_memory_for_threads() -> bool {
    memory::is_there(tids().len() * EACH)
}

/// Groups with what `counting` counts and the times of `waits`, threads, and the process. Counts
/// go on meanwhile, and this thread may have to wait for a processor in the middle: of a few
/// snapshots the quickest is the truest. With many threads none is quick, and the first one does.
pub(crate) fn stat(counting: Option<&ClientEvents>, waits: Option<Telling>) -> Stat {
    history::begin();
    let mut best = snapshot(counting, waits);
    let quick_ns = QUICK_NS + best.stat.groups.len() as u64 * GROUP_NS;
    for _ in 1..SNAPSHOTS {
        if best.stat.took_ns <= quick_ns || best.stat.took_ns > SLOW_NS {
            break;
        }
        let again = snapshot(counting, waits);
        if again.stat.took_ns < best.stat.took_ns {
            best = again;
        }
    }
    let Snapshot { stat: mut best, times, listed, begun_cpu_ns } = best;
    // Outside of the snapshot, which is to be quick: files, each read once.
    for thread in &mut best.threads {
        thread.runnable_ns = Schedstat::of_own(thread.tid).and_then(|said| said.runnable_ns);
        thread.name = crate::trace::thread_name(thread.tid);
    }
    history::settle(&mut best, &listed, begun_cpu_ns);
    if let Some(waits) = waits {
        let has_cpu = counting.is_some_and(ClientEvents::is_counting) && best.cpu_refused.is_none();
        waits.tell(&mut best.groups, times, has_cpu);
    }
    best.keys_on = dormouse_keys::list(|k| k.key.is_enabled()).into_iter().filter(|&on| on).count();
    best
}

/// All that changes while one looks.
struct Snapshot {
    stat: Stat,
    times: GroupTimes,
    /// When the threads were listed.
    listed: Range<u64>,
    /// CPU time of the process before the groups were read.
    begun_cpu_ns: u64,
}

/// Looks, in an order that keeps it consistent.
fn snapshot(counting: Option<&ClientEvents>, waits: Option<Telling>) -> Snapshot {
    let lists_ns = dormouse_clock::point().monotonic_ns;
    let tids = tids();
    let listed = lists_ns..dormouse_clock::point().monotonic_ns;
    // Before the clocks, as close to them as can be.
    let times = waits.map_or_else(GroupTimes::new, Telling::times);
    let begun_ns = dormouse_clock::point().monotonic_ns;
    let begun_cpu_ns = dormouse_clock::process_cpu_ns();
    let row = |(stat, counts): (crate::GroupStat, Vec<_>)| {
        let counts = counting.map(|counting| counting.of(&counts)).unwrap_or_default();
        GroupRow { counts, ..GroupRow::from(stat) }
    };
    let all = Group::read_all(counting.is_some_and(ClientEvents::has_events));
    let groups: Vec<GroupRow> = all.into_iter().map(row).collect();
    // Then the threads, whose clocks make the kernel bring the process's account up to date, and
    // the process last: it has used at least what its groups have.
    let threads = tids
        .into_iter()
        .filter_map(|tid| {
            let cpu_ns = dormouse_clock::thread_cpu_ns_of(tid)?;
            Some(ThreadStat { tid, name: String::new(), cpu_ns, runnable_ns: None })
        })
        .collect();
    let process_cpu_ns = dormouse_clock::process_cpu_ns();
    let mono_ns = dormouse_clock::point().monotonic_ns;
    let attributed: u64 = groups.iter().map(|g| g.cpu_ns).sum();
    let stat = Stat {
        mono_ns,
        took_ns: mono_ns.saturating_sub(begun_ns),
        process_cpu_ns,
        unattributed_cpu_ns: process_cpu_ns.saturating_sub(attributed),
        runnable_ns: None,
        counted: counting.and_then(|counting| {
            counting.since(CountedCpu { process_ns: process_cpu_ns, groups_ns: attributed })
        }),
        cpu_refused: None,
        groups,
        threads,
        polls: polls(),
        keys_on: 0,
        experiment: dormouse_keys::unlikely!(EXPERIMENT),
        dropped: records::dropped(),
        clock: Some(clock()),
    };
    Snapshot { stat, times, listed, begun_cpu_ns }
}

/// The polls that runtimes have told of.
fn polls() -> Option<TaskPolls> {
    let ToldPolls { all, inside } = dormouse_events::told_polls();
    (all > 0).then_some(TaskPolls { all, in_groups: inside })
}

/// The clock that charges groups: this thread has the tier that threads begin with.
fn clock() -> Clock {
    let tier = dormouse_clock::tier();
    // A read that asks the kernel each time is not wrong.
    let error_bound_ns = if tier == dormouse_clock::Tier::Syscall { 0 } else { dormouse_clock::EPOCH_NS };
    Clock { tier: tier.name().to_owned(), error_bound_ns }
}

pub(crate) fn hello() -> Hello {
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
        ops: dormouse_protocol::announced().into_iter().map(str::to_owned).collect(),
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

/// The cost of a read of the clock on this thread, beside that of the counter alone and of the
/// system call.
fn clock_cost() -> Capability {
    let [clock, counter, call] = [
        cost(|| _ = dormouse_clock::thread_cpu_ns()),
        cost(|| _ = dormouse_clock::rdtsc()),
        cost(|| _ = dormouse_sys::clock::ask(libc::CLOCK_THREAD_CPUTIME_ID)),
    ];
    let tier = dormouse_clock::tier();
    Capability::ok(
        "clock.read",
        format!("{clock:.0} ns by {tier}; the counter alone {counter:.0} ns, the system call {call:.0} ns"),
    )
}

/// Nanoseconds that `read` takes: the best of a few rounds, since a disturbance makes one longer.
fn cost(read: impl Fn()) -> f64 {
    let round = |_| {
        let start = std::time::Instant::now();
        (0..READS).for_each(|_| read());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(READS)
    };
    (0..5).map(round).fold(f64::INFINITY, f64::min)
}

/// Without `/proc` much is answered, with holes that this explains.
fn proc_check() -> Option<Capability> {
    let why = std::fs::metadata("/proc/self/task").err()?;
    let detail = format!("/proc/self/task: {why}; threads are not listed, names are missing");
    Some(Capability::unavailable("host.proc", detail).with_fix("mount /proc where the service runs"))
}

/// Whether the kernel says for how long threads wait for a CPU. Of this thread, which has run.
fn runnable_check() -> Capability {
    const NAME: &str = "host.schedstat";
    match Schedstat::of_own(identity::tid()) {
        Some(Schedstat { runnable_ns: Some(_), .. }) => {
            Capability::ok(NAME, "the kernel tells how long each thread waited for a CPU")
        }
        Some(_) => Capability::limited(NAME, "the kernel does not count how long threads wait for a CPU")
            .with_fix("boot it with `delayacct`, or with CONFIG_SCHEDSTATS"),
        None => {
            Capability::limited(NAME, "/proc has no schedstat: how long threads wait for a CPU is not known")
                .with_fix("mount /proc where the service runs, on a kernel with CONFIG_SCHED_INFO")
        }
    }
}

/// All checks, with those of the settings, of watches, and of the agent's place.
pub(crate) fn doctor(settings: Vec<Capability>, watches: Capability, place: Option<Capability>) -> Doctor {
    let rings = match records::dropped() {
        0 => Capability::ok(
            "records.rings",
            format!("{} rings of {} KiB, nothing dropped", records::RINGS, records::RING_BYTES / 1024),
        ),
        dropped => Capability::limited("records.rings", format!("{dropped} records dropped so far")),
    };
    let checks = dormouse_keys::capability()
        .into_iter()
        .chain(settings)
        .chain(dormouse_clock::capability())
        .chain([watches, dormouse_profile::capability(), clock_cost(), rings, threads_check()])
        .chain([runnable_check()])
        .chain(dormouse_waits::capability())
        .chain([crate::publish::capability()])
        .chain(crate::panics::capability())
        .chain(proc_check())
        .chain(place)
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

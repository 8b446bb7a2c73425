//! A reading of the process: its groups, its threads, and what clients have counted.

pub(crate) mod counting;
mod history;
mod limits;
mod outliving;
mod spawn_readings;
mod verb;

use std::ops::Range;

use dormouse_events::AnnouncedPolls;
use dormouse_protocol::{Clock, CountedCpu, GroupRow, Outliving, Stat, StatPart, TaskPolls, ThreadStat};
use dormouse_sys::process::{schedstat::Schedstat, threads};
use dormouse_sys::{Capability, records};
use dormouse_waits::calls::read_calls;

use self::counting::ClientEvents;
pub(crate) use self::limits::{cpu_limits_check, pressure_check};
use crate::core::asleep;
use crate::core::group::Group;
use crate::core::memory;
use crate::core::objectives;
use crate::core::rows::call_row;
use crate::core::runtimes;
use crate::core::trace::thread_name;
use crate::features::cost::own_cost;
use crate::features::locks;
use crate::features::objectives::unmatched_objectives;
use crate::features::stalls::StalledGroups;
use crate::features::waits::taking::TimesScope;

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

/// The threads there are; `None` if they cannot be listed, as while no descriptor is free.
fn tids() -> Option<Vec<u32>> {
    let mut tids = Vec::new();
    // One that stays incomplete has most.
    threads::list_whole(&mut tids).ok()?;
    tids.sort_unstable();
    Some(tids)
}

/// Groups with what `counting` counts and the times of `waits`, threads, and the process. Figures
/// that `part` does not have are left out where they cost something.
pub(crate) fn stat(counting: Option<&ClientEvents>, waits: Option<TimesScope>, part: StatPart) -> Stat {
    rows(counting, waits, StalledGroups::default(), part)
}

/// [`stat`] with the stalled time of groups.
fn rows(
    counting: Option<&ClientEvents>,
    waits: Option<TimesScope>,
    mut stalls: StalledGroups,
    part: StatPart,
) -> Stat {
    let (mut stat, has_cpu) = totals(counting);
    if let Some(waits) = waits {
        waits.add_to(&mut stat.groups, has_cpu, &mut stalls);
    }
    add_rest(&mut stat, waits, part);
    stat
}

/// [`rows`] in their short form.
fn columns(
    counting: Option<&ClientEvents>,
    waits: Option<TimesScope>,
    mut stalls: StalledGroups,
    part: StatPart,
) -> Stat {
    let (mut stat, has_cpu) = totals(counting);
    let with_groups = waits.filter(|_| !stat.groups.is_empty());
    let times = with_groups.map(|waits| waits.columns(part, &stat.groups, has_cpu, &mut stalls));
    add_rest(&mut stat, waits, part);
    stat.shorten(part);
    if let Some(columns) = &mut stat.columns {
        columns.waits = times.map(Box::new);
    }
    stat
}

/// The clocks and counts, and whether CPU time of groups is counted, and true. The times of groups
/// are read next: the less is done in between, the less is in the one and not in the other. Counts
/// go on meanwhile, and this thread may have to wait for a processor in the middle: of a few
/// snapshots the quickest is the truest. With many threads none is quick, and the first one does.
fn totals(counting: Option<&ClientEvents>) -> (Stat, bool) {
    history::begin();
    objectives::settle(Group::all_of_groups);
    let mut best = snapshot(counting);
    let quick_ns = QUICK_NS + best.stat.groups.len() as u64 * GROUP_NS;
    for _ in 1..SNAPSHOTS {
        if best.stat.took_ns <= quick_ns || best.stat.took_ns > SLOW_NS {
            break;
        }
        let again = snapshot(counting);
        if again.stat.took_ns < best.stat.took_ns {
            best = again;
        }
    }
    let Snapshot { stat: mut best, listed, begun_cpu_ns } = best;
    // Outside of the snapshot, which is to be quick: files, each read once.
    for thread in &mut best.threads {
        thread.runnable_ns = Schedstat::of_own(thread.tid).and_then(|said| said.runnable_ns);
    }
    history::settle(&mut best, listed.as_ref(), begun_cpu_ns);
    if best.cpu_refused.is_none()
        && let Some(why) = asleep::counts_asleep()
    {
        // Totals stand still, and go on when the counts are awake.
        best.cpu_refused = Some(why.into());
        best.counted = None;
    }
    let has_cpu = counting.is_some_and(ClientEvents::is_counting) && best.cpu_refused.is_none();
    (best, has_cpu)
}

/// Adds what changes slowly, or takes long to read.
fn add_rest(stat: &mut Stat, waits: Option<TimesScope>, part: StatPart) {
    if part == StatPart::Whole {
        for thread in &mut stat.threads {
            thread.name = thread_name(thread.tid);
        }
    }
    if part >= StatPart::Groups {
        let outliving = history::outliving();
        for row in &mut stat.groups {
            row.outliving = outliving.get(&row.id).copied();
        }
    }
    if waits.is_some_and(|waits| waits.calls) {
        read_calls(|of| stat.calls.push(call_row(of)));
    }
    if dormouse_locks::is_on() && memory::is_there(memory::of_locks()) {
        stat.locks = locks::verb::stat_rows();
    }
    stat.runtimes = runtimes::rows();
    stat.keys_on = dormouse_keys::count_on();
    stat.own = Some(own_cost());
    stat.unmatched = unmatched_objectives().iter().map(ToString::to_string).collect();
    let (cpu_limits, pressure) = limits::control_groups();
    stat.cpu_limits = Some(cpu_limits);
    stat.pressure = pressure;
}

/// The agent's reading from time to time.
pub(crate) fn remember() {
    if memory::is_there_for_groups() {
        history::outliving();
        history::read_spawns();
    }
}

/// The check that `doctor` shows of groups that pay for tasks which have outlived their requests;
/// `None` if there are none.
pub(crate) fn outliving_check() -> Option<Capability> {
    let outliving = history::outliving();
    let notice = |group: Group| outliving.get(&group.id())?.notice(group.name());
    let notices: Vec<String> = Group::all().into_iter().filter_map(notice).collect();
    let check = || Capability::limited("groups.outlived", notices.join("; ")).with_fix(Outliving::ADVICE);
    (!notices.is_empty()).then(check)
}

/// All that changes during a reading.
struct Snapshot {
    stat: Stat,
    /// When the threads were listed, if they were.
    listed: Option<Range<u64>>,
    /// CPU time of the process before the groups were read.
    begun_cpu_ns: u64,
}

/// Reads, in an order that keeps the figures consistent.
fn snapshot(counting: Option<&ClientEvents>) -> Snapshot {
    let lists_ns = dormouse_clock::point().monotonic_ns;
    let tids = tids();
    let listed = tids.is_some().then(|| lists_ns..dormouse_clock::point().monotonic_ns);
    let begun_ns = dormouse_clock::point().monotonic_ns;
    // The agent's thread, which reads, also suspends: no sleep begins meanwhile.
    let counts_stopped = asleep::counts_stopped();
    let begun_cpu_ns = dormouse_clock::process_cpu_ns();
    let row = |(row, counts): (GroupRow, Vec<_>)| {
        let counts = counting.map(|counting| counting.of(&counts)).unwrap_or_default();
        GroupRow { counts, ..row }
    };
    let all = Group::read_all(counting.is_some_and(ClientEvents::has_events));
    let groups: Vec<GroupRow> = all.into_iter().map(row).collect();
    // Then the threads, whose clocks make the kernel bring the process's account up to date, and
    // the process last: it has used at least what its groups have.
    let threads = tids
        .into_iter()
        .flatten()
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
        cpu_limits: None,
        pressure: None,
        counted: counting.and_then(|counting| {
            counting.since(CountedCpu { process_ns: process_cpu_ns, groups_ns: attributed })
        }),
        cpu_refused: None,
        groups,
        calls: Vec::new(),
        locks: Vec::new(),
        threads,
        polls: polls(),
        runtimes: Vec::new(),
        keys_on: 0,
        experiment: dormouse_keys::unlikely!(EXPERIMENT),
        dropped: records::dropped(),
        own: None,
        limited: asleep::limited().map(Into::into),
        counts_stopped,
        unmatched: Vec::new(),
        clock: Some(clock()),
        columns: None,
        thread_total: None,
        left_out: None,
    };
    Snapshot { stat, listed, begun_cpu_ns }
}

/// The polls that runtimes have announced.
fn polls() -> Option<TaskPolls> {
    let AnnouncedPolls { all, inside } = dormouse_events::announced_polls();
    (all > 0).then_some(TaskPolls { all, in_groups: inside })
}

/// The clock that charges groups: this thread has the tier that threads begin with.
fn clock() -> Clock {
    let tier = dormouse_clock::tier();
    // A read that asks the kernel each time has no error.
    let error_bound_ns = if tier == dormouse_clock::Tier::Syscall { 0 } else { dormouse_clock::EPOCH_NS };
    Clock { tier: tier.name().to_owned(), error_bound_ns }
}

#[cfg(all(test, not(any(dormouse_fallback, miri))))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::asleep::{Part, limit};
    use crate::features::sleep;

    #[test]
    fn suspended_counts_are_refused() {
        dormouse_testkit::in_child(|| {
            let group = Group::new("GET /menu");
            let (counting, _) = ClientEvents::start_counting(&["task-clock".to_owned()]).unwrap();
            let read = || totals(Some(&counting));
            group.scope(|| dormouse_testkit::spin_for(Duration::from_millis(5)));
            let (before, has_cpu) = read();
            assert!(has_cpu && before.cpu_refused.is_none() && before.counted.is_some());
            sleep::suspend(Part::Counts, &mut []).unwrap();
            limit(Part::Counts, 3.0);
            group.scope(|| dormouse_testkit::spin_for(Duration::from_millis(5)));
            let (now, has_cpu) = read();
            let why = now.cpu_refused.as_deref().unwrap_or_default();
            assert!(!has_cpu && now.counted.is_none() && why.contains("DORMOUSE_MAX_CPU"), "{why}");
            sleep::resume_all().unwrap();
            let (later, has_cpu) = read();
            assert!(has_cpu && later.cpu_refused.is_none());
            assert_eq!(later.counted, None, "some CPU time since the beginning was not counted");
            // An interval in which counts were asleep lacks some.
            assert!(later.since(&now).cpu_refused.is_some() && later.since(&before).cpu_refused.is_some());
            assert!(read().0.since(&later).cpu_refused.is_none());
            let used = |stat: &Stat| stat.groups.iter().map(|group| group.cpu_ns).sum::<u64>();
            assert!(used(&later) >= used(&before), "totals go on");
        });
    }

    #[test]
    fn counts_are_refused_during_a_sleep() {
        dormouse_testkit::in_child(|| {
            let refused = || totals(None).0.cpu_refused;
            assert_eq!(refused(), None);
            asleep::begin(0, 1);
            assert_eq!(refused().as_deref(), Some("dormouse is asleep"));
            asleep::end();
            assert_eq!(refused(), None);
        });
    }
}

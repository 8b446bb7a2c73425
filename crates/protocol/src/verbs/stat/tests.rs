//! Differences of readings.

use super::*;

fn count(event: &'static str, value: u64) -> CountRow {
    CountRow { event: event.into(), value, enabled_ns: value, running_ns: value }
}

#[test]
fn what_was_not_read_has_no_difference() {
    let before = Stat { groups: vec![GroupRow { id: 1, ..GroupRow::default() }], ..Stat::default() };
    let mut now = before.clone();
    now.runnable_ns = Some(7);
    now.groups[0].counts = vec![count("alloc-count", 5)];
    let since = now.since(&before);
    assert_eq!((since.runnable_ns, since.groups[0].counts.as_slice()), (None, &[][..]));
    let mut later = now.clone();
    later.runnable_ns = Some(9);
    later.groups[0].counts = vec![count("alloc-count", 8), count("page-faults", 3)];
    let since = later.since(&now);
    assert_eq!(since.runnable_ns, Some(2));
    assert_eq!(since.groups[0].counts, [count("alloc-count", 3)]);
}

#[test]
fn a_sleep_in_between_refuses_the_interval() {
    let at = |counts_stopped| Stat { counts_stopped, ..Stat::default() };
    assert_eq!(at(2).since(&at(2)).cpu_refused, None);
    let since = at(2).since(&at(1));
    assert_eq!(since.cpu_refused.as_deref(), Some("counts of groups were asleep in between"));
    assert_eq!(since.coverage_percent(), None);
    let older: Stat = serde_json::from_str(
        r#"{"mono_ns":1,"process_cpu_ns":0,"unattributed_cpu_ns":0,"groups":[],"threads":[],"keys_on":0,"dropped":0}"#,
    )
    .unwrap();
    assert_eq!(older.counts_stopped, 0);
}

#[test]
fn threads_that_were_not_listed_have_no_number() {
    let thread = ThreadStat { tid: 7, ..ThreadStat::default() };
    let [some, none] = [vec![thread], Vec::new()].map(|threads| Stat { threads, ..Stat::default() });
    assert_eq!([&some, &none].map(Stat::thread_count), [Some(1), None]);
    let [mut some, mut none] = [some, none];
    for stat in [&mut some, &mut none] {
        stat.shorten(StatPart::Requests);
    }
    assert_eq!([&some, &none].map(Stat::thread_count), [Some(1), None]);
    assert_eq!([&some, &none].map(|stat| stat.since(stat).thread_count()), [Some(1), None]);
    // An older agent's answer.
    assert_eq!(Stat { thread_total: Some(0), ..none }.thread_count(), None);
}

#[test]
fn limits_that_were_not_read_have_no_counts() {
    let limit = CpuLimitRow { quota_us: 5, period_us: 10, periods: 9, ..CpuLimitRow::default() };
    let limits = CpuLimits { groups: vec![limit.clone()], throttled_ns: Some(7), ..CpuLimits::default() };
    let now = Stat { cpu_limits: Some(limits), ..Stat::default() };
    let since = now.since(&Stat::default()).cpu_limits.unwrap();
    assert_eq!(since.groups, [CpuLimitRow { periods: 0, ..limit }]);
    assert_eq!(since.throttled_ns, None);
}

#[test]
fn lists_of_a_peer_are_cut() {
    let many = |element: &str| format!("[{}]", [element; 1000].join(","));
    let json = r#"{"mono_ns":1,"process_cpu_ns":1,"unattributed_cpu_ns":0,"groups":[],"threads":[],"keys_on":1,
        "dropped":0,"runtimes":RUNTIMES,"columns":{"id":[1],"outcomes":[[1,0,0,0,0]],"own_outcomes":[PAIRS],
        "counts":COUNTS,"waits":{"poll_ns":[1],"stalls":[{"cpu_wait_ns":0,"asleep_ns":0,"by_hand":PAIRS}],
        "exemplars":{"of_group":[1000],"task":NUMBERS}}}}"#;
    let json = json.replace("RUNTIMES", &many("{}")).replace("PAIRS", &many(r#"["",0]"#));
    let json = json.replace("COUNTS", &many(r#"{"value":[0]}"#)).replace("NUMBERS", &many("7"));
    let mut stat: Stat = serde_json::from_str(&json).unwrap();
    assert_eq!((stat.runtimes.len(), stat.expand(9)), (32, 0));
    let group = &stat.groups[0];
    let (outcomes, waits) = (group.outcomes.as_ref().unwrap(), group.waits.as_ref().unwrap());
    let lengths = [outcomes.own.len(), group.counts.len(), waits.stalls.as_ref().unwrap().by_hand.len()];
    assert_eq!((lengths, waits.requests.exemplars.len()), ([16, 128, 16], 64));
}

//! Views of made-up samples: figures, text, JSON.

use dormouse_protocol::{CountRow, Stat, ThreadStat};

use super::*;

fn group(id: u32, name: &str, cpu_ns: u64, entries: u64) -> GroupRow {
    let (alive, started, finished, counts) = (1, 3, 2, Vec::new());
    let (requests, polls, outcomes, waits) = (finished, entries, None, None);
    let name = name.to_owned().into();
    let (outliving, long_lived) = (None, None);
    GroupRow {
        id,
        name,
        cpu_ns,
        entries,
        alive,
        started,
        finished,
        requests,
        outcomes,
        polls,
        counts,
        waits,
        objectives: Vec::new(),
        blocking: None,
        outliving,
        long_lived,
    }
}

fn thread(tid: u32, name: &str, cpu_ns: u64) -> ThreadStat {
    // The first thread alone has an account of its waits.
    let runnable_ns = (tid == 10).then_some(cpu_ns / 10);
    ThreadStat { tid, name: name.into(), cpu_ns, runnable_ns }
}

/// CPU percent and nanoseconds.
fn cpu(row: &Row) -> (f64, u64) {
    (row.cpu_percent.unwrap(), row.cpu_ns.unwrap())
}

/// Two samples, half a second apart.
pub(crate) fn pair() -> (Sample, Sample) {
    let before = Stat {
        mono_ns: 1_000_000_000,
        process_cpu_ns: 100_000_000,
        unattributed_cpu_ns: 30_000_000,
        groups: vec![group(1, "GET /menu", 50_000_000, 100), group(2, "idle", 20_000_000, 7)],
        threads: vec![thread(10, "main", 90_000_000), thread(11, "reused", 80_000_000)],
        keys_on: 2,
        ..Stat::default()
    };
    let after = Stat {
        mono_ns: 1_500_000_000,
        process_cpu_ns: 600_000_000,
        unattributed_cpu_ns: 29_000_000,
        groups: vec![
            group(1, "GET /menu", 150_000_000, 1_100),
            group(2, "idle", 20_000_000, 7),
            group(3, "POST /brew", 401_000_000, 50),
        ],
        threads: vec![thread(10, "main", 500_000_000), thread(11, "worker", 100_000)],
        keys_on: 3,
        dropped: 4,
        ..Stat::default()
    };
    (Sample::of_agent(before), Sample::of_agent(after))
}

#[test]
fn rates_are_of_the_interval_alone() {
    let (before, after) = pair();
    let view = View::between(&before, &before, &after, &[]);
    assert_eq!(view.interval_ns, 500_000_000);
    assert_eq!(cpu(&view.process), (100.0, 500_000_000));
    assert_eq!((view.before_cpu_ns, view.counted_ns), (100_000_000, 500_000_000));
    let inside = view.inside.as_ref().expect("an agent told");
    assert_eq!(cpu(&inside.unattributed), (0.0, 0), "never negative");
    let groups: Vec<_> =
        view.groups().iter().map(|g| (g.name.as_str(), cpu(g).0, g.number("polls_per_s").unwrap())).collect();
    assert_eq!(
        groups,
        [("POST /brew", 401_000_000.0 / 5e8 * 100.0, 100.0), ("GET /menu", 20.0, 2000.0), ("idle", 0.0, 0.0)]
    );
    let threads: Vec<_> = view.threads.iter().map(|t| (t.name.as_str(), cpu(t).0)).collect();
    assert_eq!(threads, [("main", 82.0), ("worker", 0.02)], "a thread id that was given again starts anew");
}

#[test]
fn cpu_time_is_since_the_first_sample() {
    let (first, before) = pair();
    let mut after = before.clone();
    after.mono_ns += 1_000_000_000;
    after.cpu_ns += 300_000_000;
    let inside = after.inside.as_mut().unwrap();
    inside.groups[0].cpu_ns += 200_000_000;
    inside.groups[0].requests += 4;
    inside.unattributed_cpu_ns += 100_000_000;
    after.threads[0].cpu_ns += 250_000_000;
    let view = View::between(&first, &before, &after, &[]);
    let inside = view.inside.as_ref().unwrap();
    let of = |name: &str| view.groups().iter().find(|group| group.name == name).unwrap();
    assert_eq!((view.counted_ns, view.interval_ns), (1_500_000_000, 1_000_000_000));
    assert_eq!(cpu(&view.process), (30.0, 800_000_000));
    assert_eq!(cpu(of("GET /menu")), (20.0, 300_000_000));
    assert_eq!(cpu(of("POST /brew")), (0.0, 401_000_000), "it is new since");
    assert_eq!(cpu(&inside.unattributed), (10.0, 99_000_000));
    assert_eq!(inside.coverage_percent.map(f64::round), Some(67.0), "of the last interval");
    assert!(view.headline("tea").ends_with(", 66.7 % in groups"), "{}", view.headline("tea"));
    let groups: u64 = view.groups().iter().map(|group| cpu(group).1).sum();
    assert_eq!(groups + cpu(&inside.unattributed).1, cpu(&view.process).1, "and so they sum up");
    assert_eq!(cpu(&view.threads[0]).1, 660_000_000);
    assert_eq!(
        (of("GET /menu").number("requests_per_s"), of("GET /menu").number("cpu_ns_per_request")),
        (Some(4.0), Some(75_000_000.0))
    );
    assert_eq!(of("idle").number("cpu_ns_per_request"), None);
}

#[test]
fn an_uncounted_event_is_not_zero() {
    let (mut before, mut after) = pair();
    let count =
        |value, running_ns| vec![CountRow { event: "sneezes".into(), value, enabled_ns: value, running_ns }];
    // The second group has no thread that counts.
    for (sample, value) in [(&mut before, 10), (&mut after, 35)] {
        let groups = &mut sample.inside.as_mut().unwrap().groups;
        (groups[0].counts, groups[1].counts) = (count(value, value), count(value, 0));
    }
    let view = View::between(&before, &before, &after, &["sneezes".into()]);
    let rates: Vec<_> =
        view.groups().iter().map(|group| (group.name.as_str(), group.rate("sneezes"))).collect();
    assert_eq!(rates, [("POST /brew", None), ("GET /menu", Some(50.0)), ("idle", None)]);
    assert_eq!(view.of_groups, ["sneezes"]);
    let refused = View::between(&before, &before, &after, &["yawns".into()]);
    assert!(refused.of_groups.is_empty(), "it is not counted for groups either");
    assert!(view.thread_events.is_empty());
}

#[test]
fn an_interval_with_a_sleep_is_refused() {
    let (before, mut after) = pair();
    let refused = |before: &Sample, after: &Sample| {
        let view = View::between(before, before, after, &[]);
        let has_none = view.groups().iter().all(|group| group.cpu_percent.is_none());
        (view.headline("tea").contains("refused: counts of groups were asleep"), has_none)
    };
    assert_eq!(refused(&before, &after), (false, false));
    let mut asleep = before.clone();
    asleep.inside.as_mut().unwrap().cpu_refused = Some("counts of groups were asleep".into());
    assert_eq!(refused(&asleep, &after), (true, true), "it begins asleep");
    after.inside.as_mut().unwrap().counts_stopped += 1;
    assert_eq!(refused(&before, &after), (true, true), "both ends are awake");
}

#[test]
fn no_time_between_samples_is_no_division() {
    let (before, _) = pair();
    let view = View::between(&before, &before, &before, &[]);
    assert!(
        view.groups().iter().all(|group| group.number("polls_per_s") == Some(0.0) && cpu(group).0 == 0.0)
    );
    assert!(!view.headline("tea").contains("in groups"), "a share of nothing");
}

#[test]
fn an_unknown_part_makes_the_cost_at_least() {
    let (before, mut after) = pair();
    let mut headline = |records_ns| {
        let known = Some(0);
        let own =
            OwnCost { polls_ns: known, records_ns, samples_ns: known, hits_ns: known, ..OwnCost::default() };
        after.inside.as_mut().unwrap().own = Some(own);
        let mut before = before.clone();
        before.inside.as_mut().unwrap().own = Some(own);
        View::between(&before, &before, &after, &[]).headline("tea")
    };
    assert!(headline(Some(0)).contains(", dormouse costs 0.0 % and "), "{}", headline(Some(0)));
    assert!(headline(None).contains(", dormouse costs at least 0.0 % and "), "{}", headline(None));
}

#[test]
fn rows_of_groups_sum_up_to_the_process() {
    let (before, after) = pair();
    let text = View::between(&before, &before, &after, &[]).text("tea (process 7)");
    let text = anstream::adapter::strip_str(&text).to_string();
    assert_eq!(
        text,
        "\
tea (process 7): 100.0 % CPU over 500 ms, 3 keys on, 4 records dropped, 100.0 % in groups
GROUP           CPU %  CPU s  REQ/s  ERR %  CANC/s  CPU/REQ  POLLS/s  ALIVE
POST /brew       80.2  0.401    4.0                   200ms      100      1
GET /menu        20.0  0.100    0.0                             2000      1
idle              0.0  0.000    0.0                              0.0      1
(unattributed)    0.0  0.000
(process)       100.0  0.500
(before)               0.100

THREAD  TID  CPU %  RUNNABLE %  CPU s
main     10   82.0         8.2  0.410
worker   11   <0.1              0.000
"
    );
}

#[test]
fn json_has_units_in_key_names() {
    let (before, after) = pair();
    let view = View::between(&before, &before, &after, &[]);
    let json = serde_json::to_value(view.document(7, "tea")).unwrap();
    assert_eq!((&json["type"], &json["pid"]), (&"snapshot".into(), &7.into()));
    assert_eq!(json["interval_ns"], 500_000_000);
    assert_eq!(json["coverage_percent"], 100.0);
    assert_eq!(json["unattributed"], serde_json::json!({"cpu_percent": 0.0, "cpu_ns": 0}));
    assert_eq!((&json["counted_ns"], &json["before_cpu_ns"]), (&500_000_000.into(), &100_000_000.into()));
    assert_eq!(json["groups"][0]["requests_per_s"], 4.0);
    assert_eq!(json["groups"][0]["cpu_ns_per_request"], 200_500_000);
    assert_eq!(json["groups"][1]["polls_per_s"], 2000.0);
    assert_eq!(json["groups"][1]["cpu_percent"], 20.0);
    assert_eq!(json["threads"][0]["cpu_ns"], 410_000_000);
    assert_eq!(json["threads"][0]["runnable_ns"], 41_000_000);
    assert!(json["threads"][1]["runnable_ns"].is_null(), "not known is not zero");
    assert_eq!(json["records_dropped"], 4);
}

#[test]
fn events_of_groups_alone_are_named() {
    let (mut before, mut after) = pair();
    for (sample, value) in [(&mut before, 1), (&mut after, 2)] {
        let count = CountRow { event: "alloc-count".into(), value, enabled_ns: value, running_ns: value };
        sample.inside.as_mut().unwrap().groups[0].counts = vec![count];
    }
    let view = |events: &[&str]| {
        let events: Vec<String> = events.iter().map(|&event| event.to_owned()).collect();
        View::between(&before, &before, &after, &events)
    };
    let with = view(&["alloc-count", "page-faults"]);
    let json = serde_json::to_value(with.document(7, "tea")).unwrap();
    assert_eq!(json["of_groups_alone"]["events"], serde_json::json!(["alloc-count"]));
    let text = anstream::adapter::strip_str(&with.text("tea")).to_string();
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("alloc-count: counted while groups run") && text.ends_with('\n'), "{text}");
    let without = view(&["page-faults"]);
    assert_eq!(serde_json::to_value(without.document(7, "tea")).unwrap().get("of_groups_alone"), None);
    assert!(!without.text("tea").contains("while groups run"));
}

/// The samples of [`pair`] with times, of which those before began long ago.
fn pair_with_waits() -> (Sample, Sample) {
    use dormouse_protocol::{ExemplarRow, HistogramRow, WaitsRow, WireId};
    let (mut before, mut after) = pair();
    let requests = |buckets, max_ns, task| HistogramRow {
        scale: 2,
        unit_ns: 1_000_000_000,
        zero_threshold_ns: 59,
        zero_count: 0,
        buckets,
        max_ns,
        max_task: Some(task),
        exemplars: vec![ExemplarRow {
            task,
            trace_id: Some(WireId([task as u8; 16])),
            ..ExemplarRow::default()
        }],
        ..HistogramRow::default()
    };
    let row = |[on_cpu, poll_ns, runnable_ns, await_ns]: [u64; 4], requests| {
        let on_cpu_ns = Some(on_cpu);
        Some(Box::new(WaitsRow {
            on_cpu_ns,
            poll_ns,
            runnable_ns,
            await_ns,
            requests,
            ..WaitsRow::default()
        }))
    };
    let groups = |sample: &mut Sample| sample.inside.take().unwrap();
    let (mut old, mut new) = (groups(&mut before), groups(&mut after));
    old.groups[0].waits = row([5, 9, 1_000, 77], requests(vec![(-40, 5)], 1_100_000, 3));
    new.groups[0].waits =
        row([105, 209, 1_300, 477], requests(vec![(-40, 5), (-30, 99), (-20, 1)], 40_000_000, 9));
    (before.inside, after.inside) = (Some(old), Some(new));
    (before, after)
}

#[test]
fn times_are_of_the_interval_alone() {
    let (before, after) = pair_with_waits();
    let view = View::between(&before, &before, &after, &[]);
    let json = serde_json::to_value(view.document(7, "tea")).unwrap();
    let groups = json["groups"].as_array().unwrap();
    let menu = groups.iter().find(|group| group["name"] == "GET /menu").unwrap();
    let waits = &menu["waits"];
    let times = ["on_cpu_ns", "stalled_ns", "runnable_ns", "await_ns"].map(|name| waits[name].as_u64());
    assert_eq!(times, [100, 100, 300, 400].map(Some));
    let (latency, bound) =
        (&waits["latency"], |index: i32| ((f64::from(index + 1) / 4.0).exp2() * 1e9) as u64);
    assert_eq!(latency["positive"], serde_json::json!([[-30, 99], [-20, 1]]));
    let (p50, p99) = (latency["p50_ns"].as_u64().unwrap(), latency["p99_ns"].as_u64().unwrap());
    assert!((bound(-31)..=bound(-30)).contains(&p50) && (p50..=bound(-30)).contains(&p99), "{latency}");
    assert_eq!((&latency["count"], &latency["max_task"]), (&100.into(), &9.into()));
    assert_eq!((&menu["slowest_ns"], &menu["slowest_task"]), (&40_000_000.into(), &9.into()));
    let trace = "09".repeat(16).into();
    assert_eq!((&menu["slowest_trace_id"], &latency["max_trace_id"]), (&trace, &trace));
    assert_eq!(latency["exemplars"].as_array().map(Vec::len), Some(1), "those of the interval");
    let idle = groups.iter().find(|group| group["name"] == "idle").unwrap();
    assert!(idle.get("waits").is_none(), "they were not told");
    let text = anstream::adapter::strip_str(&view.text("tea")).to_string();
    let line = text.lines().filter(|line| line.starts_with("GET /menu")).nth(1).expect("a second table");
    let cells: Vec<&str> = line.split_whitespace().rev().collect();
    assert_eq!(cells[..4], ["44.4", "33.3", "11.1", "11.1"], "{line}");
    assert!(cells.contains(&"40.0ms"), "{line}");
}

#[test]
fn times_begin_with_the_first_sample_of_them() {
    let (before, after) = pair_with_waits();
    let (without, _) = pair();
    let view = View::between(&without, &without, &before, &[]);
    assert!(view.groups().iter().all(|row| !row.has_waits), "since when is not known");
    assert!(View::between(&without, &before, &after, &[]).groups().iter().any(|row| row.has_waits));
}

#[test]
fn fixed_samples_give_the_committed_views() {
    use dormouse_testkit::{assert_committed, pretty};
    let events = ["page-faults", "alloc-bytes"].map(str::to_owned);
    for (is_refused, name) in [(false, "top"), (true, "top_refused")] {
        let [before, now] = crate::sample::totals::tests::fixed(is_refused);
        let view = View::between(&before, &before, &now, &events);
        let text = anstream::adapter::strip_str(&view.text("tea (process 7)")).to_string();
        assert_committed(&format!("tests/figures/{name}.txt"), &text);
        let json = serde_json::to_value(view.document(7, "tea")).unwrap();
        assert_committed(&format!("tests/figures/{name}.json"), &pretty(json));
    }
}

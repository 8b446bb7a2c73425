//! Metrics of this process, and of what any process may say of itself.
#![cfg(all(feature = "axum", feature = "tower"))]
#![expect(clippy::float_cmp, reason = "they are whole numbers, written and read")]

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use dormouse::metrics::{Exposition, Metrics, MetricsFormat, MetricsSpec, Origin, add};
use dormouse::sync::{Holds, LockTimes, Mutex};
use dormouse::tower::MetricsService;
use dormouse::{Event, Group};
use dormouse_metrics::{MetricFamily, MetricKind};
use dormouse_protocol::figures::{
    CALL_FIGURES, EVENT_FAMILIES, GROUP_FIGURES, LOCK_ACQUISITIONS, LOCK_WAIT_TIME, LOCK_WAITS, OTHER_EVENTS,
    PROCESS_FIGURES, RUNTIME_FIGURES,
};
use dormouse_protocol::{
    CountRow, GroupRow, HistogramRow, OutcomesRow, QueueRow, Stat, StreamsRow, TaskPolls, UnansweredRow,
    WaitsRow,
};
use dormouse_testkit::{in_child, spin_for};
use tower::ServiceExt;

const WORK: Duration = Duration::from_millis(30);

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn text(of: &Exposition) -> String {
    String::from_utf8(of.encode(MetricsFormat::Text)).unwrap()
}

/// The value in the line that begins so.
fn value(text: &str, line: &str) -> f64 {
    let value = text.lines().find_map(|of| of.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("{line} in {text}"))
}

#[test]
fn a_scrape_has_each_groups_figures() {
    let metrics = Metrics::start(&MetricsSpec::new().waits().events(&[Event::PAGE_FAULTS])).unwrap();
    assert!(metrics.refused().is_empty());
    let group = Group::new("GET /scraped");
    for _ in 0..2 {
        block_on(group.instrument(async {
            spin_for(WORK);
            tokio::task::yield_now().await;
        }));
    }
    let text = text(&metrics.exposition());
    let of = |name: &str| value(&text, &format!("dormouse_{name}{{group=\"GET /scraped\"}}"));
    assert!(of("cpu_time_seconds_total") >= 2.0 * WORK.as_secs_f64() * 0.9);
    assert_eq!([of("polls_total"), of("tasks_started_total")], [4.0, 2.0]);
    let ended = ["completed"].map(|outcome| {
        let labels = format!("{{group=\"GET /scraped\",outcome=\"{outcome}\"}}");
        value(&text, &format!("dormouse_requests_total{labels}"))
    });
    assert_eq!(ended, [2.0]);
    assert_eq!([of("tasks_finished_total"), of("tasks_alive")], [2.0, 0.0]);
    assert!(of("page_faults_total") >= 0.0);
    assert_eq!(of("request_duration_seconds_count"), 2.0);
    let sum = of("request_duration_seconds_sum");
    assert!(sum >= 2.0 * WORK.as_secs_f64(), "{sum}");
    let state = |state: &str| {
        value(&text, &format!("dormouse_task_time_seconds_total{{group=\"GET /scraped\",state=\"{state}\"}}"))
    };
    let times = ["poll", "runnable", "await"].map(state);
    assert!((times.iter().sum::<f64>() - sum).abs() < 1e-4, "{times:?} of {sum}");
    let share = value(&text, "dormouse_cpu_coverage_ratio");
    assert!(share > 0.0 && share <= 1.0, "{share}");
    let [process, attributed] = ["time", "attributed"]
        .map(|part| value(&text, &format!("dormouse_process_cpu_{part}_seconds_total")));
    assert!(attributed <= process, "{attributed} of {process}");
    let version = concat!("dormouse_agent_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}");
    assert_eq!(value(&text, version), 1.0);
}

#[test]
fn locks_are_scraped_while_they_are_noted() {
    let metrics = Metrics::start(&MetricsSpec::new()).unwrap();
    assert!(!text(&metrics.exposition()).contains("dormouse_lock_"));
    let _times = LockTimes::start(Holds::Sampled).unwrap();
    let lock = Mutex::new(());
    // Some of the first are looked at.
    (0..100).for_each(|_| drop(lock.lock()));
    let text = text(&metrics.exposition());
    let line = text.lines().find(|line| line.starts_with("dormouse_lock_acquisitions_total{")).expect(&text);
    assert!(line.contains("metrics.rs:") && !line.ends_with(" 0"), "{line}");
}

#[test]
fn each_count_of_openmetrics_has_its_sum() {
    let metrics = Metrics::start(&MetricsSpec::new().waits()).unwrap();
    // A group without times, and one with.
    let _idle = Group::new("untimed");
    Group::new("timed").scope(|| ());
    let text = String::from_utf8(metrics.exposition().encode(MetricsFormat::OpenMetrics)).unwrap();
    let lines = |suffix: &str| -> Vec<String> {
        let of = |line: &str| {
            let (name, labels) = line.split(' ').next()?.split_once('{')?;
            Some(format!("{} {labels}", name.strip_suffix(suffix)?))
        };
        text.lines().filter_map(of).collect()
    };
    let counts = lines("_count");
    assert!(counts.iter().any(|of| of.contains("untimed")) && counts.len() > 1, "{text}");
    assert_eq!(counts, lines("_sum"), "{text}");
}

#[test]
fn figures_that_nobody_counts_are_absent() {
    in_child(|| {
        Group::new("uncounted").scope(|| ());
        let lines = ["cpu_time_seconds_total", "polls_total", "tasks_started_total"]
            .map(|name| format!("dormouse_{name}{{group=\"uncounted\"}} "));
        let shown = || {
            let text = dormouse::metrics::text();
            let attributed = text.contains("dormouse_process_cpu_attributed_seconds_total ");
            (lines.each_ref().map(|line| text.contains(line)), attributed)
        };
        assert_eq!(shown(), ([false, false, true], false));
        drop(Metrics::start(&MetricsSpec::new()).unwrap());
        assert_eq!(shown(), ([true; 3], true));
    });
}

#[test]
fn threads_that_cannot_be_listed_are_absent() {
    in_child(|| {
        let metrics = Metrics::start(&MetricsSpec::new()).unwrap();
        let threads = || {
            let text = text(&metrics.exposition());
            text.lines().any(|line| line.starts_with("dormouse_process_threads "))
        };
        assert!(threads());
        let mut own = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: nothing else opens a descriptor in the child.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut own) };
        let none = libc::rlimit { rlim_cur: 0, ..own };
        // SAFETY: as above.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) };
        let without = threads();
        // SAFETY: as above.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const own) };
        assert!(!without && threads());
    });
}

#[test]
fn counters_outlive_the_one_that_counts() {
    let line = "dormouse_cpu_time_seconds_total{group=\"outlives\"}";
    let read = |of: &Exposition| value(&text(of), line);
    let metrics = Metrics::start(&MetricsSpec::new()).unwrap();
    Group::new("outlives").scope(|| spin_for(WORK));
    let first = read(&metrics.exposition());
    drop(metrics);
    let between = read(&dormouse::metrics::exposition());
    let next = Metrics::start(&MetricsSpec::new()).unwrap();
    Group::new("outlives").scope(|| spin_for(WORK));
    let second = read(&next.exposition());
    assert!(first > 0.0 && between >= first && second >= between + WORK.as_secs_f64() * 0.9);
    assert!(dormouse::metrics::text().contains(line));
}

#[test]
fn each_format_is_answered_by_name() {
    let metrics = Metrics::start(&MetricsSpec::new().waits()).unwrap();
    let protobuf = MetricsFormat::Protobuf.content_type();
    let openmetrics = MetricsFormat::OpenMetrics.content_type();
    for (accept, shown) in [
        (None, MetricsFormat::Text.content_type()),
        (Some(openmetrics), openmetrics),
        (Some(protobuf), protobuf),
    ] {
        let answer = metrics.answer(accept);
        assert_eq!((answer.status, answer.headers[0]), (200, ("content-type", shown)));
        assert!(!answer.body.is_empty());
    }
}

#[test]
fn a_route_and_a_service_answer() {
    let router: Router = dormouse::axum::metrics(Metrics::start(&MetricsSpec::new()).unwrap());
    let service: MetricsService<Body> = MetricsService::new(Metrics::start(&MetricsSpec::new()).unwrap());
    let ask = |method: Method| {
        let accept = MetricsFormat::OpenMetrics.content_type();
        Request::builder()
            .method(method)
            .uri("/metrics")
            .header("accept", accept)
            .body(Body::empty())
            .unwrap()
    };
    block_on(async {
        for response in [
            router.oneshot(ask(Method::GET)).await.unwrap(),
            service.clone().oneshot(ask(Method::GET)).await.unwrap(),
        ] {
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.headers()["content-type"], MetricsFormat::OpenMetrics.content_type());
            let body = to_bytes(response.into_body(), 1 << 24).await.unwrap();
            assert!(body.ends_with(b"# EOF\n"));
        }
        let refused = service.oneshot(ask(Method::POST)).await.unwrap();
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    });
}

fn group(id: u32, name: &str) -> GroupRow {
    GroupRow {
        id,
        name: name.to_owned().into(),
        cpu_ns: u64::from(id) * 1_234_567_891,
        entries: 0,
        alive: 3,
        started: 123_456,
        finished: 123_453,
        requests: 120_000,
        outcomes: Some(OutcomesRow { completed: 118_000, error: 2_000, ..OutcomesRow::default() }),
        polls: 987_654,
        counts: Vec::new(),
        waits: None,
        objectives: Vec::new(),
        blocking: None,
        outliving: None,
        long_lived: None,
    }
}

fn stat(groups: Vec<GroupRow>) -> Stat {
    Stat { mono_ns: 1, process_cpu_ns: 5, groups, ..Stat::default() }
}

fn exposition(groups: Vec<GroupRow>) -> Exposition {
    let mut exposition = Exposition::new();
    add(&mut exposition, &Origin::own(), &stat(groups));
    exposition
}

#[test]
fn refused_cpu_time_is_absent() {
    let text = |cpu_refused: Option<&'static str>| {
        let mut exposition = Exposition::new();
        let cpu_refused = cpu_refused.map(Into::into);
        add(&mut exposition, &Origin::own(), &Stat { cpu_refused, ..stat(vec![group(1, "a")]) });
        text(&exposition)
    };
    let of_groups = ["dormouse_cpu_time_seconds_total{", "dormouse_process_cpu_attributed_seconds_total "];
    let (right, refused) = (text(None), text(Some("a clock is false")));
    assert!(of_groups.iter().all(|name| right.contains(name)), "{right}");
    assert!(!of_groups.iter().any(|name| refused.contains(name)), "{refused}");
    assert_eq!([&right, &refused].map(|text| value(text, "dormouse_cpu_refused")), [0.0, 1.0]);
    assert!(refused.contains("dormouse_process_cpu_time_seconds_total "), "{refused}");
}

#[test]
fn polls_are_told_where_a_runtime_tells_them() {
    let text = |polls| {
        let mut exposition = Exposition::new();
        add(&mut exposition, &Origin::own(), &Stat { polls, ..stat(Vec::new()) });
        text(&exposition)
    };
    let told = text(Some(TaskPolls { all: 8, in_groups: 6 }));
    let of = |name: &str| value(&told, &format!("dormouse_{name}"));
    assert_eq!([of("process_polls_total"), of("process_polls_attributed_total")], [8.0, 6.0]);
    assert_eq!(of("poll_coverage_ratio"), 0.75);
    for none in [None, Some(TaskPolls::default())] {
        assert!(!text(none).contains("poll"), "{none:?}");
    }
}

#[test]
fn an_older_agents_buckets_are_of_nanoseconds() {
    // As it comes: no unit, and bounds of 2^(i/4) ns. 2^(119/4) ns are 0.903 s, 2^(120/4) are
    // 1.074.
    let row = r#"{"scale":2,"zero_threshold_ns":64,"zero_count":0,"positive":[[119,5]],"max_ns":1000000000}"#;
    let requests: HistogramRow = serde_json::from_str(row).unwrap();
    let waits = Some(Box::new(WaitsRow { requests, ..WaitsRow::default() }));
    let text = text(&exposition(vec![GroupRow { waits, ..group(1, "old") }]));
    let bucket = |le: &str| {
        value(&text, &format!("dormouse_request_duration_seconds_bucket{{group=\"old\",le=\"{le}\"}}"))
    };
    assert_eq!([bucket("0.25"), bucket("1"), bucket("4")], [0.0, 0.0, 5.0]);
}

#[test]
fn nobody_breaks_a_scrape_by_what_he_says() {
    let buckets = vec![(5, 1), (5, 1), (i32::MIN, u64::MAX)];
    let wild = HistogramRow { scale: 2, unit_ns: 1_000_000_000, buckets, ..HistogramRow::default() };
    let waits = Some(Box::new(WaitsRow { requests: wild, ..WaitsRow::default() }));
    let count =
        |event: &str| CountRow { event: event.to_owned().into(), value: 1, enabled_ns: 1, running_ns: 1 };
    let counts = ["page-faults", "page-faults", "a\0b\n", "a\0b\n"].map(count).into_iter();
    let counts = counts.chain([CountRow { running_ns: 0, ..count("never") }]).collect();
    let wild = GroupRow { waits, counts, ..group(1, "a\0\"b") };
    let text = text(&exposition(vec![wild.clone(), GroupRow { id: 2, ..wild }]));
    assert!(!text.contains('\0') && !text.contains("never"), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let mut names: Vec<&str> = lines.iter().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "{text}");
    assert!(!text.contains("request_duration_seconds_bucket"), "it is no histogram: {text}");
}

#[test]
fn nobody_makes_a_scrape_long() {
    let long = "ä".repeat(1000);
    let count = |n: usize| {
        let event = format!("{n}{long}").into();
        CountRow { event, value: 1, enabled_ns: 1, running_ns: 1 }
    };
    let many = |id: u32| {
        let counts = (0..if id == 0 { 1000 } else { 0 }).map(count).collect();
        GroupRow { counts, ..group(id, &format!("{id}{long}")) }
    };
    let text = text(&exposition((0..2000).map(many).collect()));
    let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(count("dormouse_cpu_time_seconds_total{"), dormouse::MAX_GROUPS);
    assert_eq!(count("dormouse_events_total{"), dormouse::events::MAX_EVENTS);
    let longest = text.lines().map(str::len).max();
    assert!(longest < Some(400), "names are cut: {longest:?}");
}

/// The tables of the names of metrics, as the pages have them.
fn names() -> String {
    let kind = |family: &MetricFamily| match family.kind {
        MetricKind::Counter | MetricKind::OlderCounter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Info => "info",
        MetricKind::Histogram([]) => "native histogram",
        MetricKind::Histogram(_) => "histogram",
    };
    let table = |families: Vec<&MetricFamily>| {
        let rows = families.iter().map(|family| {
            let (name, is) = (family.prometheus_name(), family.help);
            format!("| `{name}` | `{}` | {} | {is} |\n", family.name, kind(family))
        });
        format!(
            "| Prometheus | OpenTelemetry | kind | is |\n|---|---|---|---|\n{}\n",
            rows.collect::<String>()
        )
    };
    let of_groups = |in_waits: bool| {
        let figures = GROUP_FIGURES.iter().filter(|figure| figure.in_waits == in_waits);
        let mut families: Vec<_> = figures.filter_map(|figure| Some(figure.metric?.family)).collect();
        families.dedup();
        table(families)
    };
    let events = EVENT_FAMILIES.iter().map(|(_, family)| family).chain([&OTHER_EVENTS]);
    let calls = CALL_FIGURES.iter().filter_map(|figure| Some(figure.metric?.family));
    format!(
        "For each group, with the label `group`:\n\n{}The next metrics exist while times of tasks are \
         measured. The first one also has the label `state`\n(`queued_unseen`, `queued_behind`, `poll`, \
         `runnable`, `await`).\n\n{}Outgoing [calls](calls.md) have the labels `group`, `kind` and `peer`; \
         they exist while times of\ntasks are measured. Calls that no group has made have no `group`.\n\n{}[Locks](locks.md) \
         have the labels `group`, `line` and `kind`; they exist while locks are noted.\nWhere no group was \
         current there is no `group`.\n\n{}The next metrics exist for each event that is counted. The last \
         one is for all other events, with\nthe label `event`.\n\n{}For the process; the counters of its \
         CPU limit have the label `control_group`, because another\ngroup may have the lowest limit later:\n\n\
         {}For each runtime that is shown (`dormouse::tokio::runtime`), with the label `runtime`:\n\n{}",
        of_groups(false),
        of_groups(true),
        table(calls.collect()),
        table(vec![&LOCK_ACQUISITIONS, &LOCK_WAITS, &LOCK_WAIT_TIME]),
        table(events.collect()),
        table(PROCESS_FIGURES.iter().map(|figure| &figure.family).collect()),
        table(RUNTIME_FIGURES.iter().filter_map(|figure| Some(figure.metric?.family)).collect())
    )
}

#[test]
fn pages_have_the_names_of_all_families() {
    dormouse_testkit::assert_committed("crates/dormouse/src/features/metrics/names.md", &names());
    let guide = include_str!("../../../../docs/guide/metrics.md");
    let (before, rest) = guide.split_once("<!-- names -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- end of names -->").unwrap();
    let guide = format!("{before}<!-- names -->\n{}<!-- end of names -->{after}", names());
    dormouse_testkit::assert_committed("docs/guide/metrics.md", &guide);
}

fn many() -> Vec<GroupRow> {
    let row = || HistogramRow {
        scale: 2,
        unit_ns: 1_000_000_000,
        zero_threshold_ns: 59,
        zero_count: 3,
        buckets: (-60..-20).map(|at| (at, 1_000 + (at * at) as u64)).collect(),
        sum_ns: Some(123_456_789_012),
        ..HistogramRow::default()
    };
    let waits = || WaitsRow {
        poll_ns: 123_456_789_012,
        runnable_ns: 23_456_789_012,
        await_ns: 3_456_789_012,
        queue: Some(QueueRow { requests: 1, received: 1, unseen_ns: 1_456_789_012, behind_ns: 456_789_012 }),
        polls: row(),
        delays: row(),
        awaits: row(),
        requests: row(),
        bodies: row(),
        gaps: HistogramRow::default(),
        received_gaps: HistogramRow::default(),
        streams: Some(StreamsRow::default()),
        carried: None,
        messages: None,
        unanswered: Some(UnansweredRow::default()),
        stalls: None,
        on_cpu_ns: None,
    };
    let name = |id: u32| format!("GET /orders/{id}");
    let group = |id: u32| {
        // Few groups have streams.
        let gaps = if id.is_multiple_of(10) { row() } else { HistogramRow::default() };
        GroupRow { waits: Some(Box::new(WaitsRow { gaps, ..waits() })), ..group(id, &name(id)) }
    };
    (0..1000).map(group).collect()
}

/// As servers send it to scrapers, all of which accept it.
fn zipped(bytes: &[u8]) -> usize {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap().len()
}

#[test]
fn a_thousand_groups_fit_a_mebibyte() {
    const MEBIBYTE: usize = 1 << 20;
    // Each group has some forty classic buckets of requests and bodies, each a line of some ninety
    // bytes that differ in a few: a packer takes most of it, and no scraper asks without one.
    const PLAIN: usize = 3 * MEBIBYTE;
    let with = exposition(many());
    let without = exposition(many().into_iter().map(|group| GroupRow { waits: None, ..group }).collect());
    for format in [MetricsFormat::Text, MetricsFormat::OpenMetrics, MetricsFormat::Protobuf] {
        let [with, without] = [&with, &without].map(|of| of.encode(format));
        println!("{format:?}: {} bytes, {} without times", with.len(), without.len());
        assert!(without.len() < MEBIBYTE / 2, "{format:?}");
        assert!(with.len() < PLAIN && zipped(&with) < MEBIBYTE / 2, "{format:?}: {}", zipped(&with));
    }
    let otlp = with.otlp(&[]);
    assert!(zipped(&otlp) < MEBIBYTE / 2, "{} bytes of OTLP", otlp.len());
}

#[test]
fn promtool_finds_no_fault() {
    let metrics = Metrics::start(&MetricsSpec::new().waits().events(&[Event::PAGE_FAULTS])).unwrap();
    block_on(Group::new("checked").instrument(async { spin_for(WORK) }));
    let text = text(&metrics.exposition());
    let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        return dormouse_testkit::skip("promtool is not installed");
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn fixed_readings_give_the_committed_metrics() {
    let readings = include_str!("../../../../tests/figures/readings.json");
    let mut both: serde_json::Value = serde_json::from_str(readings).unwrap();
    let now: Stat = serde_json::from_value(both["now"].take()).unwrap();
    let origin = Origin {
        name: "tea".to_owned(),
        pid: 7,
        user: None,
        version: "1.2.3".to_owned(),
        start_unix_ns: 1_790_000_000_000_000_000,
        instance: "here:7:1".to_owned(),
    };
    for (cpu_refused, name) in [(None, "metrics"), (Some("a clock is false".into()), "metrics_refused")] {
        let mut exposition = Exposition::new();
        add(&mut exposition, &origin, &Stat { cpu_refused, ..now.clone() });
        dormouse_testkit::assert_committed(&format!("tests/figures/{name}.txt"), &text(&exposition));
        let open = String::from_utf8(exposition.encode(MetricsFormat::OpenMetrics)).unwrap();
        dormouse_testkit::assert_committed(&format!("tests/figures/{name}.openmetrics"), &open);
        // The other formats write the same points. They have the moment of the reading, too.
        let points = format!("{exposition:?}").replace("FamilyPoints {", "\nFamilyPoints {");
        let points = points.replace("MetricPoint {", "\n  MetricPoint {");
        let (before, rest) = points.split_once("read_unix_ns: ").unwrap();
        let rest = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let points = format!("{before}read_unix_ns: 0{rest}\n");
        dormouse_testkit::assert_committed(&format!("tests/figures/{name}.points"), &points);
    }
}

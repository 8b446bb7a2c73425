//! A forked child's metrics are its own: they begin at zero, and its parent's go on. No test
//! harness: the process forks.

#![expect(clippy::float_cmp, reason = "they are whole numbers, written and read")]

use std::time::{Duration, Instant};

use dormouse::Group;
use dormouse::events::{Counter, poll_begins, poll_ends};
use dormouse::metrics::{Metrics, MetricsFormat, MetricsSpec};
use dormouse_testkit::{fork, spin_for};

const WORK: Duration = Duration::from_millis(60);

fn read(metrics: &Metrics, line: &str) -> f64 {
    let text = String::from_utf8(metrics.exposition().encode(MetricsFormat::Text)).unwrap();
    let value = text.lines().find_map(|of| of.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("{line} in {text}"))
}

const CPU: &str = "dormouse_cpu_time_seconds_total{group=\"forked\"}";
const REQUESTS: &str = "dormouse_requests_total{group=\"forked\",outcome=\"completed\"}";
const WAITED: &str = "dormouse_task_time_seconds_total{group=\"forked\",state=\"poll\"}";
const ATTRIBUTED: &str = "dormouse_process_cpu_attributed_seconds_total";
const PROCESS: &str = "dormouse_process_cpu_time_seconds_total";
const POURED: &str = "dormouse_events_total{group=\"forked\",event=\"cups\"}";

/// One for each time that a group works.
static CUPS: Counter = Counter::new("cups");

fn spec() -> MetricsSpec {
    MetricsSpec::new().waits().events(&[CUPS.event().unwrap()])
}

fn work(group: Group, time: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(group.instrument(async {
        CUPS.add(1);
        spin_for(time);
    }));
}

/// The polls of tasks that are told, and those in groups, behind a poll that does that.
fn told(metrics: &Metrics, poll: impl FnOnce()) -> [f64; 2] {
    poll_begins();
    poll();
    poll_ends();
    ["polls", "polls_attributed"].map(|name| read(metrics, &format!("dormouse_process_{name}_total")))
}

pub(crate) fn main() {
    let metrics = Metrics::start(&spec()).unwrap();
    let group = Group::new("forked");
    (0..3).for_each(|_| work(group, WORK));
    let before = [CPU, REQUESTS, WAITED].map(|line| read(&metrics, line));
    assert_eq!(told(&metrics, || work(group, WORK)), [1.0, 1.0]);
    assert!(before[0] >= 3.0 * WORK.as_secs_f64() * 0.9 && before[1] == 3.0, "{before:?}");
    // Within a poll, which is the parent's alone.
    poll_begins();
    let status = fork(|| {
        poll_ends();
        // The parent's, in the child: it counts nothing, and tells the child's figures.
        assert_eq!([CPU, REQUESTS].map(|line| read(&metrics, line)), [0.0; 2]);
        let own = Metrics::start(&spec()).unwrap();
        assert_eq!([CPU, REQUESTS, WAITED, POURED].map(|line| read(&own, line)), [0.0; 4]);
        assert_eq!(told(&own, || ()), [1.0, 0.0], "its parent's poll is none of its own");
        let begun = Instant::now();
        work(group, WORK);
        let most = begun.elapsed().as_secs_f64() * 1.001;
        let [cpu, requests, waited] = [CPU, REQUESTS, WAITED].map(|line| read(&own, line));
        assert!(cpu >= WORK.as_secs_f64() * 0.9 && cpu < before[0], "{cpu}");
        assert!(waited >= WORK.as_secs_f64() * 0.9 && waited <= most, "{waited} of {most}");
        assert_eq!([requests, read(&own, POURED)], [1.0; 2]);
        let [attributed, process] = [ATTRIBUTED, PROCESS].map(|line| read(&own, line));
        assert!(attributed <= process, "{attributed} of {process}");
        // Another reader of the child, after the first one has ended.
        drop(own);
        let next = Metrics::start(&MetricsSpec::new()).unwrap();
        assert!(read(&next, CPU) >= cpu && read(&next, REQUESTS) >= requests);
    });
    poll_ends();
    assert!(status.success(), "{status}");
    assert_eq!(read(&metrics, POURED), 4.0, "the parent's go on");
    let after = [CPU, REQUESTS, WAITED].map(|line| read(&metrics, line));
    assert!(after.iter().zip(before).all(|(after, before)| *after >= before), "{after:?} after {before:?}");
    println!("1 passed, 0 failed");
}

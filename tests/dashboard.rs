//! The dashboard for Grafana, and the objectives for sloth and pyrra, ask for metrics that exist,
//! by labels that they have.

use std::collections::{BTreeMap, BTreeSet};

use dormouse_metrics::{MetricFamily, MetricKind};
use dormouse_protocol::figures::{
    CALL_FIGURES, EVENT_FAMILIES, GROUP_FIGURES, OBJECTIVE_REQUESTS, OBJECTIVE_TARGET, OTHER_EVENTS,
    PROCESS_FIGURES, REQUESTS, RUNTIME_FIGURES,
};
use serde_json::Value;

const DASHBOARD: &str = include_str!("../examples/grafana/dormouse.json");

/// Labels that all metrics of `dormouse serve` have, and what a scrape adds.
const OF_ALL: [&str; 5] = ["process", "pid", "user", "job", "instance"];

/// The labels of each metric, by its name in Prometheus.
fn metrics() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut all = BTreeMap::new();
    let mut add = |family: &MetricFamily, labels: &[&'static str]| {
        let name = family.prometheus_name();
        let mut labels: BTreeSet<_> = labels.iter().copied().chain(OF_ALL).collect();
        if let MetricKind::Histogram(buckets) = family.kind {
            if !buckets.is_empty() {
                for suffix in ["_count", "_sum"] {
                    all.insert(format!("{name}{suffix}"), labels.clone());
                }
                labels.insert("le");
                all.insert(format!("{name}_bucket"), labels);
            }
        } else {
            all.entry(name).or_insert_with(BTreeSet::new).extend(labels);
        }
    };
    for metric in GROUP_FIGURES.iter().filter_map(|figure| figure.metric) {
        let label = metric.label.map(|(name, _)| name);
        add(metric.family, &[&["group"][..], label.as_slice()].concat());
    }
    add(&REQUESTS, &["group", "outcome"]);
    for metric in CALL_FIGURES.iter().filter_map(|figure| figure.metric) {
        add(metric.family, &["group", "kind", "peer"]);
    }
    add(&OBJECTIVE_REQUESTS, &["group", "objective", "met"]);
    add(&OBJECTIVE_TARGET, &["group", "objective"]);
    for metric in RUNTIME_FIGURES.iter().filter_map(|figure| figure.metric) {
        add(metric.family, &["runtime"]);
    }
    for figure in PROCESS_FIGURES {
        add(&figure.family, if figure.of_limit { &["control_group"] } else { &[] });
    }
    for (_, family) in &EVENT_FAMILIES {
        add(family, &["group"]);
    }
    add(&OTHER_EVENTS, &["group", "event"]);
    all
}

/// All texts of a kind in the document.
fn texts<'a>(of: &'a Value, key: &str, into: &mut Vec<&'a str>) {
    match of {
        Value::Object(all) => {
            into.extend(all.get(key).and_then(Value::as_str));
            all.values().for_each(|value| texts(value, key, into));
        }
        Value::Array(all) => all.iter().for_each(|value| texts(value, key, into)),
        _ => {}
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
}

/// The metrics that a question asks for.
fn asked(question: &str) -> Vec<&str> {
    words(question).filter(|word| word.starts_with("dormouse_")).collect()
}

/// The labels that a question names: those of `by (…)` and of selectors.
fn labels(question: &str) -> BTreeSet<&str> {
    let between = |open: &str, close: char| {
        let parts: Vec<_> =
            question.split(open).skip(1).map(|part| part.split(close).next().unwrap_or("")).collect();
        parts
    };
    let selected = between("{", '}').into_iter().flat_map(|selector| {
        // Values are in quotes, every second part.
        selector.split('"').step_by(2).flat_map(words).collect::<Vec<_>>()
    });
    between("by (", ')').into_iter().flat_map(words).chain(selected).collect()
}

/// The metrics that a question asks for, all of which exist and have its labels.
#[track_caller]
fn right<'a>(question: &'a str, known: &BTreeMap<String, BTreeSet<&str>>) -> Vec<&'a str> {
    let metrics = asked(question);
    assert!(!metrics.is_empty(), "{question}");
    for name in &metrics {
        let has = known.get(*name).unwrap_or_else(|| panic!("no {name}: {question}"));
        let unknown: Vec<_> = labels(question).into_iter().filter(|label| !has.contains(label)).collect();
        assert!(unknown.is_empty(), "{name} has no {unknown:?}: {question}");
    }
    metrics
}

#[test]
fn slos_ask_for_what_exists() {
    let known = metrics();
    for slo in [include_str!("../examples/slo/sloth.yml"), include_str!("../examples/slo/pyrra.yml")] {
        let slo = slo.replace("{{.window}}", "5m");
        let questions: Vec<_> = slo.lines().filter(|line| line.contains("dormouse_")).collect();
        assert_eq!(questions.len(), 2, "{slo}");
        for question in questions {
            right(question, &known);
        }
    }
}

#[test]
fn the_dashboard_asks_for_what_exists() {
    let (dashboard, known) = (serde_json::from_str::<Value>(DASHBOARD).expect("JSON"), metrics());
    let (mut questions, mut seen) = (Vec::new(), BTreeSet::new());
    texts(&dashboard["panels"], "expr", &mut questions);
    assert!(questions.len() > 10, "{questions:?}");
    for question in &questions {
        seen.extend(right(question, &known));
    }
    for part in [
        "requests_total",
        "request_duration",
        "body_duration",
        "long_lived",
        "stream_gap",
        "received_gap",
        "received_messages",
        "connection_read",
        "connection_written",
        "call_duration",
        "calls_failed",
        "calls_cancelled",
        "objective_requests",
        "objective_target",
        "runtime_busy",
        "blocking_queued",
    ] {
        assert!(seen.iter().any(|name| name.contains(part)), "{part} is shown");
    }
    let mut variables = Vec::new();
    texts(&dashboard["templating"], "query", &mut variables);
    for name in variables.iter().flat_map(|variable| asked(variable)) {
        assert!(known.contains_key(name), "no {name}");
    }
    let mut legends = Vec::new();
    texts(&dashboard["panels"], "legendFormat", &mut legends);
    let all: BTreeSet<&str> = known.values().flatten().copied().collect();
    let named = |legend| -> Vec<&str> {
        str::split(legend, "{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0)).collect()
    };
    for label in legends.iter().flat_map(|legend| named(legend)) {
        assert!(all.contains(label), "no label {label}");
    }
}

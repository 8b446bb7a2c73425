//! The texts, read by a parser that takes nothing but what the formats allow.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use dormouse_metrics::{Exposition, MetricsFormat};
use support::{WILD, fill};

/// A line: its name, its labels, and the rest.
type Sample = (String, BTreeMap<String, String>, String);

/// Reads a line, or says where it is none.
fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, value) = rest.split_once("=\"").unwrap();
            assert!(label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
            let (mut text, mut chars) = (String::new(), value.char_indices());
            let end = loop {
                match chars.next().unwrap() {
                    (at, '"') => break at,
                    (_, '\\') => text.push(match chars.next().unwrap().1 {
                        'n' => '\n',
                        c @ ('"' | '\\') => c,
                        other => panic!("\\{other} in {line}"),
                    }),
                    (_, '\0') => panic!("{line}"),
                    (_, c) => text.push(c),
                }
            };
            assert!(labels.insert(label.to_owned(), text).is_none(), "{line}");
            rest = &value[end + 1..];
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = rest.strip_prefix(',').unwrap();
        }
    }
    (name.to_owned(), labels, rest.strip_prefix(' ').unwrap().to_owned())
}

/// The samples of a text, by family, in its order. Families stand together, with their heads first.
fn families(text: &str) -> Vec<(String, Vec<Sample>)> {
    let mut families: Vec<(String, Vec<Sample>)> = Vec::new();
    let (mut seen, mut samples) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(head) = line.strip_prefix("# ") {
            let name = head.split(' ').nth(1).unwrap().to_owned();
            if families.last().is_none_or(|(last, of)| *last != name || !of.is_empty()) {
                assert!(seen.insert(name.clone()), "{name} twice");
                families.push((name, Vec::new()));
            }
        } else {
            let sample = sample(line);
            assert!(samples.insert((sample.0.clone(), sample.1.clone())), "{line} twice");
            let (family, of) = families.last_mut().unwrap();
            assert!(sample.0.starts_with(&**family), "{line} in {family}");
            of.push(sample);
        }
    }
    families
}

fn exposition() -> Exposition {
    let mut exposition = Exposition::of_processes();
    fill(&mut exposition, "tea \"party\"", 7);
    fill(&mut exposition, "coffee", 8);
    exposition
}

fn text(format: MetricsFormat) -> String {
    String::from_utf8(exposition().encode(format)).unwrap()
}

#[test]
fn families_of_several_processes_stand_together() {
    for format in [MetricsFormat::Text, MetricsFormat::OpenMetrics] {
        let families = families(&text(format));
        let names: Vec<&str> = families.iter().map(|(name, _)| &**name).collect();
        let suffix = if format == MetricsFormat::Text { ["_info", "_total"] } else { ["", ""] };
        let [agent, cpu] =
            [format!("dormouse_agent{}", suffix[0]), format!("dormouse_cpu_time_seconds{}", suffix[1])];
        assert_eq!(names, [&*agent, &*cpu, "dormouse_tasks_alive", "dormouse_request_duration_seconds"]);
        // OpenMetrics has no count where there is no sum.
        let histograms = if format == MetricsFormat::Text { 22 } else { 20 };
        assert_eq!(families.iter().map(|(_, of)| of.len()).collect::<Vec<_>>(), [2, 4, 4, histograms]);
        let (name, labels, value) = &families[1].1[0];
        assert_eq!((&**name, &**value), ("dormouse_cpu_time_seconds_total", "1.5"));
        let shown = WILD.replace('\0', "\u{fffd}");
        let labels: Vec<_> = labels.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(
            labels,
            [("group", &*shown), ("pid", "7"), ("process", "tea \"party\""), ("state", "poll")]
        );
    }
}

#[test]
fn all_kinds_of_families_have_texts() {
    // Units, exemplars and an end are OpenMetrics' alone.
    insta::assert_snapshot!("openmetrics", text(MetricsFormat::OpenMetrics));
    insta::assert_snapshot!("prometheus", text(MetricsFormat::Text));
}

#[test]
fn one_process_says_nothing_of_itself() {
    let mut exposition = Exposition::new();
    fill(&mut exposition, "tea", 7);
    let text = String::from_utf8(exposition.encode(MetricsFormat::Text)).unwrap();
    assert!(!text.contains("pid=") && !text.contains("process="), "{text}");
    assert_eq!(Exposition::new().encode(MetricsFormat::OpenMetrics), b"# EOF\n");
}

#[test]
fn promtool_is_silent() {
    let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        return dormouse_testkit::skip("promtool is not installed");
    };
    promtool.stdin.take().unwrap().write_all(text(MetricsFormat::Text).as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

//! Comparisons of reports made up here: what is refused, what is found, and what is not.

mod machines;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dormouse_testkit::short_or_long;
use serde_json::{Value, json};
use tempfile::TempDir;

use self::machines::Machines;
use super::judge::{RISK, needed};
use super::side::{Found, Side};
use super::{Comparison, Finding};
use crate::machine::Machine;
use crate::report::{BenchReport, SCHEMA};
use crate::row::{Row, Spec};
use crate::runner::SplitMix64;

fn report(bench: &str, rows: Vec<Row>) -> BenchReport {
    let params = Spec::new("", "").with("quick", true).with("seed", 1).params;
    let machine = Machine::here();
    BenchReport { schema: SCHEMA, bench: bench.to_owned(), machine, params, rows, notes: Vec::new() }
}

fn row(name: &str, unit: &'static str, values: &[f64]) -> Row {
    Row::new(&Spec::new(name, unit), Ok(values.to_vec()))
}

/// A side of processes, each with these rows.
fn side(name: &str, processes: Vec<Vec<Row>>) -> Side {
    let reports = processes.into_iter().enumerate().map(|(number, rows)| {
        let place = format!("{name}, line {}", number + 1);
        Found { report: report("keys", rows), place }
    });
    Side { name: name.to_owned(), reports: reports.collect() }
}

/// A side of one row, with one value a process.
fn one(name: &str, unit: &'static str, values: impl IntoIterator<Item = f64>) -> Side {
    side("x", values.into_iter().map(|value| vec![row(name, unit, &[value; 3])]).collect())
}

fn compare(sides: &[Side]) -> Comparison {
    Comparison::between(sides, 5.0, Vec::new())
}

fn finding(a: &Side, b: &Side) -> Finding {
    let sides = [a, b].map(|side| Side {
        name: side.name.clone(),
        reports: side
            .reports
            .iter()
            .map(|it| Found { report: it.report.clone(), place: String::new() })
            .collect(),
    });
    let comparison = compare(&sides);
    comparison.workloads[0].rows[0].changes[0].as_ref().expect("both have values").finding
}

/// Ten processes within 1 % of each other.
fn about(middle: f64) -> impl Iterator<Item = f64> {
    (0..10).map(move |process| middle * (1.0 + f64::from(process) / 1000.0))
}

#[test]
fn rows_have_their_own_direction() {
    let (ns, rate) = (|value| one("x/y", "ns", about(value)), |value| one("x/y", "requests/s", about(value)));
    assert_eq!(finding(&ns(100.0), &ns(120.0)), Finding::Worse);
    assert_eq!(finding(&ns(120.0), &ns(100.0)), Finding::Better);
    assert_eq!(finding(&rate(100.0), &rate(120.0)), Finding::Better);
    assert_eq!(finding(&rate(120.0), &rate(100.0)), Finding::Worse);
    let share = |value| one("x/y", "%", about(value));
    assert_eq!(finding(&share(100.0), &share(120.0)), Finding::Changed);
}

#[test]
fn a_finding_needs_threshold_and_proof() {
    let ns = |values: Vec<f64>| one("x/y", "ns", values);
    let calm = || ns(about(100.0).collect());
    assert_eq!(finding(&calm(), &ns(about(103.0).collect())), Finding::Small);
    let wild = ns((0..10).map(|process| if process % 2 == 0 { 60.0 } else { 170.0 }).collect());
    assert_eq!(finding(&calm(), &wild), Finding::Nothing);
    assert_eq!(finding(&calm(), &ns(about(120.0).take(2).collect())), Finding::Few);
    assert_eq!(finding(&ns(vec![100.0]), &ns(vec![200.0])), Finding::Few);
    // Values that never vary need no test to be the same.
    assert_eq!(finding(&ns(vec![3.0; 2]), &ns(vec![3.0; 2])), Finding::Nothing);
}

#[test]
fn a_price_of_nothing_can_get_worse() {
    let counts = |value: f64| one("ipis/x", "IPIs", (0..10).map(move |_| value));
    assert_eq!(finding(&counts(0.0), &counts(3.0)), Finding::Worse);
    assert_eq!(finding(&counts(3.0), &counts(0.0)), Finding::Better);
    assert_eq!(finding(&counts(0.0), &counts(0.0)), Finding::Nothing);
    let comparison = compare(&[counts(0.0), counts(3.0)]);
    assert!(comparison.text().contains("+3.000 IPIs"), "{}", comparison.text());
}

#[test]
fn one_process_shows_rounds_and_finds_nothing() {
    let of = |value: f64| {
        side("x", vec![vec![row("x/y", "ns", &about(value).collect::<Vec<_>>()), row("x/z", "ns", &[1.0])]])
    };
    let comparison = compare(&[of(100.0), of(150.0)]);
    let row = &comparison.workloads[0].rows[0];
    assert_eq!((row.cells[0].processes, comparison.worse, comparison.undecided), (1, 0, 1));
    assert!(row.cells[0].low.is_some());
    let text = comparison.text();
    assert!(text.contains("--runs 6") && text.contains("+50.0% ?"), "{text}");
    assert_eq!(comparison.processes_needed, Some(needed(2)));
}

#[test]
fn needed_processes_are_those_that_find() {
    // Two of all ways to choose: 252 of five and five, 3432 of seven and seven.
    assert_eq!(needed(1), 5);
    assert_eq!(needed(17), 7);
    assert_eq!(needed(18), 8);
    assert_eq!(needed(900), 10);
}

#[test]
fn families_have_geometric_means() {
    let of = |x: f64, y: f64| {
        side("s", vec![vec![row("k/x", "ns", &[x]), row("k/y", "ns", &[y]), row("l/x", "ns", &[1.0])]])
    };
    let comparison = compare(&[of(10.0, 1000.0), of(20.0, 500.0), of(20.0, 2000.0)]);
    let [family] = &comparison.workloads[0].families[..] else { panic!("one kind has two rows") };
    let percents: Vec<f64> = family.percents.iter().map(|percent| percent.unwrap()).collect();
    assert!(percents[0].abs() < 1e-9 && (percents[1] - 100.0).abs() < 1e-9, "{percents:?}");
}

#[test]
fn rows_of_one_side_are_named() {
    let absent = Row::new(&Spec::new("k/b", "ns"), Err("no <clock>".to_owned()));
    let a =
        side("a", vec![vec![row("k/a", "ns", &[1.0]), row("k/b", "ns", &[1.0]), row("k/c", "ns", &[1.0])]]);
    let b = side("b", vec![vec![row("k/a", "us", &[1.0]), absent]]);
    let comparison = compare(&[a, b]);
    let rows = &comparison.workloads[0].rows;
    let reasons: Vec<_> = rows.iter().map(|row| row.cells[1].unavailable.as_deref()).collect();
    assert_eq!(reasons, [Some("in \"us\" there"), Some("no <clock>"), Some("no such row")]);
    assert!(rows.iter().all(|row| row.changes[0].is_none()));
    assert_eq!(comparison.lost.len(), 3, "{:?}", comparison.lost);
    assert_eq!(comparison.gate_failure().as_deref(), Some("3 lost"));
    let html = comparison.html();
    assert!(html.contains("no &lt;clock&gt;") && !html.contains("<clock>"), "{html}");
}

#[test]
fn what_a_side_lost_is_a_warning() {
    let of = |bench: &str, rows: Vec<Row>| Found { report: report(bench, rows), place: String::new() };
    let calm = || about(100.0).map(|value| vec![row("k/a", "ns", &[value])]);
    let whole = |name: &str| side(name, calm().collect());
    assert_eq!(compare(&[whole("a"), whole("b")]).gate_failure(), None);
    let mut a = whole("a");
    a.reports.push(of("poll", vec![row("p/a", "ns", &[1.0])]));
    let comparison = compare(&[a, whole("b")]);
    assert_eq!(comparison.lost, ["poll, all of it, in B"]);
    assert_eq!(comparison.gate_failure().as_deref(), Some("1 lost"));

    // A row that one process alone could measure is lost, and not undecided.
    let b = side("b", calm().enumerate().map(|(n, rows)| if n == 0 { rows } else { Vec::new() }).collect());
    let comparison = compare(&[whole("a"), b]);
    assert_eq!(comparison.lost, ["keys k/a in B: measured by 1 of 10 processes"]);
    assert_eq!(comparison.undecided, 0);

    let mut b = whole("b");
    b.reports[3].report.notes.push("WRONG ANSWER: 55 of 56".to_owned());
    assert_eq!(compare(&[whole("a"), b]).gate_failure().as_deref(), Some("1 wrong"));
    let beyond = [f64::MAX, f64::MIN].map(|value| one("x/y", "ns", [value; 3]));
    assert_eq!(compare(&beyond).gate_failure().as_deref(), Some("no row could be compared"));
}

/// Files of reports, and the messages about them.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn refused(&self, a: impl AsRef<[u8]>, b: impl AsRef<[u8]>) -> String {
        let paths = [self.write("a.json", a), self.write("b.json", b)];
        format!("{:#}", Comparison::of(&paths, 5.0, false).unwrap_err())
    }
}

fn good() -> Value {
    let row = row("x/y", "ns", &[1.0, 2.0]).at(&[90_000.0, 95_000.0]);
    serde_json::to_value(report("keys", vec![row])).unwrap()
}

fn changed(pointer: &str, value: Value) -> String {
    let mut report = good();
    *report.pointer_mut(pointer).unwrap() = value;
    format!("{report}\n")
}

#[test]
fn what_cannot_be_compared_is_refused_by_name() {
    let files = Files::new();
    for (b, named) in [
        (changed("/machine/cpu", json!("another")), "cpu"),
        (changed("/machine/kernel", json!("2.4")), "kernel"),
        (changed("/machine/cpus", json!(64)), "--across-machines"),
        (changed("/machine/profile", json!("other")), "profile"),
        (changed("/params/quick", json!(false)), "quick true, not false"),
        (changed("/bench", json!("poll")), "no workload is in two"),
        (changed("/schema", json!(2)), "line 1: schema 2"),
        (json!({"schema": 7, "of": "the future"}).to_string(), "line 1: schema 7"),
    ] {
        let said = files.refused(good().to_string(), &b);
        assert!(said.contains(named) && said.contains("b.json"), "{named}: {said}");
    }
    let paths = [
        files.write("a.json", good().to_string()),
        files.write("b.json", changed("/machine/cpus", json!(64))),
    ];
    let comparison = Comparison::of(&paths, 5.0, true).unwrap();
    assert!(comparison.notes.iter().any(|note| note.contains("cpus")), "{:?}", comparison.notes);
    files.write("b.json", changed("/params/seed", json!(9)));
    assert!(Comparison::of(&paths, 5.0, false).is_ok(), "the seed is that of the order");
}

#[test]
fn bad_reports_are_named_with_line_and_reason() {
    let files = Files::new();
    let line = good().to_string();
    let other = changed("/rows/0/values", json!([3.0, 4.0])).trim().to_owned();
    for (b, named) in [
        (String::new(), "holds no report"),
        ("\n\n".to_owned(), "holds no report"),
        (format!("{line}\n{}", &line[..line.len() / 2]), "line 2"),
        (format!("{line}\n[]\n"), "line 2"),
        (format!("{other}\n\n{other}"), "line 3 holds the report of"),
        (line.replace("[1.0,2.0]", "[1e999]"), "line 1"),
        (line.replace("[1.0,2.0]", "[NaN]"), "line 1"),
        (line.replace("[1.0,2.0]", "[null]"), "line 1"),
        (line.replace("\"values\":", "\"valves\":"), "values"),
        (line.replace("\"lower\"", "\"sideways\""), "sideways"),
        (line.replace("[90000.0,95000.0]", "[90000.0]"), "\"x/y\" has no pace for each value"),
        (line.replace("[90000.0,95000.0]", "[90000.0,0.0]"), "\"x/y\" has no pace for each value"),
        ("[".repeat(100_000), "line 1"),
        (line.replace("[1.0,2.0]", "[1.7e308,2.0]"), "beyond 1e100"),
        (changed("/rows/0/name", json!("x/".repeat(101))), "longer than 200 characters"),
        (changed("/rows/0/name", json!("x/a\nB  faked")), "than a line"),
        (changed("/machine/kernel", json!("6.1\u{1b}[2J")), "'\\u{1b}' in it"),
        (changed("/machine/rustc", json!("1\nB  faked")), "the machine's rustc has several lines"),
        (line.replace("[90000.0,95000.0]", "[1e-300,95000.0]"), "\"x/y\" has no pace for each value"),
        (changed("/rows", json!([good()["rows"][0], good()["rows"][0]])), "two rows are called \"x/y\""),
    ] {
        let said = files.refused(&line, &b);
        assert!(said.contains(named) && said.contains("b.json"), "{named}: {said}");
    }
    assert!(files.refused(&line, b"\xff\xfe").contains("b.json"));
    for b in [&line, &format!("{other}\n{line}")] {
        let said = files.refused(&line, b);
        assert!(said.contains("holds the report of") && said.contains("a.json"), "a copy: {said}");
    }
    let missing = [files.write("a.json", &line), files.0.path().join("nowhere")];
    let said = format!("{:#}", Comparison::of(&missing, 5.0, false).unwrap_err());
    assert!(said.contains("nowhere"), "{said}");
}

#[test]
fn a_directory_is_a_side_of_processes() {
    let files = Files::new();
    for (side, other) in [("a", 2.0), ("b", 3.0)] {
        fs::create_dir(files.0.path().join(side)).unwrap();
        for process in 0..3 {
            let text = changed("/rows/0/values", json!([f64::from(process), other]));
            files.write(&format!("{side}/{process}.json"), text);
        }
    }
    files.write("a/notes.txt", "of somebody");
    let paths = ["a", "b"].map(|side| files.0.path().join(side));
    let comparison = Comparison::of(&paths, 5.0, false).unwrap();
    assert_eq!(comparison.workloads[0].rows[0].cells[1].processes, 3);
    files.write("a/other.json", "{\"not\": \"ours\"}");
    let said = format!("{:#}", Comparison::of(&paths, 5.0, false).unwrap_err());
    assert!(said.contains("other.json"), "{said}");
    // As a pipe would be, for which to open means to wait.
    fs::create_dir(files.0.path().join("a/odd.json")).unwrap();
    let said = format!("{:#}", Comparison::of(&paths, 5.0, false).unwrap_err());
    assert!(said.contains("odd.json is no file"), "{said}");
}

#[test]
fn huge_numbers_do_no_harm() {
    let huge = |value: f64| side("h", (0..10).map(|_| vec![row("x/y", "ns", &[value, -value])]).collect());
    for (a, b) in [(f64::MAX, 1.0), (f64::MAX, f64::MIN), (f64::MIN_POSITIVE, f64::MAX), (1e-320, -0.0)] {
        let of = |value| one("x/y", "ns", [value; 10]);
        for sides in [[of(a), of(b)], [of(b), of(a)], [huge(a), of(b)]] {
            let comparison = compare(&sides);
            let json = serde_json::to_string(&comparison).unwrap();
            assert!(!comparison.text().is_empty() && !comparison.html().is_empty() && !json.is_empty());
        }
    }
}

/// Any bytes, and any report with a value where another was: compared, or refused by name. It runs
/// for `DORMOUSE_STRESS_SECONDS` seconds.
#[test]
fn any_report_is_compared_or_refused() {
    let seconds = std::env::var("DORMOUSE_STRESS_SECONDS").map_or(1, |text| text.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let files = Files::new();
    let mut dice = SplitMix64(seconds);
    let mut below = move |bound: usize| (dice.next() % bound as u64) as usize;
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(u64::MAX),
        json!(1e308),
        json!(-0.0),
        json!(""),
        json!([]),
        json!({}),
        json!([1e-308, 1e308]),
        json!("<script>alert(1)</script>"),
        json!("\u{202e}\u{0}/{}"),
    ];
    let (mut compared, mut refused) = (0, 0);
    // A busy machine makes a few in that time.
    while Instant::now() < until || compared.min(refused) < 10 {
        let mut report = good();
        for _ in 0..below(3) {
            let mut places = Vec::new();
            pointers(&report, &mut String::new(), &mut places);
            let place = &places[below(places.len())];
            *report.pointer_mut(place).unwrap() = values[below(values.len())].clone();
        }
        let mut bytes = report.to_string().into_bytes();
        for _ in 0..below(3).saturating_sub(1) {
            let at = below(bytes.len());
            bytes[at] = below(256) as u8;
        }
        let paths = [files.write("a.json", good().to_string()), files.write("b.json", &bytes)];
        match Comparison::of(&paths, 5.0, below(2) == 0) {
            Ok(comparison) => {
                let (text, html) = (comparison.text(), comparison.html());
                assert!(!text.contains(|it: char| it.is_control() && it != '\n'), "{text:?}");
                assert!(!html.contains("<script>alert"), "{html}");
                compared += 1;
            }
            Err(error) => {
                let error = format!("{error:#}");
                assert!(error.contains("b.json") || error.contains("no workload is in two"), "{error}");
                refused += 1;
            }
        }
    }
}

/// Where each value of a document stands.
fn pointers(value: &Value, at: &mut String, places: &mut Vec<String>) {
    let length = at.len();
    let parts: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, field)| (name.clone(), field)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(n, item)| (n.to_string(), item)).collect(),
        _ => Vec::new(),
    };
    for (name, part) in parts {
        at.push('/');
        at.push_str(&name);
        places.push(at.clone());
        pointers(part, at, places);
        at.truncate(length);
    }
}

/// How often two sides are compared that differ by what is known.
fn rounds() -> usize {
    short_or_long(20, 100)
}

#[test]
fn the_same_build_shows_no_regression() {
    let mut machines = Machines::new(18);
    let alarms = (0..rounds()).filter(|_| compare(&[machines.run(1.0), machines.run(1.0)]).worse > 0).count();
    // The seed is fixed. Half of the risk is for changes that are better, and a change must exceed
    // the threshold: at most half an alarm of a hundred is expected, and of twenty none.
    assert!(alarms as f64 <= RISK * rounds() as f64, "{alarms} false alarms");
}

#[test]
fn ten_percent_more_work_is_always_found() {
    let mut machines = Machines::new(19);
    for _ in 0..rounds() / 5 {
        let comparison = compare(&[machines.run(1.0), machines.run(1.1)]);
        assert!(comparison.worse > 40, "{} of 60 rows", comparison.worse);
    }
}

#[test]
fn the_pace_of_the_machine_is_no_change() {
    let mut machines = Machines::new(20);
    let mut run = |slower: f64| side("paced", (0..15).map(|_| machines.paced(slower)).collect());
    let is_found = (0..rounds() / 5).all(|_| compare(&[run(1.0), run(1.1)]).worse > 0);
    assert!(is_found, "10 % more work is found");
    let alarms = (0..rounds()).filter(|_| compare(&[run(1.0), run(1.0)]).worse > 0).count();
    assert!(alarms as f64 <= RISK * rounds() as f64, "{alarms} false alarms");
}

#[test]
fn a_slower_machine_is_no_slower_build() {
    // All of one side ran while the machine was 15 % slower, and of one side its pace hardly
    // varies: how much the rows do with it is known badly.
    let mut machines = Machines::new(21);
    let mut side = |slower: f64| {
        let mut process = || {
            let rows = (0..20).map(|number| {
                let pace = slower * (1.0 + 0.02 * machines.normal());
                let value = 10.0 * pace.powf([0.0, 0.5, 1.0][number % 3]) * (1.0 + 0.04 * machines.normal());
                row(&format!("kind/{number}"), "ns", &[value; 3]).at(&[1e5 * pace; 3])
            });
            rows.collect()
        };
        self::side("x", (0..10).map(|_| process()).collect())
    };
    let alarms = (0..rounds()).filter(|_| {
        let comparison = compare(&[side(1.0), side(1.15)]);
        comparison.worse + comparison.better > 0
    });
    let alarms = alarms.count();
    assert!(alarms as f64 <= 2.0 * RISK * rounds() as f64, "{alarms} false alarms");
}

#[test]
fn paces_that_differ_are_noted() {
    let files = Files::new();
    let paths = ["a.json", "b.json"].map(|name| {
        let pace = if name == "b.json" { json!([110_000.0, 116_000.0]) } else { json!([90_000.0, 95_000.0]) };
        files.write(name, changed("/rows/0/pace", pace))
    });
    let noted = |across: bool| Comparison::of(&paths, 5.0, across).unwrap().notes;
    assert!(noted(false).iter().any(|note| note.contains("b.json: the machine was 22 % slower")));
    // Of another kernel it is no pace, but another machine.
    let mut other = good();
    other["rows"][0]["pace"] = json!([200_000.0, 210_000.0]);
    other["machine"]["kernel"] = json!("2.4");
    files.write("b.json", other.to_string());
    let notes = noted(true);
    assert!(notes.iter().any(|note| note.contains("kernel")), "{notes:?}");
    assert!(!notes.iter().any(|note| note.contains("slower")), "{notes:?}");
}

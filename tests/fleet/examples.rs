//! The examples that start whole hosts do what they say, and leave nothing behind.

use std::path::Path;
use std::process::Command;

use super::daemon::{cached, found};
use crate::support::{DORMOUSE, finish, skip};

/// The output of an example.
#[track_caller]
fn output_of(example: &str, variable: Option<(&str, &Path)>) -> String {
    let script =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")).join(example).join("run.sh");
    let mut command = Command::new(script);
    command.env("DORMOUSE", DORMOUSE).envs(variable);
    let run = finish(command);
    assert_eq!(run.code, Some(0), "{run:?}");
    run.stdout
}

/// A line that begins with a route, or has it as a label, and ends in a number that is not 0.
fn has_route(output: &str, route: &str) -> bool {
    output.lines().filter(|line| line.contains(route)).any(|line| {
        line.split([' ', '@']).filter_map(|word| word.parse::<f64>().ok()).any(|number| number > 0.0)
    })
}

#[test]
fn the_host_with_prometheus_answers() {
    if found("prometheus").is_none() || found("promtool").is_none() {
        return skip("prometheus is not installed");
    }
    let output = output_of("prometheus", None);
    assert!(has_route(&output, "GET /blend"), "{output}");
}

#[test]
fn the_host_with_the_collector_answers() {
    let Some(collector) = cached("otelcol-0.155.0/otelcol") else {
        return skip("the Collector is not built; cargo xtask fleet does it");
    };
    let output = output_of("collector", Some(("OTELCOL", &collector)));
    assert!(has_route(&output, "GET /blend"), "{output}");
}

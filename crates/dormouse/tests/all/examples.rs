//! The examples do what they say, and end by themselves. On x86-64 alone: a virtual machine has no
//! program beside that of the tests.
#![cfg(target_arch = "x86_64")]
#![expect(clippy::float_cmp, reason = "they are whole numbers, written and read")]

use std::path::PathBuf;
use std::process::Command;

/// The output of an example, which `cargo test` has built beside this program.
fn output_of(name: &str) -> String {
    let tests = std::env::current_exe().unwrap();
    let program: PathBuf = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    let output = Command::new(&program).output().unwrap_or_else(|why| {
        panic!("{}: {why}; build it: cargo build --examples --features axum,tower", program.display())
    });
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The numbers in the line that begins so.
fn numbers(output: &str, line: &str) -> Vec<u64> {
    let found = output.lines().find_map(|it| it.strip_prefix(line));
    let rest = found.unwrap_or_else(|| panic!("no line {line:?} in {output}"));
    rest.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// The value of a metric of a group.
fn metric(output: &str, name: &str, group: &str) -> f64 {
    let outcome = if name == "dormouse_requests_total" { ",outcome=\"completed\"" } else { "" };
    let line = format!("{name}{{group=\"{group}\"{outcome}}} ");
    let found = output.lines().find_map(|it| it.strip_prefix(&line)?.parse().ok());
    found.unwrap_or_else(|| panic!("no {line:?} in {output}"))
}

#[cfg(all(feature = "axum", feature = "tower"))]
#[test]
fn axum_example_tells_metrics_and_a_profile() {
    let output = output_of("axum");
    let [menu, orders] = ["/menu", "/orders/{cups}"].map(|group| {
        let of = |name| metric(&output, name, group);
        assert_eq!(of("dormouse_request_duration_seconds_count"), of("dormouse_requests_total"));
        (of("dormouse_requests_total") as u64, of("dormouse_cpu_time_seconds_total"))
    });
    assert_eq!((menu.0, orders.0), (8, 4), "{output}");
    assert!(menu.1 > 0.0 && orders.1 > menu.1, "{output}");
    assert!(numbers(&output, "a profile of ")[0] > 100, "{output}");
}

#[test]
fn threads_of_the_example_are_the_jobs() {
    let output = output_of("threads");
    assert_eq!(numbers(&output, "17984 primes below"), [200_002, 168, 1000], "{output}");
    assert!(output.contains("over its budget of 5 ms: true"), "{output}");
    assert_eq!(metric(&output, "dormouse_tasks_finished_total", "count primes") as u64, 5, "{output}");
    assert!(metric(&output, "dormouse_cpu_time_seconds_total", "count primes") > 0.005, "{output}");
}

#[test]
fn fibers_of_one_group_read_no_counter() {
    let output = output_of("fibers");
    assert_eq!(numbers(&output, "one group: "), [37, 2], "{output}");
    assert_eq!(numbers(&output, "two groups in turn: "), [11, 11], "{output}");
    assert!(output.contains(" in 41 stretches of 9 fibers"), "{output}");
    assert!(output.contains(" in 5 stretches of 1 fibers"), "{output}");
}

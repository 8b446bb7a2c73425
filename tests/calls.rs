//! `dormouse stat --calls` on a tea house that serves requests.

use crate::support::{Service, run};

#[test]
fn calls_stand_with_the_route_that_asked() {
    let service = Service::busy();
    let args = ["stat", &service.target(), "--calls", "--for", "400ms"];
    let text = run(args).stdout;
    let head = text.lines().find(|line| line.ends_with("PEER")).expect("a table of calls");
    let columns: Vec<&str> = head.split_whitespace().collect();
    assert_eq!(
        columns,
        ["GROUP", "KIND", "CALLS", "ERRORS", "CANCELLED", "TIME", "P50", "P99", "MAX", "PEER"]
    );
    assert!(!text.contains("DELAY P99"), "times of tasks were not asked for: {text}");
    let total = run(["--json"].into_iter().chain(args)).json();
    let calls = total["calls"].as_array().expect("calls");
    let peer = "SELECT name, price_pence, stock, NULL FROM teas ORDER BY name";
    let menu = calls.iter().find(|call| call["group"] == "GET /menu" && call["peer"] == peer);
    let menu = menu.unwrap_or_else(|| panic!("{calls:?}"));
    assert_eq!((&menu["kind"], &menu["errors"], &menu["cancelled"]), (&"sql".into(), &0.into(), &0.into()));
    assert_eq!(menu["calls"], menu["latency"]["count"]);
    assert!(menu["latency"]["p99_ns"].as_u64() >= menu["latency"]["p50_ns"].as_u64(), "{menu}");
    // The values of orders are in no name.
    assert!(calls.iter().all(|call| !call["peer"].to_string().contains("VALUES (?,")), "{calls:?}");
    assert!(
        total["groups"].as_array().is_some_and(|all| all.iter().all(|group| group.get("waits").is_none()))
    );
}

//! The tea house as dormouse sees it: groups that are charged, probes that record, a key that is
//! switched, a log that wakes up. A program of its own, because keys belong to the process.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    time::Duration,
};

use crate::acceptance::house::House;
use dormouse::{Event, Group, keys::Selector};
use dormouse_teaparty::{
    Stop,
    load::{self, Limits, Report},
};

/// Every route, several times.
fn visit(house: &House) -> Report {
    let limits = Limits { rate: 1000, requests: 64, duration: Duration::from_secs(60), clients: 4 };
    let report = load::run(house.addr, &limits, &Stop::new()).unwrap();
    assert_eq!(report.errors, 0, "{:?}", report.first_error);
    report
}

#[test]
fn every_route_is_charged_to_its_group() {
    let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
    let report = visit(&House::open());
    for route in &report.routes {
        let stat = Group::new(&route.route).read();
        assert!(!stat.cpu.is_zero(), "{stat:?}");
        assert!(stat.finished >= route.served, "{stat:?}");
    }
    for background in ["connections", "restock", "housekeeping"] {
        assert!(Group::new(background).read().started > 0, "{background}");
    }
}

#[test]
fn probes_record_in_their_routes_group_everywhere() {
    let house = House::open();
    let mut trace =
        dormouse::trace("menu.read,order.*,blend.*,brochure.packed,steep.*,connection.closed").unwrap();
    visit(&house);
    drop(house);
    let mut seen = BTreeMap::new();
    trace.poll(|probe, _, record| {
        seen.entry(probe.name()).or_insert_with(Vec::new).push(record.group);
    });
    for (probe, group) in [
        ("menu.read", "GET /menu"),
        ("order.placed", "POST /orders"),
        ("order.read", "GET /orders/{id}"),
        ("blend.search", "GET /blend"),
        ("blend.found", "GET /blend"),
        ("brochure.packed", "GET /brochure"),
        ("steep.begin", "GET /steep"),
        ("steep.end", "GET /steep"),
        ("connection.closed", "connections"),
    ] {
        let groups = seen.get(probe).unwrap_or_else(|| panic!("{probe} recorded nothing"));
        let expected = Group::new(group).id();
        assert!(groups.iter().all(|&group| group == expected), "{probe}: {groups:?}, not all {expected}");
    }
}

#[test]
fn only_requests_over_their_cpu_budget_are_recorded() {
    for (budget, expected) in [(Duration::ZERO, true), (Duration::from_secs(3600), false)] {
        let house = House::open_with(move |server| server.with_cpu_budget(budget));
        let mut trace = dormouse::trace("dormouse.over_budget").unwrap();
        let report = visit(&house);
        drop(house);
        let mut seen = BTreeMap::new();
        trace.poll(|_, _, record| *seen.entry(record.group).or_insert(0) += 1);
        for route in &report.routes {
            // Each request once, although those that are offloaded use their time in two places.
            let records = seen.get(&Group::new(&route.route).id()).copied().unwrap_or(0);
            assert_eq!(records, if expected { route.served } else { 0 }, "{}", route.route);
        }
    }
}

#[test]
fn the_menu_has_notes_while_switched_on() {
    let house = House::open();
    let has_notes = || house.get("/menu").json()[0].get("notes").is_some();
    let fancy = Selector::parse("menu.fancy").unwrap().keys();
    assert_eq!(fancy.len(), 1);
    assert!(!has_notes());
    let lease = fancy[0].key.acquire().unwrap();
    assert!(has_notes());
    lease.release().unwrap();
    assert!(!has_notes());
}

#[test]
fn every_route_has_tracing_callsites() {
    for route in ["menu", "orders", "blend", "brochure", "steep"] {
        let callsites = Selector::parse(&format!("dormouse_teaparty::routes::{route}*")).unwrap().keys();
        assert!(!callsites.is_empty(), "{route}");
    }
}

/// The whole way: the program's agent, a callsite woken over its socket, the log on standard error.
#[test]
fn a_woken_callsite_shows_in_the_log() {
    let runtime = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_dormouse-teaparty"))
        .args(["--log", "--exit-with-parent", "--load", "100", "--for", "1h"])
        .env("DORMOUSE_RUNTIME_DIR", runtime.path())
        .env_remove("RUST_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(program.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = stderr.next().unwrap();
    let agent = UnixStream::connect(first.strip_prefix("dormouse listens on ").unwrap()).unwrap();
    let mut answers = BufReader::new(&agent).lines();
    for request in [
        r#"{"v":1,"id":1,"op":"hello","client":"test"}"#,
        r#"{"v":1,"id":2,"op":"on","glob":"dormouse_teaparty::routes::menu:*"}"#,
    ] {
        writeln!(&agent, "{request}").unwrap();
        let answer = answers.next().unwrap().unwrap();
        assert!(answer.contains(r#""ok""#), "{answer}");
    }
    // Of a load that asks for everything, only what was woken is told.
    let told = stderr.next().unwrap();
    assert!(told.contains("menu read"), "{told}");
    drop((answers, program.stdin.take()));
    assert!(stderr.all(|line| line.contains("menu read")));
    assert!(program.wait().unwrap().success());
}

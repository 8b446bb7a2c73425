//! The load generator against a real house: its bounds, its counts, and what it says of a house
//! that is shut.

use std::time::{Duration, Instant};

use dormouse_teaparty::{
    Stop,
    load::{self, Limits},
};

use super::house::House;

#[test]
fn a_load_is_served_in_its_mix() {
    let house = House::open();
    let limits = Limits { rate: 2000, requests: 160, duration: Duration::from_secs(60), clients: 4 };
    let report = load::run(house.addr, &limits, &Stop::new()).unwrap();
    assert_eq!((report.served, report.errors), (160, 0), "{:?}", report.first_error);
    let routes: Vec<_> = report.routes.iter().map(|route| (&*route.route, route.served)).collect();
    assert_eq!(
        routes,
        [
            ("GET /menu", 60),
            ("POST /orders", 20),
            ("GET /orders/{id}", 20),
            ("GET /blend", 20),
            ("GET /brochure", 20),
            ("GET /steep", 20),
        ]
    );
    assert!(report.latency.max_us >= report.latency.p50_us && report.latency.p50_us > 0);
    // It takes five milliseconds to steep.
    assert!(report.routes[5].latency.p50_us >= 5000);
}

#[test]
fn the_rate_is_never_exceeded() {
    let house = House::open();
    let limits = Limits { rate: 100, requests: 21, duration: Duration::from_secs(60), clients: 8 };
    let start = Instant::now();
    let report = load::run(house.addr, &limits, &Stop::new()).unwrap();
    assert_eq!(report.served, 21);
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}

#[test]
fn the_time_ends_it() {
    let house = House::open();
    let limits = Limits { rate: 20, requests: 1_000_000, duration: Duration::from_millis(300), clients: 2 };
    let report = load::run(house.addr, &limits, &Stop::new()).unwrap();
    // Due at 0, 50, … 250 ms; on a busy machine the last ones may come too late to be sent.
    assert!((1..=6).contains(&report.served), "{report}");
    assert_eq!(report.errors, 0);
}

#[test]
fn a_pulled_cord_ends_it() {
    let house = House::open();
    let limits = Limits { rate: 10, duration: Duration::from_secs(3600), ..Limits::default() };
    let stop = Stop::new();
    stop.pull();
    assert_eq!(load::run(house.addr, &limits, &stop).unwrap().served, 0);
}

#[test]
fn a_shut_house_is_reported_at_once() {
    let shut = "127.0.0.1:1".parse().unwrap();
    let limits = Limits { rate: 1000, requests: 5, ..Limits::default() };
    let report = load::run(shut, &limits, &Stop::new()).unwrap();
    assert_eq!((report.served, report.errors), (0, 5));
    let first = report.first_error.unwrap();
    assert!(first.contains("cannot connect to 127.0.0.1:1"), "{first}");
}

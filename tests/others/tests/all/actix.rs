//! The web service on actix-web.

use crate::lines::Lines;
use crate::support::{Service, row};

#[test]
fn routes_have_their_time() {
    let mut service = Service::start("actix", &[]);
    let url = |path: &str| format!("http://{}{path}", service.address);
    let agent = ureq::agent();
    for _ in 0..8 {
        let answer = agent.get(url("/compute")).call().and_then(|mut it| it.body_mut().read_to_string());
        assert_eq!(answer.expect("an answer"), "computed");
        let missing = agent.get(url("/missing")).call();
        assert!(matches!(missing, Err(ureq::Error::StatusCode(404))), "{missing:?}");
    }
    let (shown, _) = service.charged();
    for (route, requests) in [("/compute", 8), ("unmatched", 8)] {
        let row = row(&shown, route);
        assert_eq!((row.requests, row.alive), (requests, 0), "{route}");
    }
}

#[test]
fn streams_are_charged_while_they_last() {
    let mut service = Service::start("actix", &[]);
    let mut guests: Vec<_> = (0..3).map(|_| Lines::get(service.address, "/events")).collect();
    for guest in &mut guests {
        (0..5).for_each(|_| guest.skip_to("data:"));
    }
    let (shown, _) = service.charged();
    let events = row(&shown, "/events");
    let (streams, waits) = (events.long_lived.expect("a count"), events.waits.as_ref().expect("times"));
    assert_eq!((events.requests, events.alive, streams.tasks), (0, 3, 3));
    assert!(
        waits.streams.is_some_and(|of| of.frames >= 15) && waits.requests.buckets.is_empty(),
        "{waits:?}"
    );
    drop(guests);
    service.await_alive("/events", 0);
    assert_eq!(row(&service.shown(), "/events").requests, 0);
}

#[test]
fn hang_ups_and_panics_are_requests() {
    let mut service = Service::start("actix", &[]);
    for _ in 0..3 {
        let hangs = Lines::get(service.address, "/never");
        service.await_alive("/never", 1);
        drop(hangs);
        service.await_alive("/never", 0);
        assert_eq!(Lines::get(service.address, "/fail").line(), "");
    }
    let shown = service.shown();
    for route in ["/never", "/fail"] {
        let row = row(&shown, route);
        assert_eq!((row.requests, row.alive), (3, 0), "{route}");
    }
}

//! Sets of events are never given back, so strangers may use up half of them. A separate program,
//! because they stay used up.

use dormouse_events::pmu::CountingPmu;
use dormouse_events::{Counting, Event, Mode};

static PMU: CountingPmu = CountingPmu::new();

#[test]
fn half_of_all_sets_are_the_services() {
    let events: Vec<Event> = (0..11).map(|n| PMU.event("happenings", n)).collect();
    let set = |bits: usize| -> Vec<Event> {
        (0..events.len()).filter(|n| bits & 1 << n != 0).map(|n| events[n]).collect()
    };
    let late = PMU.event("late", 11);
    assert!(Counting::leaves_room(&[late]));
    let mut last = None;
    for bits in 1..1 << events.len() {
        assert!(Counting::leaves_room(&set(bits)));
        // The one before it ends first, so that each is counted by itself.
        drop(last.take());
        last = Some(Counting::everywhere(&set(bits), Mode::GroupExact).unwrap());
    }
    drop(last);
    drop(Counting::everywhere(&[late], Mode::GroupExact).unwrap());
    let new = [late, events[0]];
    assert!(!Counting::leaves_room(&new), "for who asks first");
    assert!(Counting::leaves_room(&set(1)) && Counting::leaves_room(&[late]), "they are there already");
    drop(Counting::everywhere(&new, Mode::GroupExact).unwrap());
}

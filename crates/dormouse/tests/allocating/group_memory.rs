//! The memory of groups. Columns for events are never given back, so each test is a child.

use dormouse::{Counter, Event, Group};
use dormouse_testkit::in_child;

const GROUPS: usize = 1000;

/// Bytes that this thread has allocated and not given back.
fn live() -> i64 {
    let of = |event: Event| {
        let mut value = [0];
        event.pmu().read(&[event.number()], &mut value);
        value[0].cast_signed()
    };
    of(Event::ALLOC_BYTES) - of(Event::FREE_BYTES)
}

/// Bytes that a group takes once a task of it has counted `events`.
fn bytes_of_each(events: &[Event]) -> i64 {
    let _counting = dormouse::start_counting(events).unwrap();
    let before = live();
    let groups: Vec<Group> = (0..GROUPS).map(|n| Group::new(&format!("GET /some/route/{n}"))).collect();
    for group in &groups {
        group.scope(|| ());
        assert_eq!((group.read().finished, group.read_counts().len()), (1, events.len()));
    }
    (live() - before) / GROUPS as i64
}

#[test]
fn a_group_takes_four_kilobytes_at_most() {
    in_child(|| {
        let events = [Event::TASK_CLOCK, Event::PAGE_FAULTS, Event::ALLOC_BYTES, Event::ALLOC_COUNT];
        let each = bytes_of_each(&events);
        // At 2.8 kB. The allocator's own words beside each piece are not seen here: there are four.
        assert!((1..=3900).contains(&each), "{each} bytes for each of {GROUPS} groups");
    });
}

#[test]
fn fifteen_events_take_five_kilobytes_more() {
    static COUNTERS: [Counter; 13] = [const { Counter::new("of the test") }; 13];
    in_child(|| {
        let own = COUNTERS.iter().map(|counter| counter.event().unwrap());
        let events: Vec<Event> = [Event::TASK_CLOCK, Event::ALLOC_BYTES].into_iter().chain(own).collect();
        assert_eq!(events.len(), 15);
        // Allocations are seen while they are counted.
        let _seen = dormouse::start_counting(&events[..2]).unwrap();
        let few = bytes_of_each(&events[..14]);
        assert!((1..=3900).contains(&few), "{few} bytes for each of {GROUPS} groups");
        // The fifteenth has its columns in a piece of memory of their own, which groups that are
        // there get, too.
        let before = live();
        let _counting = dormouse::start_counting(&events).unwrap();
        let more = (live() - before) / GROUPS as i64;
        assert!((5_000..=5_500).contains(&more), "{more} bytes for each of {GROUPS} groups");
    });
}

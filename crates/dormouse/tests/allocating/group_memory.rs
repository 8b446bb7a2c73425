//! The memory of groups.

use dormouse::{Event, Group};

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

#[test]
fn a_group_takes_four_kilobytes_at_most() {
    let events = [Event::TASK_CLOCK, Event::PAGE_FAULTS, Event::ALLOC_BYTES, Event::ALLOC_COUNT];
    let _counting = dormouse::start_counting(&events).unwrap();
    let before = live();
    let groups: Vec<Group> = (0..GROUPS).map(|n| Group::new(&format!("GET /some/route/{n}"))).collect();
    for group in &groups {
        group.scope(|| ());
        assert_eq!((group.read().finished, group.read_counts().len()), (1, events.len()));
    }
    let each = (live() - before) / GROUPS as i64;
    // At 2.8 kB. The allocator's own words beside each piece are not seen here: there are four.
    assert!((1..=3900).contains(&each), "{each} bytes for each of {GROUPS} groups");
}

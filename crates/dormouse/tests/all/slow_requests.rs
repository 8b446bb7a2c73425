//! Requests that end in a crowd: those that a rule watches find room.
#![cfg(not(dormouse_fallback))]

use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use dormouse::Group;
use dormouse_testkit::eventually;

use crate::triggers::{add, file_of, row, with_directory};

/// More than a step of the lookout can be given.
const CROWD: usize = 1000;

/// Requests that end together after more than 50 ms: many of one group, then one of another.
fn crowd(many: Group, one: Option<Group>) {
    let groups = std::iter::repeat_n(many, CROWD).chain(one);
    let tasks: Vec<_> = groups
        .map(|group| {
            let mut task = Box::pin(group.instrument(std::future::pending::<()>()));
            assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            task
        })
        .collect();
    thread::sleep(Duration::from_millis(60));
    drop(tasks);
}

#[test]
fn groups_of_no_rule_take_no_room() {
    with_directory(|_| {
        let orders = Group::new("POST /orders");
        let number = add("request>50ms in POST *");
        let is_missed =
            || row(number).why_not.contains(" slow requests were missed, perhaps of these groups");
        // A group that was seen has no room in the list any more, so each crowd is of a new one.
        let exports = (0..100).map(|number| Group::new(&format!("GET /export/{number}")));
        let last = exports.inspect(|export| crowd(*export, None)).find(|_| is_missed()).unwrap();
        assert_eq!(row(number).fired, 0);
        // The list may still be full of those that were missed.
        eventually(|| {
            crowd(last, Some(orders));
            row(number).fired > 0
        });
        let (fired, _) = file_of(number);
        assert!(fired.seen.unwrap().ends_with(" of POST /orders"));
    });
}

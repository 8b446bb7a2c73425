//! A thread that waits for work is told apart from a poll that sleeps.

use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;

use dormouse::Group;
use dormouse_protocol::{StallsRow, WaitsBegun, WaitsRequest};
use dormouse_testkit::{eventually, in_child};

use super::shares::is_counted;
use crate::waits::{Client, init};

/// Once it has slept for a while, as the agent shows it.
fn stalls_of(client: &mut Client, group: Group) -> StallsRow {
    let mut row = StallsRow::default();
    eventually(|| {
        let stalls = client.row(group).and_then(|waits| waits.stalls);
        row = stalls.map_or_else(StallsRow::default, |stalls| *stalls);
        row.asleep_ns > 100_000_000
    });
    row
}

/// In `futex`, as far as the time is known by call.
fn in_futex(within: &[(std::borrow::Cow<'static, str>, u64)]) -> u64 {
    within.iter().find(|(call, _)| call == "futex").map_or(0, |(_, ns)| *ns)
}

#[test]
fn a_thread_without_work_is_by_hand() {
    in_child(|| {
        if !is_counted() {
            return;
        }
        let mut client = Client::connect(&init());
        let begun: WaitsBegun = client.ask(WaitsRequest { stalls: true, ..WaitsRequest::default() }).unwrap();
        assert!(begun.stalls);
        let names = ["rows", "row", "GET /rows", "GET /part", "GET /carried"];
        let [idle, nested, polled, part, carried] = names.map(Group::new);
        let (mut senders, mut threads) = (Vec::new(), Vec::new());
        let mut queue = || {
            let (sender, queue) = mpsc::channel::<()>();
            senders.push(sender);
            move || assert!(queue.recv().is_err(), "nobody sends work")
        };
        // A pool's thread, one that has a scope around its wait, one that works for a request, a
        // poll, and a scope within a poll.
        let wait = queue();
        threads.push(idle.spawn_thread(wait).unwrap());
        let wait = queue();
        threads.push(thread::spawn(move || idle.scope(|| nested.scope(wait))));
        let (wait, request) = (queue(), carried.scope(dormouse::carry));
        threads.push(Group::new("pool").spawn_thread(move || request.run(wait)).unwrap());
        for (group, inner) in [(polled, None), (polled, Some(part))] {
            let wait = queue();
            threads.push(thread::spawn(move || {
                let waits = async { inner.map_or_else(&wait, |inner| inner.scope(&wait)) };
                let poll = pin!(group.instrument(waits));
                assert!(poll.poll(&mut Context::from_waker(Waker::noop())).is_ready());
            }));
        }
        for group in [idle, nested] {
            let row = stalls_of(&mut client, group);
            assert!(in_futex(&row.by_hand) > row.asleep_ns / 2, "{row:?}");
            assert!(row.idle_notice("rows", row.asleep_ns).is_some(), "{row:?}");
        }
        for group in [polled, part, carried] {
            let row = stalls_of(&mut client, group);
            assert_eq!(row.by_hand, [], "{row:?}");
            assert!(in_futex(&row.within) > row.asleep_ns / 2, "{row:?}");
        }
        drop(senders);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

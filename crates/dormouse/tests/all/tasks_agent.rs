//! The tasks that are, as a client of the agent reads them, part by part. Each test is a child:
//! times are taken in the whole process.
#![cfg(target_os = "linux")]

use std::collections::HashSet;
use std::future::{pending, poll_fn};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use dormouse::{Group, Instrumented};
use dormouse_protocol::{
    HelloRequest, Op, PROTOCOL, PlacesPart, PlacesRequest, Request, Response, TaskGroup, TaskRow, TasksPart,
    TasksRequest, WaitsBegun, WaitsRequest, WakeTasksRequest, WireTaskState, WokenTasks,
};
use dormouse_testkit::{HANG, eventually, in_child};
use dormouse_waits::Waiting;

pub(crate) struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let mut client = Self(BufReader::new(stream));
        let hello: serde_json::Value = client.ask(HelloRequest { client: "a test".into(), notices: false });
        assert!(hello["ops"].as_array().unwrap().iter().any(|op| op == "tasks"), "{hello}");
        client
    }

    pub(crate) fn ask<T: serde::de::DeserializeOwned>(&mut self, request: impl Into<Op>) -> T {
        let request = serde_json::to_string(&Request { v: PROTOCOL, id: 1, op: request.into() }).unwrap();
        writeln!(self.0.get_mut(), "{request}").unwrap();
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        let answer: Response<T> = serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{e}: {answer}"));
        answer.ok.unwrap_or_else(|| panic!("{:?}", answer.error))
    }

    fn part(&mut self, from: u64) -> TasksPart {
        self.ask(TasksRequest { from })
    }

    /// All tasks, the groups before and after, and the number of parts.
    fn list(&mut self) -> (Vec<TaskRow>, [Vec<TaskGroup>; 2], usize) {
        let (mut tasks, mut from, mut parts) = (Vec::new(), 0, 0);
        let mut before = None;
        loop {
            let part = self.part(from);
            parts += 1;
            before.get_or_insert_with(|| part.groups.clone());
            tasks.extend(part.tasks.rows().expect("equal columns"));
            match part.next {
                Some(next) => {
                    assert!(next > from);
                    assert!(from == 0 || part.groups.is_empty());
                    from = next;
                }
                None => return (tasks, [before.unwrap(), part.groups], parts),
            }
        }
    }
}

/// A client of this process's agent, in a directory of its own.
pub(crate) fn client() -> Client {
    let place = tempfile::tempdir().unwrap().keep();
    // SAFETY: no other thread of this child reads the environment.
    unsafe { std::env::set_var("DORMOUSE_RUNTIME_DIR", &place) };
    Client::connect(dormouse::init().unwrap().path())
}

type Parked = Pin<Box<Instrumented<std::future::Pending<()>>>>;

/// Tasks that await for ever, polled once.
fn park(group: Group, count: usize) -> Vec<Parked> {
    let parked = |_| {
        let mut task = Box::pin(group.instrument(pending()));
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        task
    };
    (0..count).map(parked).collect()
}

fn alive(groups: &[TaskGroup], name: &str) -> u64 {
    groups.iter().find(|group| group.name == name).map_or(0, |group| group.alive)
}

#[test]
fn parts_have_each_task_once() {
    in_child(|| {
        let mut client = client();
        let _waiting = Waiting::start().unwrap();
        let group = Group::new("parked");
        let tasks = park(group, 10_000);
        let (seen, groups, parts) = client.list();
        assert!(parts >= 4, "{parts}");
        let numbers: HashSet<u64> = seen.iter().map(|task| task.task).collect();
        assert_eq!((seen.len(), numbers.len()), (10_000, 10_000));
        for task in &seen {
            assert_eq!((task.group, task.state, task.polls), (group.id(), WireTaskState::Awaiting, 1));
            assert!(task.age_ns.unwrap() >= task.for_ns && task.for_ns > 0, "{task:?}");
        }
        assert_eq!(groups.map(|of| alive(&of, "parked")), [10_000, 10_000]);
        // Places that are free again are passed over, and used again.
        drop(tasks);
        assert_eq!(client.list().0.len(), 0);
        let _few = park(group, 3);
        assert_eq!(client.list().0.len(), 3);
    });
}

#[test]
fn tasks_from_before_are_counted_by_group() {
    in_child(|| {
        let mut client = client();
        let group = Group::new("early");
        let mut early = park(group, 2);
        assert_eq!(client.part(0).taken_ns, None);
        let _waiting = Waiting::start().unwrap();
        let (seen, groups, _) = client.list();
        assert_eq!((seen.len(), groups.map(|of| alive(&of, "early"))), (0, [2, 2]));
        assert!(early[0].as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let (seen, ..) = client.list();
        assert_eq!((seen.len(), seen[0].age_ns, seen[0].polls), (1, None, 1));
        let first = client.part(0).taken_ns.unwrap();
        assert!(client.part(0).taken_ns.unwrap() > first && first >= seen[0].for_ns);
    });
}

#[test]
fn parts_beyond_the_end_are_empty() {
    in_child(|| {
        let mut client = client();
        let _waiting = Waiting::start().unwrap();
        let _one = park(Group::new("one"), 1);
        for from in [1 << 20, 1 << 40, u64::MAX] {
            let part = client.part(from);
            assert_eq!((part.tasks.task.len(), part.next), (0, None), "{from}");
            assert_eq!(alive(&part.groups, "one"), 1);
        }
        let last = client.part(u64::from(u32::MAX) + 1);
        assert_eq!(last.tasks.task.len(), 0, "an index does not wrap");
    });
}

#[test]
fn places_come_with_the_next_wait() {
    in_child(|| {
        let mut client = client();
        let begun: WaitsBegun = client.ask(WaitsRequest::default());
        assert!(!begun.places);
        let mut kept: Option<Waker> = None;
        let mut task = Box::pin(Group::new("kept").instrument(poll_fn(|cx: &mut Context<'_>| {
            if !kept.as_ref().is_some_and(|kept| kept.will_wake(cx.waker())) {
                kept = Some(cx.waker().clone());
            }
            Poll::<()>::Pending
        })));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(task.as_mut().poll(&mut cx).is_pending());
        let _nothing_wakes_it = park(Group::new("parked"), 1);
        let begun: WaitsBegun = client.ask(WaitsRequest { places: true, ..WaitsRequest::default() });
        assert!(begun.places);
        let places = |client: &mut Client| {
            let mut seen: Vec<(String, Vec<u32>)> = Vec::new();
            let (tasks, [groups, _], _) = client.list();
            for task in tasks {
                let group = groups.iter().find(|group| group.id == task.group).unwrap();
                seen.push((group.name.clone(), task.places));
            }
            seen.sort();
            seen
        };
        assert_eq!(places(&mut client), [("kept".into(), vec![]), ("parked".into(), vec![])]);
        // A place is known as soon as the functions of its stack have been learned.
        eventually(|| {
            let woken: WokenTasks = client.ask(WakeTasksRequest { from: 0 });
            assert_eq!(woken.woken, 1);
            assert!(task.as_mut().poll(&mut cx).is_pending());
            let place = places(&mut client)[0].1[0];
            let part: PlacesPart = client.ask(PlacesRequest { from: 0 });
            assert_eq!((part.no_room, part.next), (0, None));
            let row = part.places.iter().find(|row| row.number == place);
            assert!(row.is_none_or(|row| !row.stack.is_empty()));
            assert!(row.is_some() || part.unlearned > 0, "{part:?}");
            row.is_some()
        });
        let woken: WokenTasks = client.ask(WakeTasksRequest { from: 0 });
        assert_eq!(woken.woken, 0, "its place is known");
        drop(task);
    });
}

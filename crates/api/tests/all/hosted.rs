//! With a host that writes down what it is called for. Each test in its own child, because a host
//! stays.

use std::future::Future as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use dormouse_api::{Group, Host, set_host};
use dormouse_testkit::in_child;

static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn call(line: String) {
    CALLS.lock().unwrap().push(line);
}

fn calls() -> Vec<String> {
    std::mem::take(&mut CALLS.lock().unwrap())
}

static HOST: Host = Host::new("the first", |_, _| call("record".into())).with_groups(
    |name| {
        call(format!("find {name}"));
        5
    },
    |group| {
        call(format!("begin {group}"));
        70
    },
    |group, task| {
        call(format!("enter {group} {task}"));
        Some(9)
    },
    |group, task, place| call(format!("leave {group} {task} {place}")),
    |group, task| call(format!("end {group} {task}")),
);
static SECOND: Host = Host::new("the second", |_, _| ());
static POOL: Group = Group::new("pool");

#[test]
fn the_first_host_stays_and_is_named() {
    in_child(|| {
        assert_eq!(set_host(&HOST), Ok(()));
        assert_eq!(set_host(&SECOND), Err("the first"));
        assert_eq!(set_host(&HOST), Ok(()), "again");
    });
}

#[test]
fn a_guard_is_a_task_of_the_group() {
    in_child(|| {
        drop(POOL.enter());
        set_host(&HOST).unwrap();
        drop(POOL.enter());
        assert_eq!(calls(), ["find pool", "begin 5", "enter 5 70", "leave 5 70 9", "end 5 70"]);
        POOL.scope(calls);
        assert_eq!(calls(), ["leave 5 70 9", "end 5 70"]);
    });
}

#[test]
fn a_future_is_one_task_over_all_polls() {
    in_child(|| {
        let mut polls = 0;
        let poll = |_: &mut Context<'_>| {
            polls += 1;
            match polls {
                1 | 2 => Poll::Pending,
                _ => panic!("the third poll"),
            }
        };
        {
            let mut future = pin!(POOL.instrument(std::future::poll_fn::<(), _>(poll)));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(future.as_mut().poll(&mut cx).is_pending(), "before there is a host");
            set_host(&HOST).unwrap();
            assert!(future.as_mut().poll(&mut cx).is_pending());
            assert_eq!(calls(), ["find pool", "begin 5", "enter 5 70", "leave 5 70 9"]);
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
            assert!(polled.is_err());
            assert_eq!(calls(), ["enter 5 70", "leave 5 70 9"], "also when a poll panics");
        }
        assert_eq!(calls(), ["end 5 70"]);
    });
}

//! The memory that threads take for times, and the calls by which they take it.

use crate::support;

use std::sync::{Arc, Barrier};
use std::task::{Context, Waker};
use std::thread;

use dormouse_testkit::{Filter, in_child};
use dormouse_waits::{TaskEnd, TaskWaits, Waiting, Who, capability, groups, read, read_group};
use support::number;

fn poll_once(group: u32) {
    let who = Who { task: number(), group };
    let mut waits = TaskWaits::begun(who);
    waits.poll(who, &mut Context::from_waker(Waker::noop()), |cx| cx.waker().clone()).wake();
    waits.end(TaskEnd::Answered);
}

#[test]
fn threads_take_times_under_a_filter() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        // The C library gives back the stacks of threads by other advice.
        let advice = libc::MADV_WIPEONFORK as u64;
        Filter::kill(&[libc::SYS_mremap]).and_where(libc::SYS_madvise, 2, u64::MAX, &[advice]).install();
        thread::spawn(|| (1..20).for_each(poll_once)).join().unwrap();
        assert_eq!(groups(), 19);
    });
}

#[test]
fn very_many_rows_share_their_percentiles() {
    const THREADS: usize = 12;
    const GROUPS: u32 = 1000;
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        assert!(capability().is_none());
        let all = Arc::new(Barrier::new(THREADS));
        let poll_all = || {
            let all = Arc::clone(&all);
            move || {
                (1..=GROUPS).for_each(poll_once);
                all.wait();
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| thread::spawn(poll_all())).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let seen = read();
        let polls: u64 = seen.iter().map(|of| of.polls.count()).sum();
        assert_eq!(polls, THREADS as u64 * u64::from(GROUPS), "each is counted somewhere");
        let shared = seen.iter().find(|of| of.group == 0).unwrap();
        assert!(shared.polls.count() > 1000 && shared.poll_ns == 0, "{}", shared.polls.count());
        assert!((1..=GROUPS).all(|group| seen.iter().any(|of| of.group == group && of.poll_ns > 0)));
        let told = capability().unwrap().detail;
        assert!(told.contains(&format!("{} times a thread", shared.polls.count())), "{told}");
    });
}

#[test]
fn a_group_is_read_as_all_are() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        (1..4).for_each(poll_once);
        for of in read() {
            assert_eq!(read_group(of.group), Some(of));
        }
        assert_eq!((read_group(7), read_group(5000)), (None, None));
    });
}

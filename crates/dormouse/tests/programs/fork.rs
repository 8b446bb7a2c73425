//! A forked child has a clock and a thread identity of its own, and goes on in the group that its
//! thread was in. No test harness: a fork wants one thread.

use std::time::Duration;

use dormouse::{Event, Group};
use dormouse_testkit::{fork, spin_for};

pub(crate) fn main() {
    let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
    let group = Group::new("forked");
    let entered = group.enter();
    spin_for(Duration::from_millis(20));
    let parent = dormouse::clock::thread_cpu_ns();
    let mut entered = Some(entered);
    let status = fork(|| {
        let first = dormouse::clock::thread_cpu_ns();
        let second = dormouse::clock::thread_cpu_ns();
        assert!(first < parent, "{first} of the child after {parent} of the parent");
        assert!(second >= first);
        // The child's one thread goes on where the parent's was, and so do tasks that it makes.
        assert_eq!(Group::current(), Some(group));
        // A child counts nothing until it asks.
        let _counting = dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap();
        let before = group.read();
        group.scope(|| {
            spin_for(Duration::from_millis(20));
        });
        assert_eq!(dormouse::thread::spawn(Group::current).join().unwrap(), Some(group));
        drop(entered.take());
        assert_eq!(Group::current(), None);
        let after = group.read();
        let work = after.cpu.saturating_sub(before.cpu);
        assert!(work >= Duration::from_millis(12) && work < Duration::from_secs(1), "{work:?}");
        assert_eq!((before.alive, after.started, after.finished), (1, 3, 3));
        // The pending time of the parent's thread is the parent's.
        assert!(group.read().cpu < Duration::from_secs(10));
    });
    assert!(status.success(), "{status}");
    let stat = group.read();
    assert_eq!((stat.started, stat.alive), (1, 1), "what the child does is the child's");
    println!("1 passed, 0 failed");
}

//! A forked child has a clock and a thread identity of its own, and goes on in the group that its thread was in. No
//! test harness: a fork wants one thread.

use std::time::Duration;

use dormouse::{Event, Group};

fn main() {
    let _counting = dormouse::count(&[Event::TASK_CLOCK]).unwrap();
    let group = Group::new("forked");
    let entered = group.enter();
    let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
    while dormouse::clock::thread_cpu_ns_of(tid) < Some(20_000_000) {}
    let parent = dormouse::clock::thread_cpu_ns();
    // SAFETY: the process has one thread, so the child may do anything.
    #[expect(unsafe_code, reason = "fork is")]
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let first = dormouse::clock::thread_cpu_ns();
        let second = dormouse::clock::thread_cpu_ns();
        assert!(first < parent, "{first} of the child after {parent} of the parent");
        assert!(second >= first);
        // The child's one thread goes on where the parent's was, and so do tasks that it makes.
        assert_eq!(Group::current(), Some(group));
        // A child counts nothing until it asks.
        let _counting = dormouse::count(&[Event::TASK_CLOCK]).unwrap();
        let before = group.stat();
        group.scope(|| {
            let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
            let end = dormouse::clock::thread_cpu_ns_of(tid).unwrap() + 20_000_000;
            while dormouse::clock::thread_cpu_ns_of(tid).unwrap() < end {}
        });
        assert_eq!(dormouse::thread::spawn(Group::current).join().unwrap(), Some(group));
        drop(entered);
        assert_eq!(Group::current(), None);
        let after = group.stat();
        let work = after.cpu.saturating_sub(before.cpu);
        assert!(work >= Duration::from_millis(12) && work < Duration::from_secs(1), "{work:?}");
        assert_eq!((before.alive, after.started, after.finished), (1, 3, 3));
        // What the parent's thread had pending is the parent's.
        assert!(group.stat().cpu < Duration::from_secs(10));
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    #[expect(unsafe_code, reason = "waitpid is")]
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child failed");
    let stat = group.stat();
    assert_eq!((stat.started, stat.alive), (1, 1), "what the child does is the child's");
    println!("1 passed, 0 failed");
}

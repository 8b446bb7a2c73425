//! A forked child has a clock and a thread identity of its own. No test harness: a fork wants one thread.

use std::time::Duration;

use dormouse::Group;

fn main() {
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
        drop(entered);
        // What the parent's thread had pending is the parent's.
        assert!(group.stat().cpu < Duration::from_secs(10));
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    #[expect(unsafe_code, reason = "waitpid is")]
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child failed");
    println!("1 passed, 0 failed");
}

//! A trigger fires once for a long wait for a lock, and names the holder.

#![cfg(not(dormouse_fallback))]

use std::thread;
use std::time::Duration;

use dormouse::{Group, triggers};
use dormouse_testkit::eventually;

use crate::triggers::{add, file_of, row, with_directory};

#[test]
fn a_long_lock_wait_has_a_file() {
    with_directory(|_| {
        let number = add("lock>30ms in GET /menu every 1s");
        let (lock, wait) = (dormouse::sync::Mutex::new(7_u8), Duration::from_millis(60));
        let menu = Group::new("GET /menu");
        assert_eq!(row(number).why_not, "no such wait was seen");
        let hold_until = |is_over: &dyn Fn() -> bool| {
            let (guard, line) = (lock.lock().unwrap(), line!());
            thread::scope(|scope| {
                let waiter = scope.spawn(|| menu.scope(|| *lock.lock().unwrap()));
                eventually(|| dormouse::sync::lock_waiters().len() == 1);
                // A group that is not watched waits, too.
                let other = scope.spawn(|| Group::new("other").scope(|| *lock.lock().unwrap()));
                eventually(is_over);
                drop(guard);
                waiter.join().unwrap();
                other.join().unwrap();
            });
            line
        };
        // While it lasts.
        let line = Group::new("GET /blend").scope(|| hold_until(&|| row(number).file.is_some()));
        let (fired, content) = file_of(number);
        let seen = &content.head.seen;
        assert!(
            seen.starts_with("a wait of ") && seen.contains(" for a mutex at lock_triggers.rs:"),
            "{seen}"
        );
        let held = format!(" of GET /menu, held by GET /blend at lock_triggers.rs:{line}");
        assert!(seen.ends_with(&held), "{seen}");
        assert_eq!((fired.fired, fired.passed_over), (1, 0), "it counts once: {fired:?}");
        // When it is over, even if no reading came meanwhile.
        let number = add("lock>30ms in GET /menu");
        let began = std::time::Instant::now();
        hold_until(&|| began.elapsed() > wait);
        let (fired, _) = file_of(number);
        assert_eq!((fired.fired, fired.passed_over), (1, 0), "{fired:?}");
        triggers::remove(number).unwrap();
    });
}

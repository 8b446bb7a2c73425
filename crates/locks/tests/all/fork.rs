//! A forked child begins with no holder.
#![allow(unsafe_code)]

use dormouse_locks::{Holds, LockTimes, Mutex, is_on, lock_holders, read_locks};
use dormouse_testkit::{fork, in_child};

use crate::support::{be, tasks};

#[test]
fn a_child_begins_with_an_empty_table() {
    in_child(|| {
        let (lock, own) = (Mutex::new(0), Mutex::new(0));
        let times = LockTimes::start(Holds::Sampled).unwrap();
        be(1, 1);
        let mut inherited = Some((times, lock.lock().unwrap()));
        let status = fork(|| {
            assert!(!is_on() && lock_holders().is_empty() && read_locks().is_empty());
            let times = LockTimes::start(Holds::Sampled).unwrap();
            be(2, 2);
            let guard = own.lock().unwrap();
            assert_eq!((tasks(&own), tasks(&lock)), (vec![2], vec![]));
            // The guard and the times of the parent end without a trace.
            drop(inherited.take());
            assert_eq!(tasks(&own), [2]);
            assert!(is_on());
            drop(lock.lock().unwrap());
            drop(guard);
            assert!(lock_holders().is_empty());
            assert_eq!(read_locks().iter().map(|row| row.acquisitions).sum::<u64>(), 2);
            drop(times);
        });
        assert!(status.success(), "{status}");
        assert_eq!(tasks(&lock), [1], "the parent's is as it was");
    });
}

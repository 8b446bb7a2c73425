//! The holders that are shown, beside the truth.

use std::mem::forget;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use dormouse_locks::{
    Holds, LockHolder, LockTimes, Mutex, PermitQueue, RwLock, Semaphore, capability, lost, parking_lot,
};
use dormouse_testkit::{eventually, in_child};

use crate::support::{address, be, holders, rows, tasks, waiters};

/// A lock, and its present hold by a number that no two share; 0: none, or it is just changing.
struct Beside<T> {
    lock: T,
    truth: AtomicU64,
}

/// Threads take locks while one observes them. Observations count if the hold was the same before
/// and after.
fn observe<T: Sync>(locks: &[Beside<T>], hold: impl Fn(&T, &dyn Fn()) + Sync) {
    const ENOUGH: u64 = 10_000;
    let (is_over, number) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for task in 1..=4 {
            let (is_over, number, hold) = (&is_over, &number, &hold);
            scope.spawn(move || {
                be(task, task as u32);
                let mut at = task as usize;
                while !is_over.load(Ordering::Relaxed) {
                    at += 1;
                    let Beside { lock, truth } = &locks[at % locks.len()];
                    hold(lock, &|| {
                        let own = number.fetch_add(1, Ordering::Relaxed) << 8 | task;
                        truth.store(own, Ordering::SeqCst);
                        for _ in 0..at % 2_000 {
                            std::hint::spin_loop();
                        }
                        truth.store(0, Ordering::SeqCst);
                    });
                }
            });
        }
        let (mut seen, mut unknown, mut wrong) = (0, 0, 0);
        while seen < ENOUGH {
            for Beside { lock, truth } in locks {
                let before = truth.load(Ordering::SeqCst);
                let found = tasks(lock);
                if before == 0 || truth.load(Ordering::SeqCst) != before {
                    continue;
                }
                seen += 1;
                match found[..] {
                    [] => unknown += 1,
                    [task] if task == before & 0xff => {}
                    _ => wrong += 1,
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(wrong, 0, "of {seen}, {unknown} unknown");
        assert!(unknown <= seen / 100, "{unknown} of {seen} unknown");
    });
}

fn beside<T>(new: impl Fn() -> T) -> Vec<Beside<T>> {
    (0..3).map(|_| Beside { lock: new(), truth: AtomicU64::new(0) }).collect()
}

#[test]
fn no_holder_of_a_mutex_is_wrong() {
    let _times = LockTimes::start(Holds::Sampled).unwrap();
    observe(&beside(|| Mutex::new(())), |lock, inside| {
        let _guard = lock.lock().unwrap();
        inside();
    });
}

#[test]
fn no_holder_by_parking_lot_is_wrong() {
    let _times = LockTimes::start(Holds::Sampled).unwrap();
    observe(&beside(|| dormouse_locks::parking_lot::Mutex::new(())), |lock, inside| {
        let _guard = lock.lock();
        inside();
    });
}

#[test]
fn no_writer_is_wrong() {
    let _times = LockTimes::start(Holds::All).unwrap();
    observe(&beside(|| RwLock::new(())), |lock, inside| {
        let _guard = lock.write().unwrap();
        inside();
    });
}

#[test]
fn a_wait_names_the_holder_and_its_line() {
    let times = LockTimes::start(Holds::All).unwrap();
    let lock = Mutex::new(7_u16);
    thread::scope(|scope| {
        be(101, 101);
        let (guard, line) = (lock.lock().unwrap(), line!());
        let waiter = scope.spawn(|| {
            be(102, 102);
            drop(lock.lock().unwrap());
        });
        eventually(|| !waiters(&lock).is_empty());
        let waiting = &waiters(&lock)[0];
        assert_eq!((waiting.task, waiting.group, waiting.place.name.as_str()), (102, 102, "u16"));
        let held = &holders(&lock)[0];
        assert_eq!((held.task, held.group, held.place.line), (101, 101, line));
        assert!(held.place.file.ends_with("holders.rs"), "{}", held.place.file);
        assert!(held.for_ns >= waiting.for_ns, "{held:?} {waiting:?}");
        drop(guard);
        waiter.join().unwrap();
        let [row] = &rows(102)[..] else { panic!("one line has waited") };
        assert_eq!((row.acquisitions, row.waits.count(), row.given_up, row.holds.count()), (1, 1, 0, 1));
        assert_eq!(row.held_by.iter().map(|(by, _)| *by).collect::<Vec<_>>(), [LockHolder::Group(101)]);
        let longest = row.longest.as_ref().expect("a wait");
        assert_eq!(longest.ns, row.waits.max_ns);
        assert_eq!(longest.place.as_ref().map(|place| place.line), Some(line));
        assert_eq!(rows(101)[0].waits.count(), 0, "it did not wait");
    });
    assert!(waiters(&lock).is_empty() && holders(&lock).is_empty());
    drop(times);
}

#[test]
fn one_line_of_two_types_has_two_rows() {
    fn take<T>(lock: &Mutex<T>) {
        drop(lock.lock().unwrap());
    }
    let _times = LockTimes::start(Holds::Sampled).unwrap();
    be(501, 501);
    take(&Mutex::new(0_u8));
    take(&Mutex::new(0_u16));
    take(&Mutex::new(1_u16));
    let found: Vec<_> = rows(501).into_iter().map(|row| (row.place.name, row.acquisitions)).collect();
    assert_eq!(found, [("u16".to_owned(), 2), ("u8".to_owned(), 1)]);
}

#[test]
fn readers_are_holders_side_by_side() {
    let _times = LockTimes::start(Holds::Sampled).unwrap();
    let lock = RwLock::new(());
    let (first, second) = (lock.read().unwrap(), lock.read().unwrap());
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            be(201, 201);
            let _guard = lock.read().unwrap();
            tasks(&lock)
        });
        assert_eq!(reader.join().unwrap(), [0, 0, 201]);
        let writer = scope.spawn(|| {
            be(202, 202);
            drop(lock.write().unwrap());
        });
        eventually(|| !waiters(&lock).is_empty());
        drop((first, second));
        writer.join().unwrap();
    });
    assert_eq!(rows(202)[0].held_by[0].0, LockHolder::Group(0));
}

#[test]
fn a_writer_blames_the_oldest_reader() {
    // Others of these tests have all holds timed.
    in_child(|| {
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        let lock = RwLock::new(());
        let read = || lock.read().unwrap();
        be(211, 211);
        // The first hold of a line and a group is counted, and the second is not.
        drop(read());
        let first = read();
        be(212, 212);
        let second = read();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                be(213, 213);
                drop(lock.write().unwrap());
            });
            eventually(|| !waiters(&lock).is_empty());
            assert!(holders(&lock).iter().all(|user| user.for_ns.is_some()), "{:?}", holders(&lock));
            drop((first, second));
            writer.join().unwrap();
        });
        assert_eq!(rows(213)[0].held_by[0].0, LockHolder::Group(211));
        assert_eq!(rows(211)[0].holds.count(), 1, "one in sixteen");
    });
}

#[test]
fn permits_are_held_by_line() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let pots = Semaphore::new(2);
    be(301, 301);
    let (first, line) = (pots.acquire(), line!());
    let second = pots.try_acquire().expect("there are two");
    assert!(pots.try_acquire().is_none());
    assert_eq!(pots.acquire_timeout(Duration::ZERO).map(drop), None);
    let mut lines: Vec<u32> = holders(&pots).iter().map(|user| user.place.line).collect();
    lines.sort_unstable();
    assert_eq!(lines, [line, line + 1]);
    drop((first, second));
    assert!(holders(&pots).is_empty());
    let given_up: u64 = rows(301).iter().map(|row| row.given_up).sum();
    assert_eq!((given_up, pots.available_permits()), (1, 2));
}

#[test]
fn a_forgotten_guard_names_nobody_in_another_run() {
    in_child(|| {
        let times = LockTimes::start(Holds::Sampled).unwrap();
        be(401, 401);
        let mut place = Some(Mutex::new(0));
        forget(place.as_ref().unwrap().lock().unwrap());
        assert_eq!(tasks(place.as_ref().unwrap()), [401], "it is held for good");
        drop(times);
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        // Another lock at the same address.
        place = Some(Mutex::new(1));
        let lock = place.as_ref().unwrap();
        assert!(tasks(lock).is_empty());
        thread::scope(|scope| {
            scope.spawn(|| {
                be(402, 402);
                let guard = lock.lock().unwrap();
                assert_eq!(tasks(lock), [402]);
                drop(guard);
                assert!(tasks(lock).is_empty());
            });
        });
    });
}

#[test]
fn a_forgotten_guard_outlives_its_thread() {
    in_child(|| {
        let _times = LockTimes::start(Holds::All).unwrap();
        let (lock, shared) = (parking_lot::Mutex::new(0), RwLock::new(0));
        let forget_both = || {
            be(411, 411);
            forget(shared.read().unwrap());
            forget(lock.lock());
            holders(&lock)
        };
        let before = thread::scope(|scope| scope.spawn(forget_both).join().unwrap());
        // Other threads take its place in all tables.
        for other in [412, 413] {
            let take_another = || {
                be(other, other as u32);
                drop(Mutex::new(0).lock().unwrap());
                assert!(lock.try_lock_for(Duration::from_millis(1)).is_none());
            };
            thread::scope(|scope| scope.spawn(take_another).join().unwrap());
            let waits = &rows(other as u32).into_iter().find(|row| row.waits.count() > 0).expect("it waited");
            assert_eq!(waits.held_by[0].0, LockHolder::Group(411), "{waits:?}");
        }
        assert_eq!((tasks(&lock), tasks(&shared)), (vec![411], vec![411]));
        let ([was], [is]) = (&before[..], &holders(&lock)[..]) else { panic!("one holder") };
        assert_eq!((&was.place, was.tid, was.group), (&is.place, is.tid, is.group));
        assert!(is.for_ns > was.for_ns, "it goes on: {was:?} {is:?}");
        assert!(capability().is_none(), "there was room");
    });
}

#[test]
fn forgotten_guards_beyond_the_room_name_nobody() {
    in_child(|| {
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        let locks: Vec<parking_lot::Mutex<u8>> = (0..20_000).map(|_| parking_lot::Mutex::new(0)).collect();
        let forget_all = || locks.iter().for_each(|lock| forget(lock.lock()));
        thread::scope(|scope| scope.spawn(forget_all).join().unwrap());
        let all = dormouse_locks::lock_holders().len();
        // The table, and the hand that the thread has left.
        assert!((4_000..=8_192 + 7).contains(&all), "{all}");
        let missing = capability().expect("some have no room").detail.to_string();
        assert!(missing.contains(&format!("{}", 20_000 - all)), "{missing}");
        let unseen = locks.iter().find(|lock| holders(*lock).is_empty()).expect("one has no room");
        be(421, 421);
        assert!(unseen.try_lock_for(Duration::from_millis(1)).is_none());
        assert_eq!(rows(421)[0].held_by[0].0, LockHolder::Unknown, "it was not taken before");
    });
}

#[test]
fn more_locks_than_a_hand_has_are_held() {
    let _times = LockTimes::start(Holds::Sampled).unwrap();
    be(403, 403);
    let locks: Vec<Mutex<u8>> = (0..20).map(|_| Mutex::new(0)).collect();
    let mut guards: Vec<_> = locks.iter().map(|lock| lock.lock().unwrap()).collect();
    assert!(locks.iter().all(|lock| tasks(lock) == [403]));
    // From both ends, so that those in the hand and those in the table go in turn.
    while !guards.is_empty() {
        drop((guards.pop(), guards.swap_remove(0)));
        assert_eq!(locks.iter().filter(|lock| !tasks(*lock).is_empty()).count(), guards.len());
    }
}

#[test]
fn a_hundred_waits_for_one_lock_are_shown() {
    let _times = LockTimes::start(Holds::Sampled).unwrap();
    let lock = Mutex::new(0_u8);
    thread::scope(|scope| {
        let guard = lock.lock().unwrap();
        for _ in 0..100 {
            scope.spawn(|| drop(lock.lock().unwrap()));
        }
        // The lock is held, so no wait ends before all are there.
        eventually(|| waiters(&lock).len() == 100);
        drop(guard);
    });
    assert!(waiters(&lock).is_empty());
}

#[test]
fn waits_beyond_the_room_are_counted_apart() {
    in_child(|| {
        static POOL: PermitQueue = PermitQueue::new("pool");
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        let waits: Vec<_> = (0..3_000).map(|_| POOL.enter()).collect();
        let shown = waiters(&POOL).len();
        // Not each place is tried for each wait.
        assert!((1_900..=2_048).contains(&shown), "{shown}");
        assert_eq!(lost(), [0, 0, 3_000 - shown as u64]);
        let missing = capability().expect("some have no room").detail.to_string();
        assert!(missing.contains(&format!("{} times none for a wait", 3_000 - shown)), "{missing}");
        drop(waits);
        assert!(waiters(&POOL).is_empty());
        assert_eq!(rows(0)[0].waits.count(), 3_000, "each is counted when it is over");
    });
}

#[test]
fn a_moved_lock_is_another() {
    let _times = LockTimes::start(Holds::Sampled).unwrap();
    let mut locks = vec![Mutex::new(0_u8)];
    drop(locks[0].lock().unwrap());
    let before = address(&locks[0]);
    locks.reserve_exact(4_000);
    let guard = locks[0].lock().unwrap();
    assert_eq!(holders(&locks[0]).len(), 1);
    if address(&locks[0]) != before {
        let all = dormouse_locks::lock_holders();
        assert!(all.iter().all(|user| user.address != before));
    }
    drop(guard);
}

#[test]
fn locks_beyond_the_room_have_no_holder() {
    in_child(|| {
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        assert!(capability().is_none());
        let locks: Vec<Mutex<u8>> = (0..20_000).map(|_| Mutex::new(0)).collect();
        let guards: Vec<_> = locks.iter().map(|lock| lock.lock().unwrap()).collect();
        let all = dormouse_locks::lock_holders().len();
        // The table, and the hand.
        assert!((4_000..=8_192 + 7).contains(&all), "{all}");
        let missing = capability().expect("some have no room").detail.to_string();
        assert!(missing.contains(&format!("{}", 20_000 - all)), "{missing}");
        drop(guards);
        assert!(dormouse_locks::lock_holders().is_empty());
        assert_eq!(rows(0)[0].acquisitions, 20_000, "each is counted");
    });
}

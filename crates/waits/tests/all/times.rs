//! The times of a task add up, and stand in their own columns.

use crate::support;

use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_testkit::{fork, in_child};
use dormouse_waits::{
    GroupWaits, LivingTask, TaskEnd, TaskState, TaskWaits, TimesId, Waiting, Who, charge_group, living,
    polled, read, set_aside,
};
use support::{Counting, Timed, living_task as task, number};

const PART: Duration = Duration::from_millis(30);

fn group(number: u32) -> GroupWaits {
    read().into_iter().find(|of| of.group == number).unwrap_or_default()
}

#[tokio::test]
async fn sleeps_are_awaited() {
    let _waiting = Waiting::start().unwrap();
    let number = Arc::new(Mutex::new(0));
    let own = Arc::clone(&number);
    let sleeper = Timed::new(7, async move {
        tokio::time::sleep(PART).await;
        let number = *own.lock().unwrap();
        task(number)
    });
    *number.lock().unwrap() = sleeper.who.task;
    let seen = sleeper.await;
    assert_eq!(seen.state, TaskState::Polled);
    assert!(seen.await_ns + seen.runnable_ns >= 29_000_000 && seen.polls == 1 && seen.wakes == 1, "{seen:?}");
    let sum = seen.poll_ns + seen.runnable_ns + seen.await_ns;
    assert!(seen.age_ns.unwrap().abs_diff(sum) <= 3, "{seen:?}");
    assert!(living().all(|task| task.task != seen.task), "it has ended");
    assert!(group(7).await_ns + 3 >= seen.await_ns);
}

/// The bounds of a time, by clocks that were read inside of it and around it.
#[derive(Debug, Clone, Copy)]
struct Bounds(Duration, Duration);

impl Bounds {
    fn has(self, ns: u64) -> bool {
        // The counter and the clock differ by less than one in a thousand.
        let (time, slack) = (Duration::from_nanos(ns), self.1 / 1000);
        (self.0.saturating_sub(slack)..=self.1 + slack).contains(&time)
    }

    /// Whether one within them is within 2 % of any other.
    fn are_narrow(self) -> bool {
        self.1.saturating_sub(self.0) <= self.0 / 50
    }
}

/// A task that spins, waits for a lock in its poll, awaits, and waits for its poll. Its times, and
/// its group's, are within what the program has measured: the bounds of in a poll, runnable and
/// awaiting. They are wide if the thread was preempted between two reads of the clock.
fn columns(number_of_group: u32) -> [Bounds; 3] {
    let runtime = Arc::<Counting>::default();
    let who = Who { task: number(), group: number_of_group };
    let before = group(number_of_group);
    let begins = Instant::now();
    let mut waits = TaskWaits::begun(who);
    let has_begun = Instant::now();
    let raw = runtime.waker();
    let mut cx = Context::from_waker(&raw);
    let polls = Instant::now();
    let (waker, entered, left) = waits.poll(who, &mut cx, |cx| {
        let entered = Instant::now();
        while entered.elapsed() < PART {
            std::hint::spin_loop();
        }
        wait_for_a_lock();
        (cx.waker().clone(), entered, Instant::now())
    });
    let has_polled = Instant::now();
    thread::sleep(PART);
    let wakes = Instant::now();
    waker.wake();
    let has_woken = Instant::now();
    thread::sleep(PART);
    let polls_again = Instant::now();
    let (seen, entered_again, left_again) = waits.poll(who, &mut cx, |_| {
        let entered = Instant::now();
        (task(who.task), entered, Instant::now())
    });
    waits.end(TaskEnd::Answered);
    // From its last poll to its end the task awaits, too: the group has that time, and `seen` not.
    let ends = left_again.elapsed();
    let after = group(number_of_group);
    let bounds = [
        Bounds(left - entered, (has_polled - polls) + polls_again.elapsed()),
        Bounds((polls - has_begun) + (polls_again - has_woken), (entered - begins) + (entered_again - wakes)),
        Bounds(wakes - has_polled, (has_woken - left) + ends),
    ];
    let of_task = [seen.poll_ns, seen.runnable_ns, seen.await_ns];
    let of_group = [
        after.poll_ns - before.poll_ns,
        after.runnable_ns - before.runnable_ns,
        after.await_ns - before.await_ns,
    ];
    for (n, bounds) in bounds.into_iter().enumerate() {
        assert!(
            bounds.has(of_task[n]) && bounds.has(of_group[n]),
            "{n}: {bounds:?} {of_task:?} {of_group:?}"
        );
    }
    assert_eq!(
        (after.polls.count() - before.polls.count(), after.requests.count()),
        (2, before.requests.count() + 1)
    );
    bounds
}

fn wait_for_a_lock() {
    let lock = Arc::new(Mutex::new(()));
    let (locked, is_locked) = mpsc::channel();
    let other = Arc::clone(&lock);
    let holder = thread::spawn(move || {
        let _held = other.lock().unwrap();
        locked.send(()).unwrap();
        thread::sleep(PART);
    });
    is_locked.recv().unwrap();
    drop(lock.lock().unwrap());
    holder.join().unwrap();
}

#[test]
fn each_wait_stands_in_its_column() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        // Right each time, and to 2 % as soon as nobody preempts the thread beside its clocks.
        let is_exact = |_| columns(8).into_iter().all(Bounds::are_narrow);
        if !(0..20).any(is_exact) {
            dormouse_testkit::skip("the thread was preempted each time between its clocks");
        }
    });
}

#[test]
fn sums_do_not_go_back() {
    let _waiting = Waiting::start().unwrap();
    let runtime = Arc::<Counting>::default();
    let raw = runtime.waker();
    let who = Who { task: number(), group: 9 };
    let mut waits = TaskWaits::begun(who);
    let mut last = group(9);
    let mut check = |what: &str| {
        let now = group(9);
        let grew = |now: u64, last: u64| now + 3 >= last;
        assert!(
            grew(now.poll_ns, last.poll_ns)
                && grew(now.await_ns + now.runnable_ns, last.await_ns + last.runnable_ns),
            "{what}: {now:?} after {last:?}"
        );
        last = now;
    };
    check("begun");
    for _ in 0..3 {
        let waker = waits.poll(who, &mut Context::from_waker(&raw), |cx| {
            check("in a poll");
            cx.waker().clone()
        });
        check("awaiting");
        thread::sleep(Duration::from_millis(2));
        check("still");
        waker.wake();
        check("runnable");
        // On another thread, whose row knows nothing of the wait's begin.
        waits = thread::scope(|scope| {
            let polls = || {
                let mut waits = waits;
                let cx = &mut Context::from_waker(std::task::Waker::noop());
                waits.poll(who, cx, |_| ());
                waits
            };
            scope.spawn(polls).join().unwrap()
        });
        check("polled elsewhere");
    }
    drop(waits);
    check("ended");
    assert!(last.await_ns >= 6_000_000, "{last:?}");
}

#[test]
fn polls_inside_of_polls_are_their_own() {
    let _waiting = Waiting::start().unwrap();
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let outer = Who { task: number(), group: 10 };
    let inner = Who { task: number(), group: 11 };
    let (mut one, mut other) = (TaskWaits::begun(outer), TaskWaits::begun(inner));
    let began = Instant::now();
    one.poll(outer, &mut cx, |cx| {
        other.poll(inner, cx, |_| {
            thread::sleep(PART);
            let chain: Vec<_> = polled().filter(|of| [outer.task, inner.task].contains(&of.task)).collect();
            assert_eq!(chain.iter().map(|of| of.task).collect::<Vec<_>>(), [inner.task, outer.task]);
            assert!(chain[0].for_ns >= 29_000_000 && chain[1].for_ns >= chain[0].for_ns, "{chain:?}");
            assert_eq!(chain[0].block, chain[1].block);
        });
        assert!(polled().any(|of| of.task == outer.task) && polled().all(|of| of.task != inner.task));
    });
    let both = began.elapsed().as_nanos() as u64;
    let (outer, inner) = (group(10), group(11));
    assert!(inner.poll_ns >= 29_000_000 && outer.poll_ns + inner.poll_ns <= both, "{both} {outer:?}");
    assert!(outer.polls.max_ns >= inner.polls.max_ns, "a poll's length is the whole of it");
}

#[test]
fn work_set_aside_is_in_no_poll_around() {
    let _waiting = Waiting::start().unwrap();
    let who = Who { task: number(), group: 20 };
    let mut waits = TaskWaits::begun(who);
    let began = Instant::now();
    waits.poll(who, &mut Context::from_waker(std::task::Waker::noop()), |_| {
        set_aside(|| thread::sleep(PART));
        charge_group(21, || {
            thread::sleep(PART);
            let inner = Who { task: number(), group: 22 };
            drop(TaskWaits::begun(inner).run(inner));
        });
    });
    let all = began.elapsed().as_nanos() as u64;
    let [around, charged] = [20, 21].map(group);
    assert!(around.poll_ns + 2 * 29_000_000 <= all, "{around:?} of {all}");
    assert!(charged.poll_ns >= 29_000_000 && charged.poll_ns + 29_000_000 <= all, "{charged:?} of {all}");
    assert!(charged.polls.count() == 0 && living().all(|task| task.group != 21), "it is no task");
    assert!(around.polls.max_ns >= 2 * 29_000_000, "a poll's length is the whole of it");
    charge_group(21, || thread::sleep(PART));
    assert!(group(21).poll_ns >= charged.poll_ns + 29_000_000, "outside of tasks, too");
    assert!(polled().all(|of| of.task != who.task));
}

#[test]
fn work_by_hand_is_in_a_poll() {
    let _waiting = Waiting::start().unwrap();
    let who = Who { task: number(), group: 12 };
    let mut waits = TaskWaits::begun(who);
    let stretch = waits.run(who).unwrap();
    thread::sleep(PART);
    assert_eq!(task(who.task).state, TaskState::Polled);
    drop(stretch);
    waits.end(TaskEnd::NoRequest);
    let of = group(12);
    assert!(of.poll_ns >= 29_000_000 && of.polls.count() == 0, "{of:?}");
    let mut waits = TaskWaits::begun(who);
    waits.forget();
    assert!(living().all(|task| task.task != who.task));
    assert!(group(12).runnable_ns < 29_000_000, "{:?}", group(12));
}

#[test]
fn a_task_by_hand_needs_no_waker() {
    let _waiting = Waiting::start().unwrap();
    let of = |number| {
        let LivingTask { state, has_waker, is_by_hand, is_unwakeable, .. } = task(number);
        (state, has_waker, is_by_hand, is_unwakeable)
    };
    let [numbered, run, polled] = [(); 3].map(|()| Who { task: number(), group: 23 });
    let times = TimesId::begun(numbered);
    assert_eq!(of(numbered.task), (TaskState::Runnable, false, false, false), "not entered yet");
    // Between two stretches.
    for _ in 0..2 {
        times.enter(numbered).leave(numbered.task);
        assert_eq!(of(numbered.task), (TaskState::Awaiting, false, true, false));
    }
    let _no_age = times.end(numbered.task, TaskEnd::NoRequest, None);
    let mut waits = TaskWaits::begun(run);
    waits.run(run).unwrap().enters_by_hand();
    assert_eq!(of(run.task), (TaskState::Awaiting, false, true, false));
    // One that is polled, in the same slot.
    waits.end(TaskEnd::NoRequest);
    waits = TaskWaits::begun(polled);
    waits.poll(polled, &mut Context::from_waker(Waker::noop()), |_| ());
    assert_eq!(of(polled.task), (TaskState::Awaiting, false, false, false));
}

#[test]
fn guards_may_go_in_any_order() {
    let _waiting = Waiting::start().unwrap();
    let who = [(); 3].map(|()| Who { task: number(), group: 13 });
    let mut waits = who.map(TaskWaits::begun);
    let mut stretches: Vec<_> = waits.iter_mut().zip(who).map(|(waits, who)| waits.run(who)).collect();
    drop(stretches.remove(0));
    drop(stretches.remove(1));
    drop(stretches);
    assert!(polled().all(|of| !who.iter().any(|who| who.task == of.task)));
    let [mut one, _, _] = waits;
    // A task that ends inside of its stretch.
    let stretch = one.run(who[0]);
    one.end(TaskEnd::NoRequest);
    drop(stretch);
    assert!(polled().all(|of| of.task != who[0].task));
    let before = group(13).poll_ns;
    thread::sleep(Duration::from_millis(2));
    assert_eq!(group(13).poll_ns, before, "nobody is in a poll");
}

#[test]
fn a_forked_child_begins_anew() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let runtime = Arc::<Counting>::default();
        let raw = runtime.waker();
        let who = Who { task: number(), group: 14 };
        let mut waits = TaskWaits::begun(who);
        let mut held = None;
        let child = waits.poll(who, &mut Context::from_waker(&raw), |cx| {
            held = Some(cx.waker().clone());
            let lent = cx.waker();
            fork(|| {
                // In the midst of a poll: its wakers work.
                held.take().unwrap().wake();
                let again = lent.clone();
                lent.wake_by_ref();
                drop(again);
                let was_clean = living().next().is_none() && read().is_empty();
                let _waiting = Waiting::start().unwrap();
                let other = Who { task: number(), group: 14 };
                let mut own = TaskWaits::begun(other);
                own.poll(other, &mut Context::from_waker(lent), |cx| cx.waker().clone()).wake();
                let knows = living().map(|task| (task.task, task.polls)).collect::<Vec<_>>();
                assert!(was_clean);
                assert_eq!(knows, [(other.task, 1)]);
                assert_eq!(runtime.wakes(), 3);
            })
        });
        assert!(child.success(), "{child}");
        assert_eq!(runtime.wakes(), 0);
        assert_eq!(task(who.task).polls, 1);
        drop(held);
        assert_eq!(runtime.alive(), 0);
    });
}

#[test]
fn sums_go_on_in_the_next_run() {
    in_child(|| {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut tasks: Vec<_> = (0..8).map(|_| Timed::new(16, std::future::pending::<()>())).collect();
        let mut poll_all = || {
            for task in &mut tasks {
                assert_eq!(Pin::new(task).poll(&mut cx), Poll::Pending);
            }
        };
        let waiting = Waiting::start().unwrap();
        poll_all();
        thread::sleep(3 * PART);
        let first = group(16).await_ns;
        assert!(first > 700_000_000, "{first}");
        drop(waiting);
        let _waiting = Waiting::start().unwrap();
        poll_all();
        let (before, began) = (group(16).await_ns, Instant::now());
        assert!(before >= first, "a counter does not decrease");
        thread::sleep(PART);
        // Eight tasks have awaited meanwhile.
        let (awaited, more) = (8 * began.elapsed(), group(16).await_ns - before);
        assert!(u128::from(more) >= awaited.as_nanos() * 999 / 1000, "{more} of {awaited:?}");
    });
}

#[test]
fn a_run_forgets_the_one_before() {
    in_child(|| {
        let waiting = Waiting::start().unwrap();
        let mut old = Timed::new(15, std::future::pending::<()>());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut poll = |timed: &mut Timed<_>| assert_eq!(Pin::new(timed).poll(&mut cx), Poll::Pending);
        poll(&mut old);
        drop(waiting);
        thread::sleep(PART);
        let waiting = Waiting::start().unwrap();
        assert_eq!(living().count(), 0, "it may have been polled meanwhile");
        assert!(group(15).await_ns < 29_000_000);
        poll(&mut old);
        let seen = task(old.who.task);
        assert_eq!((seen.age_ns, seen.polls, seen.wakes), (None, 1, 0));
        assert!(group(15).await_ns < 29_000_000);
        drop((old, waiting));
    });
}

//! The place of a wait is the function that awaits, for each kind of leaf.

use crate::support;

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use dormouse_profile::{SourceFrame, is_yield};
use dormouse_sys::process::identity;
use dormouse_testkit::{eventually, in_child};
use dormouse_unwind::{WalkEnd, claim};
use dormouse_waits::places::{PlaceCoverage, UNLEARNED_PLACE, learn, noted_for, place, place_coverage};
use dormouse_waits::{Placing, TaskState, Waiting, times_by_place, wake_unplaced, wake_unplaced_part};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use support::stacks::{
    ALONE, LONG, Runtime, assert_one, has, is_of, loyal, napper, on, reader, receiver, sleeper, stack,
    stack_of, waiting,
};
use support::{Timed, living_task, number};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

async fn locker(lock: &tokio::sync::Mutex<()>) {
    drop(lock.lock().await);
}

#[tokio::test]
async fn channels_are_places() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (_to, mut from) = mpsc::channel(1);
    let (task, stacks) = waiting(receiver(&mut from)).await;
    assert_one(&stacks, "receiver", "mpsc");
    assert!(task.has_waker);
}

#[tokio::test]
async fn sleeps_are_places() {
    let _alone = ALONE.lock().await;
    let _on = on();
    assert_one(&waiting(sleeper()).await.1, "sleeper", "tokio::time::sleep");
}

#[tokio::test]
async fn locks_are_places() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let lock = tokio::sync::Mutex::new(());
    let _held = lock.lock().await;
    assert_one(&waiting(locker(&lock)).await.1, "locker", "semaphore");
}

#[tokio::test]
async fn sockets_are_places() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let _peer = listener.accept().await.unwrap();
    assert_one(&waiting(reader(&mut stream)).await.1, "reader", "tokio::");
}

#[tokio::test]
async fn branches_have_their_places() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (_, stacks) = waiting(async { tokio::join!(sleeper(), napper()) }).await;
    let [first, second] = &stacks[..] else { panic!("{stacks:#?}") };
    assert!(has(first, "sleeper") && !has(first, "napper"), "{first:#?}");
    assert!(has(second, "napper") && !has(second, "sleeper"), "{second:#?}");
    let (_, stacks) = waiting(async {
        tokio::select! {
            biased;
            () = pending() => {}
            () = napper() => {}
        }
    })
    .await;
    assert_one(&stacks, "napper", "tokio::time::sleep");
}

#[tokio::test]
async fn wrapped_children_have_their_places() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let mut children: FuturesUnordered<_> = (0..3).map(|_| napper()).collect();
    let (_, stacks) = waiting(children.next()).await;
    let [stack] = &stacks[..] else { panic!("{stacks:#?}") };
    assert!(!has(stack, "napper") && is_of(stack, "FuturesUnordered"), "{stack:#?}");
    let mut children: FuturesUnordered<_> = (0..3).map(|_| Timed::new(3, napper())).collect();
    let numbers: Vec<u64> = children.iter().map(|child| child.who.task).collect();
    waiting(children.next()).await;
    for number in numbers {
        let child = living_task(number);
        assert_eq!(child.places.len(), 1, "{child:?}");
        assert!(has(&stack_of(&child), "napper"));
    }
}

/// A leaf of which two places differ in the middle alone: where this awaits it.
async fn by_way(is_first: bool, kept: &Mutex<Option<Waker>>) {
    if is_first {
        loyal(kept).await;
    }
    loyal(kept).await;
}

/// How many functions this thread's walks have met.
fn walked() -> u64 {
    let counts = claim(identity::tid()).expect("no walk goes on").counts();
    counts.rules + counts.searched
}

#[test]
fn places_of_other_tasks_are_found_without_walks() {
    let _alone = ALONE.blocking_lock();
    let _on = on();
    // A task of its own each time, so that it has no place yet.
    let place_by = |is_first| {
        let kept = Mutex::new(None);
        let mut task = pin!(Timed::new(3, by_way(is_first, &kept)));
        let before = walked();
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        (living_task(task.who.task).places[0], walked() - before)
    };
    for is_first in [true, false] {
        let (place, functions) = place_by(is_first);
        assert!(functions > 0 && has(&stack(place), "by_way"));
        for _ in 0..5 {
            assert_eq!(place_by(is_first), (place, 0));
        }
    }
    // Their depth and their innermost callers are the same.
    assert_ne!(place_by(true).0, place_by(false).0);
}

#[tokio::test]
async fn what_takes_no_waker_waits_for_nothing() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (task, _) = waiting(pending::<()>()).await;
    assert!(!task.has_waker && task.places.is_empty(), "{task:?}");
    assert_eq!(wake_unplaced(), 0, "nothing can wake it");
}

#[tokio::test]
async fn tasks_from_before_are_woken_once() {
    let _alone = ALONE.lock().await;
    let (_waiting, placing) = on();
    drop(placing);
    let runtime = Arc::new(Runtime(0.into()));
    let waker = Waker::from(runtime.clone());
    let mut cx = Context::from_waker(&waker);
    let kept = Mutex::new(None);
    let mut future = pin!(Timed::new(3, loyal(&kept)));
    let task = future.who.task;
    assert!(future.as_mut().poll(&mut cx).is_pending());
    let _placing = Placing::start().unwrap();
    assert!(living_task(task).places.is_empty());
    let wakers = Arc::strong_count(&runtime);
    assert_eq!(wake_unplaced(), 1);
    assert_eq!(living_task(task).state, TaskState::Runnable);
    assert_eq!(wake_unplaced(), 0, "it is runnable already");
    assert_eq!((runtime.0.load(Relaxed), Arc::strong_count(&runtime)), (1, wakers));
    // A leaf that has a waker takes the one of this poll.
    assert!(future.as_mut().poll(&mut cx).is_pending());
    let task = living_task(task);
    assert!(task.state == TaskState::Awaiting && has(&stack_of(&task), "loyal"), "{task:?}");
    assert_eq!(Arc::strong_count(&runtime), wakers);
    assert_eq!(wake_unplaced(), 0, "its place is known");
}

#[tokio::test]
async fn nobody_is_woken_for_no_places() {
    let _alone = ALONE.lock().await;
    let _waiting = Waiting::start().unwrap();
    let kept = Mutex::new(None);
    let futures: [_; 3] = std::array::from_fn(|_| Timed::new(3, loyal(&kept)));
    let mut futures = futures.map(Box::pin);
    let mut cx = Context::from_waker(Waker::noop());
    for future in &mut futures {
        // Each keeps a waker of its own.
        let other = kept.lock().unwrap().take();
        assert!(future.as_mut().poll(&mut cx).is_pending());
        std::mem::forget(other);
    }
    assert_eq!(wake_unplaced(), 0);
    let _placing = Placing::start().unwrap();
    let (mut woken, mut next) = (0, Some(0));
    while let Some(from) = next {
        let part = wake_unplaced_part(from, 1);
        assert!(part.woken <= 1);
        (woken, next) = (woken + part.woken, part.next);
    }
    assert_eq!(woken, 3);
}

#[tokio::test]
async fn yields_are_known_by_their_place() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let yields = |stacks: &[Vec<SourceFrame>]| {
        stacks.iter().flatten().filter(|frame| is_yield(&frame.function)).count()
    };
    let (_, stacks) = waiting(tokio::task::yield_now()).await;
    assert_eq!(yields(&stacks), 1, "{stacks:?}");
    let (_, stacks) = waiting(tokio::time::sleep(LONG)).await;
    assert_eq!((stacks.len(), yields(&stacks)), (1, 0), "{stacks:?}");
    // By its budget, which is the test's own and is used up then.
    let (to, mut from) = mpsc::unbounded_channel();
    let (_, stacks) = waiting(async {
        loop {
            to.send(()).unwrap();
            from.recv().await;
        }
    })
    .await;
    assert_eq!(yields(&stacks), 1, "{stacks:?}");
}

#[tokio::test]
async fn places_are_noted_since_somebody_asks() {
    let _alone = ALONE.lock().await;
    assert_eq!(noted_for(), None);
    let first = Placing::start().unwrap();
    dormouse_testkit::eventually(|| noted_for() > Some(Duration::from_millis(50)));
    let long = noted_for();
    let second = Placing::start().unwrap();
    drop(first);
    assert!(noted_for() >= long, "one after the other, without a gap");
    drop(second);
    assert_eq!(noted_for(), None);
    let before = Instant::now();
    let _third = Placing::start().unwrap();
    let noted = noted_for().unwrap();
    assert!(noted <= before.elapsed(), "a gap ends it: {noted:?}");
}

/// The waker that [`clone_there`] clones, and the clones.
static THERE: Mutex<Option<Waker>> = Mutex::new(None);
static CLONES: Mutex<Vec<Waker>> = Mutex::new(Vec::new());

extern "C" fn clone_there(_: libc::c_int) {
    let there = THERE.lock().unwrap().as_ref().unwrap().clone();
    CLONES.lock().unwrap().push(there);
}

/// Clones the waker on a stack that is not the thread's own, as a fiber does.
#[allow(unsafe_code)]
fn clone_on_another_stack() {
    let stack = vec![0_u8; 1 << 17].leak();
    let alternate = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    // SAFETY: a stack that stays; the handler waits for nothing that its thread has.
    unsafe {
        assert_eq!(libc::sigaltstack(&raw const alternate, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = clone_there as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        libc::raise(libc::SIGUSR1);
    }
}

#[tokio::test]
async fn a_clone_on_anothers_fiber_is_no_place() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let future = poll_fn(|cx| {
        *THERE.lock().unwrap() = Some(cx.waker().clone());
        std::thread::scope(|scope| scope.spawn(clone_on_another_stack).join().unwrap());
        Poll::<()>::Pending
    });
    let (task, stacks) = waiting(future).await;
    assert_eq!(stacks.len(), 1, "{task:?}");
    assert_eq!(CLONES.lock().unwrap().len(), 1);
    *THERE.lock().unwrap() = None;
    CLONES.lock().unwrap().clear();
}

#[tokio::test]
async fn a_clone_elsewhere_is_no_place() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let kept = Mutex::new(None);
    let mut future = pin!(Timed::new(3, loyal(&kept)));
    let task = future.who.task;
    let mut cx = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_pending());
    let before = (living_task(task).places, place_coverage());
    let clone = || kept.lock().unwrap().clone().unwrap();
    // Between polls, here and on another thread.
    let clones = [clone(), std::thread::scope(|scope| scope.spawn(clone).join().unwrap())];
    assert_eq!((living_task(task).places, place_coverage()), before);
    drop(clones);
}

#[tokio::test]
async fn waits_add_up_by_place() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let mut await_ns = 0;
    let own = number();
    Timed::numbered(own, 17, async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        await_ns = living_task(own).await_ns;
    })
    .await;
    let times: Vec<_> = times_by_place().into_iter().filter(|time| time.group == 17).collect();
    let [time] = times[..] else { panic!("{times:?}") };
    assert_eq!(time.waits, 3);
    assert!(is_of(&stack(time.place), "tokio::time::sleep"));
    assert!(time.ns.abs_diff(await_ns) < 10, "{time:?} {await_ns}");
}

#[test]
fn a_place_is_known_the_second_time() {
    in_child(|| {
        let _on = (Waiting::start().unwrap(), Placing::start().unwrap());
        let mut cx = Context::from_waker(Waker::noop());
        let mut polled = || {
            let kept = Mutex::new(None);
            let mut future = pin!(Timed::new(3, loyal(&kept)));
            assert!(future.as_mut().poll(&mut cx).is_pending());
            (living_task(future.who.task).places, wake_unplaced())
        };
        assert_eq!(polled(), (vec![UNLEARNED_PLACE], 1), "a wake shows where it waits");
        assert_eq!((place_coverage().unlearned, place(UNLEARNED_PLACE)), (1, None));
        // All functions of so short a stack are one batch.
        eventually(|| !learn());
        let (places, woken) = polled();
        assert!(has(&stack(places[0]), "loyal") && woken == 0, "{places:?}");
        assert_eq!(place(places[0]).unwrap().end, WalkEnd::Outermost);
        assert_eq!(place_coverage(), PlaceCoverage { unlearned: 1, ..PlaceCoverage::default() });
    });
}

//! The place of a wait is where the task waits now.

use crate::support;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dormouse_profile::SourceFrame;
use dormouse_profile::sets::parts_of;
use dormouse_unwind::WalkEnd;
use dormouse_waits::places::place;
use dormouse_waits::{LivingTask, PartWaits, Placing, TaskState, times_by_place};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use support::stacks::{
    ALONE, Runtime, assert_one, has, is_of, loyal, napper, on, reader, receiver, sleeper, stack, stacks,
    waiting,
};
use support::{Counting, Timed, living_task, number, timed};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

#[tokio::test]
async fn a_leaf_polled_again_has_its_place() {
    let _alone = ALONE.lock().await;
    let on = on();
    let kept = Mutex::new(None);
    let mut future = pin!(Timed::new(3, loyal(&kept)));
    let task = future.who.task;
    let mut cx = Context::from_waker(Waker::noop());
    let mut first = Vec::new();
    for n in 0..5 {
        assert!(future.as_mut().poll(&mut cx).is_pending());
        let now = living_task(task);
        first = if n == 0 { now.places.clone() } else { first };
        assert!(has(&stack(first[0]), "loyal"));
        assert_eq!((&now.places, now.polls_ago, now.has_more_places), (&first, 0, false));
    }
    // While nobody asks, a leaf that is polled takes a waker without a place.
    drop(on.1);
    assert_eq!(living_task(task).places, first);
    assert!(future.as_mut().poll(&mut cx).is_pending());
    assert!(living_task(task).places.is_empty() && living_task(task).has_waker);
    let _placing = Placing::start().unwrap();
    assert!(future.as_mut().poll(&mut cx).is_pending());
    assert_eq!(living_task(task).places, first);
    *kept.lock().unwrap() = None;
    assert!(living_task(task).places.is_empty() && !living_task(task).has_waker);
}

/// A task that is polled until it says that it is at its last wait; what it is then, and the stacks
/// of its places.
async fn waiting_at_last<F: Future>(
    future: impl FnOnce(Arc<AtomicBool>) -> F,
) -> (LivingTask, Vec<Vec<SourceFrame>>) {
    let is_last = Arc::new(AtomicBool::new(false));
    let mut future = pin!(Timed::new(3, future(is_last.clone())));
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        if is_last.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let task = living_task(future.who.task);
    let stacks = task.places.iter().map(|&place| stack(place)).collect();
    (task, stacks)
}

async fn short() {
    tokio::time::sleep(Duration::from_millis(2)).await;
}

#[tokio::test]
async fn a_finished_wait_is_no_place() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (_to, mut from) = mpsc::channel(1);
    let (task, stacks) = waiting_at_last(|is_last| async move {
        // The sleep takes a waker before it finds that it is over.
        short().await;
        is_last.store(true, Relaxed);
        receiver(&mut from).await;
    })
    .await;
    assert_one(&stacks, "receiver", "mpsc");
    assert_eq!(task.polls_ago, 0);
}

#[tokio::test]
async fn a_kept_waker_takes_its_place_again() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let _peer = listener.accept().await.unwrap();
    let (_, stacks) = waiting_at_last(|is_last| async move {
        // The socket keeps the waker of a read that is given up.
        let _ = tokio::time::timeout(Duration::from_millis(1), reader(&mut stream)).await;
        short().await;
        is_last.store(true, Relaxed);
        reader(&mut stream).await;
    })
    .await;
    assert_one(&stacks, "reader", "tokio::");
}

#[tokio::test]
async fn finished_branches_are_no_places() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (_, stacks) = waiting_at_last(|is_last| async move {
        let quick = async {
            short().await;
            is_last.store(true, Relaxed);
        };
        tokio::join!(quick, napper())
    })
    .await;
    assert_one(&stacks, "napper", "tokio::time::sleep");
}

#[tokio::test]
async fn a_task_in_a_poll_waits_nowhere() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let own = number();
    let mut seen = None;
    Timed::numbered(own, 3, async {
        short().await;
        seen = Some(living_task(own));
    })
    .await;
    let seen = seen.unwrap();
    assert!(seen.state == TaskState::Polled && seen.places.is_empty(), "{seen:?}");
}

#[tokio::test]
async fn a_woken_task_has_the_place_that_woke() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (first, second) = (Mutex::new(None), Mutex::new(None));
    let both = async { tokio::join!(loyal(&first), eager(&second)) };
    let mut future = pin!(Timed::new(18, both));
    let task = future.who.task;
    let mut cx = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_pending());
    let places = living_task(task).places;
    let [of_loyal, of_eager] = places[..] else { panic!("{places:?}") };
    assert!(has(&stack(of_loyal), "loyal") && has(&stack(of_eager), "eager"));
    // By value, so that it is gone when the poll comes.
    second.lock().unwrap().take().unwrap().wake();
    let woken = living_task(task);
    assert_eq!((woken.state, woken.places), (TaskState::Runnable, vec![of_eager]));
    assert!(future.as_mut().poll(&mut cx).is_pending());
    // A wait without a wake is at both.
    assert!(future.as_mut().poll(&mut cx).is_pending());
    let waits = |place| {
        let times = times_by_place().into_iter().filter(|time| time.group == 18 && time.place == place);
        times.map(|time| time.waits).sum::<u64>()
    };
    // Each has the wait that lasts, too.
    assert_eq!((waits(of_loyal), waits(of_eager)), (2, 3));
}

#[tokio::test]
async fn a_wake_in_the_poll_keeps_its_place() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let kept = Mutex::new(None);
    let mut future = pin!(timed(async { tokio::join!(yields(), eager(&kept)) }));
    let task = future.who.task;
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        // The waker that wakes is gone before the other leaf takes one.
        assert!(future.as_mut().poll(&mut cx).is_pending());
        let woken = living_task(task);
        let [place] = woken.places[..] else { panic!("{woken:?}") };
        assert!(woken.state == TaskState::Runnable && has(&stack(place), "yields"), "{woken:?}");
    }
}

async fn yields() {
    poll_fn(|cx| {
        // Of the leaf, not the lent one.
        let own = cx.waker().clone();
        own.wake();
        Poll::<()>::Pending
    })
    .await;
}

#[tokio::test]
async fn a_waker_without_a_place_tells_none() {
    let _alone = ALONE.lock().await;
    let on = on();
    drop(on.1);
    let (first, second) = (Mutex::new(None), Mutex::new(None));
    let once = poll_fn(|cx| {
        first.lock().unwrap().get_or_insert_with(|| cx.waker().clone());
        Poll::<()>::Pending
    });
    let mut future = pin!(timed(async { tokio::join!(once, eager(&second)) }));
    let task = future.who.task;
    let mut cx = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_pending());
    let _placing = Placing::start().unwrap();
    assert!(future.as_mut().poll(&mut cx).is_pending());
    assert!(has(&stack(living_task(task).places[0]), "eager"));
    first.lock().unwrap().as_ref().unwrap().wake_by_ref();
    let woken = living_task(task);
    assert_eq!((woken.state, woken.places), (TaskState::Runnable, vec![]));
}

/// Takes a waker at each poll.
async fn eager(kept: &Mutex<Option<Waker>>) {
    poll_fn(|cx| {
        *kept.lock().unwrap() = Some(cx.waker().clone());
        Poll::<()>::Pending
    })
    .await;
}

/// Keeps each waker that it is given, unless one of them would do.
async fn hoarder(kept: &Mutex<Vec<Waker>>) {
    poll_fn(|cx| {
        let mut kept = kept.lock().unwrap();
        if !kept.iter().any(|kept| kept.will_wake(cx.waker())) {
            kept.push(cx.waker().clone());
        }
        Poll::<()>::Pending
    })
    .await;
}

#[tokio::test]
async fn a_leaf_that_compares_holds_eight_wakers() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let hoards = [Mutex::new(Vec::new()), Mutex::new(Vec::new())];
    let kept = Mutex::new(None);
    let leaves = async { tokio::join!(hoarder(&hoards[0]), loyal(&kept), hoarder(&hoards[1])) };
    let mut future = pin!(Timed::new(3, leaves));
    let task = future.who.task;
    let waker = Waker::from(Arc::new(Runtime(0.into())));
    let mut cx = Context::from_waker(&waker);
    for _ in 0..1_000_000 {
        assert!(future.as_mut().poll(&mut cx).is_pending());
    }
    let held = hoards.each_ref().map(|hoard| hoard.lock().unwrap().len());
    assert!(held.iter().all(|held| (1..=8).contains(held)), "{held:?}");
    // The leaf that takes a waker at each poll is seen; the others' places are older.
    let now = living_task(task);
    assert!(now.polls_ago == 0 && has(&stack(now.places[0]), "loyal"), "{now:?}");
    *kept.lock().unwrap() = None;
    let now = living_task(task);
    assert!(now.polls_ago > 900_000 && has(&stack(now.places[0]), "hoarder"), "{now:?}");
    hoards[0].lock().unwrap().clear();
    hoards[1].lock().unwrap().clear();
    assert!(living_task(task).places.is_empty() && !living_task(task).has_waker);
}

#[tokio::test]
async fn a_leaf_polled_often_holds_few_wakers() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let kept = Mutex::new(Vec::new());
    let mut leaf = pin!(hoarder(&kept));
    let often = poll_fn(|cx| {
        for _ in 0..1000 {
            assert!(leaf.as_mut().poll(cx).is_pending());
        }
        Poll::<()>::Pending
    });
    let mut future = pin!(timed(often));
    let task = future.who.task;
    let waker = Waker::from(Arc::new(Runtime(0.into())));
    let mut cx = Context::from_waker(&waker);
    for poll in 0..10 {
        assert!(future.as_mut().poll(&mut cx).is_pending());
        let held = kept.lock().unwrap().len();
        // For each of two turns, 64 wakers of the registration and a copy of the lent one.
        assert!((1..=2 * (64 + 1)).contains(&held), "{held} wakers after {poll} polls");
    }
    let [place] = living_task(task).places[..] else { panic!() };
    assert!(has(&stack(place), "hoarder"));
    kept.lock().unwrap().clear();
    assert!(living_task(task).places.is_empty() && !living_task(task).has_waker);
}

/// `depth` futures, one in the other, around a sleep.
fn nested(depth: usize) -> Pin<Box<dyn Future<Output = ()>>> {
    match depth {
        0 => Box::pin(sleeper()),
        _ => Box::pin(async move { nested(depth - 1).await }),
    }
}

#[tokio::test]
async fn deep_stacks_are_marked_as_cut() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (deep, stacks) = waiting(nested(200)).await;
    assert!(has(&stacks[0], "sleeper"), "{stacks:#?}");
    // The middle is missing, the outermost is there; it may be inlined into others.
    let is_nested = |frame: &SourceFrame| has(std::slice::from_ref(frame), "nested");
    let outside = stacks[0].iter().rposition(is_nested).unwrap() + 1;
    assert!(is_of(&stacks[0][outside..], "waits::task"), "{stacks:#?}");
    let (flat, _) = waiting(nested(0)).await;
    let [deep, flat] = [deep, flat].map(|task| place(task.places[0]).unwrap());
    assert_eq!((deep.end, deep.stack.len(), deep.inner), (WalkEnd::Enough, 128, 64));
    assert_eq!((flat.end, flat.inner), (WalkEnd::Outermost, flat.stack.len()));
}

#[tokio::test]
async fn waits_may_differ_in_the_midst() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (mut first, mut second) = (pin!(boxed_sleeper()), pin!(boxed_napper()));
    let mut is_second = false;
    let future = poll_fn(move |cx| {
        is_second = !is_second;
        // The same leaf, at the same depth and from the same line.
        let future: [Pin<&mut dyn Future<Output = ()>>; 2] = [first.as_mut(), second.as_mut()];
        let [first, second] = future;
        if is_second { second } else { first }.poll(cx)
    });
    let mut future = pin!(Timed::new(3, future));
    let task = future.who.task;
    for n in 0..6 {
        poll_fn(|cx| {
            assert!(future.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let places = living_task(task).places;
        let [place] = places[..] else { panic!("{places:?}") };
        let right = if n % 2 == 0 { "napper" } else { "sleeper" };
        assert!(has(&stack(place), right), "{n}: {:#?}", stack(place));
    }
}

async fn boxed_sleeper() {
    Box::pin(sleeper()).await;
}

async fn boxed_napper() {
    Box::pin(napper()).await;
}

#[tokio::test]
async fn more_leaves_than_room_are_told() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (task, _) = waiting(async {
        tokio::join!(
            sleeper(),
            sleeper(),
            sleeper(),
            sleeper(),
            sleeper(),
            sleeper(),
            sleeper(),
            sleeper(),
            sleeper()
        )
    })
    .await;
    assert_eq!((task.places.len(), task.has_more_places), (7, true), "{task:?}");
    let (task, _) = waiting(async { tokio::join!(sleeper(), sleeper(), sleeper()) }).await;
    assert_eq!((task.places.len(), task.has_more_places), (3, false), "{task:?}");
}

/// A part of a set.
struct InSet<F>(Pin<Box<F>>, PartWaits);

impl<F: Future> Future for InSet<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self(future, waits) = &mut *self;
        waits.poll(cx, |cx| future.as_mut().poll(cx))
    }
}

#[tokio::test]
async fn parts_of_a_set_have_their_places() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (to, mut from) = mpsc::channel(1);
    let is_last = Arc::new(AtomicBool::new(false));
    let parts = async {
        let part = |future: Pin<Box<dyn Future<Output = ()>>>| InSet(Box::pin(future), PartWaits::default());
        let mut set: FuturesUnordered<_> = FuturesUnordered::new();
        set.push(part(Box::pin(napper())));
        set.push(part(Box::pin(receiver(&mut from))));
        set.push(part(Box::pin(short())));
        for _ in 0..30 {
            set.push(part(Box::pin(short())));
        }
        while set.len() > 2 {
            set.next().await;
        }
        is_last.store(true, Relaxed);
        set.next().await;
        set.next().await;
    };
    let mut future = pin!(Timed::new(19, parts));
    let number = future.who.task;
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        if is_last.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let task = living_task(number);
    let stacks = stacks(&task.places);
    let at = |function: &str| stacks.iter().filter(|stack| has(stack, function)).count();
    assert_eq!((at("napper"), at("receiver"), at("short")), (1, 1, 0), "{task:?}");
    assert!(stacks.iter().all(|stack| is_of(stack, "futures_unordered")), "{stacks:#?}");
    // Names tell the set from its parts.
    let called: Vec<Vec<_>> =
        stacks.iter().map(|stack| stack.iter().map(SourceFrame::called).collect()).collect();
    let of_sets: Vec<_> = (0..called.len()).map(|set| parts_of(set, &called).len()).collect();
    assert_eq!((of_sets.iter().sum::<usize>(), of_sets.iter().max()), (2, Some(&2)), "{stacks:#?}");
    // The part that wakes has the wait.
    let receives = task.places[stacks.iter().position(|stack| has(stack, "receiver")).unwrap()];
    let waits = || {
        let time = times_by_place().into_iter().find(|time| (time.group, time.place) == (19, receives));
        time.map_or(0, |time| time.waits)
    };
    to.send(()).await.unwrap();
    let woken = living_task(number);
    assert_eq!((woken.state, woken.places), (TaskState::Runnable, vec![receives]));
    let before = waits();
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    assert_eq!(waits(), before + 1);
}

#[tokio::test]
async fn a_part_may_go_to_another_task() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (runtime, set) = (Arc::new(Counting::default()), Arc::new(Counting::default()));
    let kept = Mutex::new(None);
    let part = RefCell::new(Some(Box::pin(InSet(Box::pin(loyal(&kept)), PartWaits::default()))));
    let of_set = set.waker();
    let polls_part = || {
        poll_fn(|_| {
            let mut part = part.borrow_mut();
            part.as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&of_set))
        })
    };
    let (mut one, mut other) = (Box::pin(timed(polls_part())), Box::pin(timed(polls_part())));
    let numbers = [one.who.task, other.who.task];
    let places = |at: usize| living_task(numbers[at]).places;
    let waker = runtime.waker();
    let mut cx = Context::from_waker(&waker);
    assert!(one.as_mut().poll(&mut cx).is_pending());
    let first = places(0);
    assert!(has(&stack(first[0]), "loyal"));
    assert!(one.as_mut().poll(&mut cx).is_pending());
    assert_eq!(places(0), first);
    assert!(other.as_mut().poll(&mut cx).is_pending());
    assert!(places(0).is_empty() && has(&stack(places(1)[0]), "loyal"));
    drop(one);
    kept.lock().unwrap().as_ref().unwrap().wake_by_ref();
    assert_eq!((living_task(numbers[1]).state, set.wakes()), (TaskState::Runnable, 1));
    // The waker outlives the part, and the task.
    drop((other, part.borrow_mut().take()));
    assert_eq!((set.alive(), runtime.alive()), (1, 0));
    kept.lock().unwrap().take().unwrap().wake();
    assert_eq!((set.alive(), set.wakes()), (0, 2));
}

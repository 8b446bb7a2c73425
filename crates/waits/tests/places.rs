//! The place of a wait is the function that awaits, for each kind of leaf.

mod support;

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use dormouse_profile::{NameFinder, Node, Profile, SourceFrame, is_yield};
use dormouse_waits::places::{UNKNOWN_PLACE, noted_for, place, place_coverage};
use dormouse_waits::{
    LivingTask, Placing, TaskState, Waiting, times_by_place, wake_unplaced, wake_unplaced_part,
};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use support::{Timed, living_task, number};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Longer than a test.
const LONG: Duration = Duration::from_secs(1000);

/// One test at a time asks for places, or asks for none.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The functions of a place, the innermost first.
fn stack(number: u32) -> Vec<SourceFrame> {
    let Some(place) = place(number) else { return Vec::new() };
    let stacks = place.stack.iter().map(|&address| Node { parent: 0, address }).collect();
    let profile = Profile { stacks, ..Profile::default() };
    let symbols = NameFinder::own().unwrap().symbols(&profile);
    place.stack.iter().flat_map(|&address| symbols.get(address).to_vec()).collect()
}

/// A task that has been polled once, and waits; what it is then, and the stacks of its places.
async fn waiting<F: Future>(future: F) -> (LivingTask, Vec<Vec<SourceFrame>>) {
    let mut future = pin!(Timed::new(3, future));
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    let task = living_task(future.who.task);
    let stacks = task.places.iter().map(|&place| stack(place)).collect();
    (task, stacks)
}

/// Whether a line of that function of this file is there. (The stacks of functions that are inlined
/// say no more than `async_fn`.)
fn has(stack: &[SourceFrame], function: &str) -> bool {
    let lines = || include_str!("places.rs").lines().zip(1_u32..);
    let begin = lines().find(|(line, _)| line.contains(&format!("fn {function}("))).unwrap().1;
    let end = lines().find(|(line, number)| *number > begin && *line == "}").unwrap().1;
    stack.iter().any(|frame| frame.file.ends_with("places.rs") && (begin..=end).contains(&frame.line))
}

fn is_of(stack: &[SourceFrame], library: &str) -> bool {
    stack.iter().any(|frame| frame.function.contains(library))
}

/// One place, in which `function` awaits something of `leaf`, and none of our own functions is.
#[track_caller]
fn assert_one(stacks: &[Vec<SourceFrame>], function: &str, leaf: &str) {
    let [stack] = stacks else { panic!("{stacks:?}") };
    assert!(has(stack, function) && is_of(stack, leaf), "{stack:#?}");
    let innermost = stack.first().unwrap();
    assert!(!innermost.file.contains("waits/src"), "{innermost:?}");
}

fn on() -> (Waiting, Placing) {
    (Waiting::start().unwrap(), Placing::start().unwrap())
}

/// As [`on`], where this program keeps frame pointers.
#[track_caller]
fn on_with_stacks() -> Option<(Waiting, Placing)> {
    if keeps_frame_pointers() {
        return Some(on());
    }
    dormouse_testkit::skip("this program has no frame pointers");
    None
}

#[inline(never)]
fn keeps_frame_pointers() -> bool {
    let bytes = std::hint::black_box([0_u8; 64]);
    let (frame, stack) = dormouse_sys::stack::here();
    let end = bytes.as_ptr_range().end.addr();
    (end..stack + 4096).contains(&frame)
}

async fn receiver(from: &mut mpsc::Receiver<()>) {
    from.recv().await;
}

async fn sleeper() {
    tokio::time::sleep(LONG).await;
}

async fn napper() {
    tokio::time::sleep(LONG).await;
}

async fn locker(lock: &tokio::sync::Mutex<()>) {
    drop(lock.lock().await);
}

async fn reader(from: &mut TcpStream) {
    let mut bytes = [0; 8];
    let mut bytes = ReadBuf::new(&mut bytes);
    let _ = poll_fn(|cx| Pin::new(&mut *from).poll_read(cx, &mut bytes)).await;
}

#[tokio::test]
async fn channels_are_places() {
    let _alone = ALONE.lock().await;
    let Some(_on) = on_with_stacks() else { return };
    let (_to, mut from) = mpsc::channel(1);
    let (task, stacks) = waiting(receiver(&mut from)).await;
    assert_one(&stacks, "receiver", "mpsc");
    assert!(task.has_waker);
}

#[tokio::test]
async fn sleeps_are_places() {
    let _alone = ALONE.lock().await;
    let Some(_on) = on_with_stacks() else { return };
    assert_one(&waiting(sleeper()).await.1, "sleeper", "tokio::time::sleep");
}

#[tokio::test]
async fn locks_are_places() {
    let _alone = ALONE.lock().await;
    let Some(_on) = on_with_stacks() else { return };
    let lock = tokio::sync::Mutex::new(());
    let _held = lock.lock().await;
    assert_one(&waiting(locker(&lock)).await.1, "locker", "semaphore");
}

#[tokio::test]
async fn sockets_are_places() {
    let _alone = ALONE.lock().await;
    let Some(_on) = on_with_stacks() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let _peer = listener.accept().await.unwrap();
    assert_one(&waiting(reader(&mut stream)).await.1, "reader", "tokio::");
}

#[tokio::test]
async fn branches_have_their_places() {
    let _alone = ALONE.lock().await;
    let Some(_on) = on_with_stacks() else { return };
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
    let Some(_on) = on_with_stacks() else { return };
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

fn stack_of(task: &LivingTask) -> Vec<SourceFrame> {
    stack(task.places[0])
}

#[tokio::test]
async fn what_takes_no_waker_waits_for_nothing() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let (task, _) = waiting(pending::<()>()).await;
    assert!(!task.has_waker && task.places.is_empty(), "{task:?}");
    assert_eq!(wake_unplaced(), 0, "nothing can wake it");
}

/// Keeps the first waker that it is given, as long as it would wake the same task.
async fn loyal(kept: &Mutex<Option<Waker>>) {
    poll_fn(|cx| {
        let mut kept = kept.lock().unwrap();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(cx.waker())) {
            *kept = Some(cx.waker().clone());
        }
        Poll::<()>::Pending
    })
    .await;
}

#[tokio::test]
async fn a_leaf_polled_again_has_its_place() {
    let _alone = ALONE.lock().await;
    let Some(on) = on_with_stacks() else { return };
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
    let Some(_on) = on_with_stacks() else { return };
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
    let Some(_on) = on_with_stacks() else { return };
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
    let Some(_on) = on_with_stacks() else { return };
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
    let Some(_on) = on_with_stacks() else { return };
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
    let Some(_on) = on_with_stacks() else { return };
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
    let Some(_on) = on_with_stacks() else { return };
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

/// So many futures one in the other, around a sleep.
fn nested(depth: usize) -> Pin<Box<dyn Future<Output = ()>>> {
    match depth {
        0 => Box::pin(sleeper()),
        _ => Box::pin(async move { nested(depth - 1).await }),
    }
}

#[tokio::test]
async fn deep_stacks_are_marked_as_cut() {
    let _alone = ALONE.lock().await;
    let Some(_on) = on_with_stacks() else { return };
    let (deep, stacks) = waiting(nested(60)).await;
    assert!(has(&stacks[0], "sleeper"), "{stacks:#?}");
    let (flat, _) = waiting(nested(0)).await;
    let [deep, flat] = [deep, flat].map(|task| place(task.places[0]).unwrap());
    assert!(deep.is_cut && deep.stack.len() == 30, "{deep:?}");
    // Unoptimised code may be deeper.
    assert!(flat.is_cut == (flat.stack.len() == 30) && flat.number != deep.number, "{flat:?}");
}

#[tokio::test]
async fn waits_that_differ_in_the_midst_are_two_places() {
    let _alone = ALONE.lock().await;
    let Some(_on) = on_with_stacks() else { return };
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
    let Some(_on) = on_with_stacks() else { return };
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

/// Counts wakes.
struct Runtime(std::sync::atomic::AtomicUsize);

impl Wake for Runtime {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[tokio::test]
async fn tasks_from_before_are_woken_once() {
    let _alone = ALONE.lock().await;
    let Some((_waiting, placing)) = on_with_stacks() else { return };
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
    let Some(_on) = on_with_stacks() else { return };
    let yields = |stacks: &[Vec<SourceFrame>]| {
        stacks.iter().flatten().filter(|frame| is_yield(&frame.function)).count()
    };
    let (_, stacks) = waiting(tokio::task::yield_now()).await;
    assert_eq!(yields(&stacks), 1, "{stacks:?}");
    // By its budget.
    let (to, mut from) = mpsc::unbounded_channel();
    let (_, stacks) = waiting(async {
        loop {
            to.send(()).unwrap();
            from.recv().await;
        }
    })
    .await;
    assert_eq!(yields(&stacks), 1, "{stacks:?}");
    let (_, stacks) = waiting(tokio::time::sleep(LONG)).await;
    assert_eq!((stacks.len(), yields(&stacks)), (1, 0), "{stacks:?}");
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
    let Some(_on) = on_with_stacks() else { return };
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
    let Some(_on) = on_with_stacks() else { return };
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
    assert_eq!(is_of(&stack(time.place), "tokio::time::sleep"), keeps_frame_pointers());
    assert!(time.ns.abs_diff(await_ns) < 10, "{time:?} {await_ns}");
}

#[tokio::test]
async fn stacks_that_are_unknown_are_counted() {
    let _alone = ALONE.lock().await;
    let _on = on();
    let before = place_coverage();
    let kept = Mutex::new(None);
    let (task, _) = waiting(loyal(&kept)).await;
    let is_unknown = task.places == [UNKNOWN_PLACE];
    assert_eq!(is_unknown, !keeps_frame_pointers(), "{task:?}");
    assert_eq!(place_coverage().unknown - before.unknown, u64::from(is_unknown));
    assert_eq!(place(UNKNOWN_PLACE), None);
}

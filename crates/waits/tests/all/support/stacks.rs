//! The places of tasks, by name, and the leaves that tests await.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use super::{Timed, living_task};
use dormouse_profile::{NameFinder, Node, Profile, SourceFrame};
use dormouse_unwind::own;
use dormouse_waits::places::place;
use dormouse_waits::{LivingTask, Placing, Waiting};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Longer than a test.
pub(crate) const LONG: Duration = Duration::from_secs(1000);

/// One test at a time asks for places, or asks for none.
pub(crate) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The functions of a place, the innermost first.
pub(crate) fn stack(number: u32) -> Vec<SourceFrame> {
    stacks(&[number]).remove(0)
}

/// The functions of places, with names that are found at once.
pub(crate) fn stacks(numbers: &[u32]) -> Vec<Vec<SourceFrame>> {
    let places: Vec<Vec<u64>> =
        numbers.iter().map(|&number| place(number).map_or_else(Vec::new, |place| place.stack)).collect();
    let stacks = places.iter().flatten().map(|&address| Node { parent: 0, address }).collect();
    let profile = Profile { stacks, ..Profile::default() };
    let symbols = NameFinder::own().unwrap().symbols(&profile);
    let named = |place: &Vec<u64>| place.iter().flat_map(|&at| symbols.get(at).to_vec()).collect();
    places.iter().map(named).collect()
}

/// A task that has been polled once, and waits; what it is then, and the stacks of its places.
pub(crate) async fn waiting<F: Future>(future: F) -> (LivingTask, Vec<Vec<SourceFrame>>) {
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

/// The sources of the functions for which tests look.
const SOURCES: [(&str, &str); 3] = [
    ("all/places.rs", include_str!("../places.rs")),
    ("all/present_places.rs", include_str!("../present_places.rs")),
    ("support/stacks.rs", include_str!("stacks.rs")),
];

/// Whether a line of that function of a test is there. (The stacks of functions that are inlined
/// say no more than `async_fn`.)
pub(crate) fn has(stack: &[SourceFrame], function: &str) -> bool {
    SOURCES.iter().any(|(file, text)| {
        let lines = || text.lines().zip(1_u32..);
        let begin = lines().find(|(line, _)| line.contains(&format!("fn {function}(")));
        let Some((_, begin)) = begin else { return false };
        let end = lines().find(|(line, number)| *number > begin && *line == "}").unwrap().1;
        stack.iter().any(|frame| frame.file.ends_with(file) && (begin..=end).contains(&frame.line))
    })
}

pub(crate) fn is_of(stack: &[SourceFrame], library: &str) -> bool {
    stack.iter().any(|frame| frame.function.contains(library))
}

/// One place, in which `function` awaits something of `leaf`, and none of our own functions is.
#[track_caller]
pub(crate) fn assert_one(stacks: &[Vec<SourceFrame>], function: &str, leaf: &str) {
    let [stack] = stacks else { panic!("{stacks:?}") };
    assert!(has(stack, function) && is_of(stack, leaf), "{stack:#?}");
    let innermost = stack.first().unwrap();
    assert!(!innermost.file.contains("waits/src"), "{innermost:?}");
}

/// Has times and places taken, with all functions of this program learned.
pub(crate) fn on() -> (Waiting, Placing) {
    let on = (Waiting::start().unwrap(), Placing::start().unwrap());
    assert!(own::learn_object(self::on as *const () as u64));
    on
}

pub(crate) async fn receiver(from: &mut mpsc::Receiver<()>) {
    from.recv().await;
}

pub(crate) async fn sleeper() {
    tokio::time::sleep(LONG).await;
}

pub(crate) async fn napper() {
    tokio::time::sleep(LONG).await;
}

pub(crate) async fn reader(from: &mut TcpStream) {
    let mut bytes = [0; 8];
    let mut bytes = ReadBuf::new(&mut bytes);
    let _ = poll_fn(|cx| Pin::new(&mut *from).poll_read(cx, &mut bytes)).await;
}

pub(crate) fn stack_of(task: &LivingTask) -> Vec<SourceFrame> {
    stack(task.places[0])
}

/// Keeps the first waker that it is given, as long as it would wake the same task.
pub(crate) async fn loyal(kept: &Mutex<Option<Waker>>) {
    poll_fn(|cx| {
        let mut kept = kept.lock().unwrap();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(cx.waker())) {
            *kept = Some(cx.waker().clone());
        }
        Poll::<()>::Pending
    })
    .await;
}

/// Counts wakes.
pub(crate) struct Runtime(pub(crate) std::sync::atomic::AtomicUsize);

impl Wake for Runtime {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

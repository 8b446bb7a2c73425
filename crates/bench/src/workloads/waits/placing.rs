//! `place/NAME`: a task whose leaf takes a waker at each poll, a given number of calls below it:
//! from the same stack each time (`taken`), from another one, which the task has not used lately
//! (`first`), or from one of several that differ neither in depth nor in the innermost caller, so
//! that each is walked (`walked`).

use std::future::Future;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dormouse_unwind::own;
use dormouse_waits::{Placing, Waiting, living, places};

use super::passers::Timed;
use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::Spec;
use crate::runner::Failure;

/// The frames of a place.
const FRAMES: usize = 16;

/// Adds the rows.
pub(crate) fn rows(bench: &mut Bench) {
    row(bench, "untaken", [leaf::<0>; WAYS], || Ok(Waiting::start()?));
    row(bench, "taken", [leaf::<0>; WAYS], || Ok((Waiting::start()?, Placing::start()?)));
    row(bench, "first", LEAVES, || Ok((Waiting::start()?, Placing::start()?)));
    row(bench, "walked", ALIKE, || Ok((Waiting::start()?, Placing::start()?)));
}

/// Compares them.
pub(crate) fn compare(bench: &mut Bench) {
    bench.added("place", "untaken", &["taken", "first", "walked"]);
    bench.at_most("a place of 16 frames again at most 20 ns", "place-added/taken", 20.0);
    bench.at_most("a place of 16 frames for the first time at most 0.3 us", "place-added/first", 300.0);
    bench.at_most("a place of 16 frames by a walk at most 0.3 us", "place-added/walked", 300.0);
}

fn row<H>(bench: &mut Bench, name: &str, ways: Ways, ready: impl Fn() -> Result<H, Failure> + 'static) {
    let spec = Spec::new(format!("place/{name}"), "ns").per("poll").cpu().with("frames", FRAMES);
    if bench.need(spec.clone(), has_frames()).is_none() {
        return;
    }
    bench.per_iteration(spec, move |polls| {
        let _held = ready()?;
        let began = thread_cpu_ns();
        poll(polls, ways);
        Ok(Duration::from_nanos(thread_cpu_ns() - began))
    });
}

/// Polls a task; what is known of it in the end.
fn poll(polls: u64, ways: Ways) -> Option<dormouse_waits::LivingTask> {
    let mut task = pin!(Timed::new(u64::MAX, Deep { ways, next: 0, waker: None }));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        let _pending = task.as_mut().poll(&mut cx);
    }
    if polls == 1 { living().find(|task| task.task == u64::MAX) } else { None }
}

fn has_frames() -> Result<(), Failure> {
    let _held = (Waiting::start()?, Placing::start()?);
    let place = |way| poll(1, [way; WAYS]).and_then(|task| places::place(*task.places.first()?));
    let ways = || LEAVES.into_iter().chain(ALIKE);
    // Functions are learned where they were met.
    ways().for_each(|way| drop(place(way)));
    own::learn_missed();
    let wrong = ways().map(place).find(|place| place.as_ref().is_none_or(|it| it.stack.len() != FRAMES));
    wrong.map_or(Ok(()), |place| Err(format!("a place of {FRAMES} functions is {place:?}").into()))
}

/// The number of ways to the leaf: more than places of which a waker is out at once.
const WAYS: usize = 4;

const LEAVES: Ways = [leaf::<0>, leaf::<1>, leaf::<2>, leaf::<3>];
const ALIKE: Ways = [alike::<0>, alike::<1>, alike::<2>, alike::<3>];

type Ways = [fn(usize, &Context<'_>) -> Waker; WAYS];

/// Takes another way at each poll.
struct Deep {
    ways: Ways,
    next: usize,
    waker: Option<Waker>,
}

impl Future for Deep {
    type Output = ();

    #[inline(never)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let way = self.ways[self.next];
        self.next = (self.next + 1) % WAYS;
        // Itself, the leaf, and the function that polls the task.
        self.waker = Some(way(FRAMES - 3, cx));
        Poll::Pending
    }
}

#[inline(never)]
fn leaf<const WAY: usize>(depth: usize, cx: &Context<'_>) -> Waker {
    // The ways are not one function, and no call is the last one, so that each has a frame.
    black_box(WAY);
    black_box(if depth == 0 { cx.waker().clone() } else { leaf::<WAY>(depth - 1, cx) })
}

/// Ways of the same depth to one leaf.
#[inline(never)]
fn alike<const WAY: usize>(depth: usize, cx: &Context<'_>) -> Waker {
    black_box(WAY);
    black_box(if depth == 1 { leaf::<0>(0, cx) } else { alike::<WAY>(depth - 1, cx) })
}

//! `request/…`: what it costs that the latency of a request begins before its task, and that its
//! outcome is known.
//!
//! An arrival costs less than a row differs from itself in another place of the memory. So a sample
//! has both kinds of requests, in short blocks by turns, through the same connection, and of each
//! kind the median of its blocks. The samples differ in their place on the stack, and in the group.
//! A third kind is the first one again: it shows how far apart two equal rows are.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use dormouse::tokio::{ServedStream, received};
use dormouse::{Group, Task, Waiting};
use dormouse_statistics::Statistics;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::runtime::Builder;

use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// Some 20 ns each.
const PAUSES: usize = 4;

/// The blocks of each kind in a sample, and the polls of a block.
const BLOCKS: usize = 25;
const BLOCK: u64 = 200;

/// The places that samples have by turns.
pub(super) const PLACES: usize = 16;

type Begin = fn(Group) -> Task;

/// The work of a request while it is current.
type Inside = fn();

/// How a request's task begins: at its handler, when it came, and at its handler again.
const BEGINS: [(&str, Begin); 3] =
    [("task", Group::task), ("queued", Group::request), ("again", Group::task)];

/// How it ends: as it does by itself, or with a word of the service's own.
const ENDS: [(&str, Inside); 2] = [("run", || ()), ("word", || _ = dormouse::outcome("sold_out"))];

/// Whether times are taken, and whether the connection reads a stream of ours, which notes when the
/// request came. Otherwise it came when the connection was woken.
const STATES: [(&str, bool, bool); 4] = [
    ("asleep", false, false),
    ("times", true, false),
    ("asleep-read", false, true),
    ("times-read", true, true),
];

/// Adds the rows.
pub(super) fn rows(bench: &mut Bench) {
    for (state, is_timed, reads) in STATES {
        let spec = |name| Spec::new(format!("request/{state}/{name}"), "ns").per("poll with a request").cpu();
        let round = Cell::new(0);
        bench.sample(BEGINS.map(|(name, _)| spec(name)), move || {
            let place = round.replace(round.get() + 1) % PLACES;
            let _waiting = is_timed.then(Waiting::start).transpose()?;
            // Notes are of a task of the runtime.
            let runtime = Builder::new_current_thread().build()?;
            let sample = async move { deeper(place, &mut || blocks(place, reads)) };
            Ok::<_, Failure>(runtime.block_on(runtime.spawn(sample))?)
        });
    }
}

/// Adds the rows after the first note of the process. To be measured after [`rows`], which have
/// none: the rows that are measured together are shuffled in each round.
pub(super) fn noted_rows(bench: &mut Bench) {
    for (state, is_timed) in [("asleep", false), ("times", true)] {
        for (name, inside) in ENDS {
            let spec = Spec::new(format!("request/{state}/{name}"), "ns").per("poll with a request").cpu();
            bench.per_iteration(spec, move |count| {
                let _waiting = is_timed.then(Waiting::start).transpose()?;
                let requests = Group::new("bench requests");
                let mut connection = pin!(connection(|| requests.task(), Some(inside), None));
                Ok(cpu(|| polls(connection.as_mut(), count)).0)
            });
        }
    }
}

/// Adds what the beginning, and a word, add to a request that did not wait.
pub(super) fn compare(bench: &mut Bench) {
    for (state, ..) in STATES {
        let name = |begin| format!("request/{state}/{begin}");
        bench.minus(format!("request-added/{state}"), &name("queued"), &name("task"));
        bench.minus(format!("request-null/{state}"), &name("again"), &name("task"));
    }
    for state in ["asleep", "times"] {
        let name = |end| format!("request/{state}/{end}");
        bench.minus(format!("outcome-added/{state}"), &name("word"), &name("run"));
    }
    for row in ["request-added/times", "request-added/times-read"] {
        bench.at_most("an arrival adds at most 3 ns to a request that did not wait", row, 3.0);
    }
    for row in ["request-added/asleep", "request-added/asleep-read"] {
        bench.at_most("asleep, nothing measurable", row, 1.0);
    }
}

/// The median CPU time of a poll of a connection that begins and ends a request, for each kind.
fn blocks(place: usize, reads: bool) -> [f64; 3] {
    let (kind, requests) = (Cell::new(0), Group::new(&format!("bench requests {place}")));
    let begin = || BEGINS[kind.get()].1(requests);
    let mut connection = pin!(connection(begin, None, reads.then(|| received(Letters))));
    let mut times = [const { Vec::new() }; BEGINS.len()];
    for block in 0..=BLOCKS {
        for turn in 0..BEGINS.len() {
            kind.set((block + turn) % BEGINS.len());
            let (time, ()) = cpu(|| polls(connection.as_mut(), BLOCK));
            // The first ones warm the caches.
            if block > 0 {
                times[kind.get()].push(time.as_nanos() as f64 / BLOCK as f64);
            }
        }
    }
    times.map(|times| Statistics::of(&times).map_or(f64::NAN, |of| of.median))
}

/// Runs `f` further down on the stack.
#[inline(never)]
fn deeper<T>(frames: usize, f: &mut dyn FnMut() -> T) -> T {
    let room = black_box([0_u8; 200]);
    let result = if frames == 0 { f() } else { deeper(frames - 1, f) };
    black_box(room);
    result
}

fn polls<F: Future<Output = ()>>(mut connection: Pin<&mut F>, count: u64) {
    let cx = &mut Context::from_waker(Waker::noop());
    (0..count).for_each(|_| _ = black_box(connection.as_mut().poll(cx)));
}

/// A connection each of whose polls begins and ends a request. A request lasts for more than 60 ns,
/// from where on the length of a duration does not change its cost.
fn connection(
    begin: impl Fn() -> Task,
    inside: Option<Inside>,
    mut stream: Option<ServedStream<Letters>>,
) -> impl Future<Output = ()> {
    let serving = poll_fn(move |cx| {
        if let Some(stream) = &mut stream {
            let mut letter = [0];
            _ = black_box(Pin::new(stream).poll_read(cx, &mut ReadBuf::new(&mut letter)));
        }
        let mut task = black_box(begin());
        if let Some(inside) = inside {
            task.run(inside);
        }
        (0..PAUSES).for_each(|_| std::hint::spin_loop());
        drop(task);
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    });
    Group::new("bench connections").connection().instrument(serving)
}

/// A stream of letters that cost nothing.
struct Letters;

impl AsyncRead for Letters {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        to.put_slice(b"a");
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_before_their_tasks() {
        let _waiting = Waiting::start().unwrap();
        for (place, reads) in [(0, false), (1, true)] {
            let runtime = Builder::new_current_thread().build().unwrap();
            let sample = async move { blocks(place, reads) };
            let times = runtime.block_on(runtime.spawn(sample)).unwrap();
            assert!(times.iter().all(|time| *time > 0.0), "{times:?}");
            let queued = Group::new(&format!("bench requests {place}")).read_waits().queue.requests;
            assert_eq!(queued, (BLOCKS as u64 + 1) * BLOCK, "one kind of three");
        }
    }
}

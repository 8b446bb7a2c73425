//! `request/…`: what it costs that the latency of a request begins before its task, and that its
//! outcome is known.

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dormouse::{Group, Task, Waiting};

use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// Some 20 ns each.
const PAUSES: usize = 4;

type Begin = fn(Group) -> Task;

/// The work of a request while it is current.
type Inside = fn();

/// How a request's task begins: at its handler, or when the connection was woken.
const BEGINS: [(&str, Begin); 2] = [("task", Group::task), ("queued", Group::request)];

/// How it ends: as it does by itself, or with a word of the service's own.
const ENDS: [(&str, Inside); 2] = [("run", || ()), ("word", || _ = dormouse::outcome("sold_out"))];

/// Adds the rows.
pub(super) fn rows(bench: &mut Bench) {
    for (state, is_timed) in [("asleep", false), ("times", true)] {
        for (name, begin) in BEGINS {
            let spec = Spec::new(format!("request/{state}/{name}"), "ns").per("poll with a request").cpu();
            bench.per_iteration(spec, move |count| polls(count, is_timed, begin, None));
        }
    }
}

/// Adds the rows after the first note of the process. To be measured after [`rows`], which have
/// none: the rows that are measured together are shuffled in each round.
pub(super) fn noted_rows(bench: &mut Bench) {
    for (state, is_timed) in [("asleep", false), ("times", true)] {
        for (name, inside) in ENDS {
            let spec = Spec::new(format!("request/{state}/{name}"), "ns").per("poll with a request").cpu();
            bench.per_iteration(spec, move |count| polls(count, is_timed, Group::task, Some(inside)));
        }
    }
}

/// Adds what the beginning, and a word, add to a request that did not wait.
pub(super) fn compare(bench: &mut Bench) {
    for state in ["asleep", "times"] {
        let name = |begin| format!("request/{state}/{begin}");
        bench.minus(format!("request-added/{state}"), &name("queued"), &name("task"));
        bench.minus(format!("outcome-added/{state}"), &name("word"), &name("run"));
    }
    bench.at_most("an arrival adds at most 3 ns to a request that did not wait", "request-added/times", 3.0);
    bench.at_most("asleep, nothing measurable", "request-added/asleep", 1.0);
}

/// The time of `count` polls of a connection, each of which begins and ends a request. A request
/// lasts for more than 60 ns, from where on the length of a duration does not change its cost.
fn polls(count: u64, is_timed: bool, begin: Begin, inside: Option<Inside>) -> Result<Duration, Failure> {
    let _waiting = is_timed.then(Waiting::start).transpose()?;
    let requests = Group::new("bench requests");
    let serving = poll_fn(move |cx| {
        let mut task = black_box(begin(requests));
        if let Some(inside) = inside {
            task.run(inside);
        }
        (0..PAUSES).for_each(|_| std::hint::spin_loop());
        drop(task);
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    });
    let mut connection = pin!(Group::new("bench connections").connection().instrument(serving));
    let cx = &mut Context::from_waker(Waker::noop());
    let poll = |_| _ = black_box(connection.as_mut().poll(cx));
    Ok(cpu(|| (0..count).for_each(poll)).0)
}

//! `direct/NAME`: a future of a group that is polled without a runtime, so that little else is in a
//! poll, while its CPU time is counted.

use std::future::{Future as _, poll_fn};
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dormouse::events::{Mode, poll_begins, poll_ends};
use dormouse::{Event, Group, Publishing};

use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::Spec;
use crate::runner::Failure;

/// Adds the rows.
pub(crate) fn rows(bench: &mut Bench) {
    row(bench, "account", || Ok(()), |poll| poll());
    row(bench, "published", || Ok(Publishing::start()?), |poll| poll());
    row(
        bench,
        "told",
        || Ok(()),
        |poll| {
            poll_begins();
            poll();
            poll_ends();
        },
    );
}

/// Adds a row, of polls as `around` has them, while the result of `ready` is held.
fn row<H>(
    bench: &mut Bench,
    name: &str,
    ready: impl Fn() -> Result<H, Failure> + 'static,
    around: impl Fn(&mut dyn FnMut()) + 'static,
) {
    let group = Group::new("bench direct");
    bench.per_iteration(Spec::new(format!("direct/{name}"), "ns").per("poll").cpu(), move |polls| {
        let _counting = group.start_counting(&[Event::TASK_CLOCK], Mode::GroupExact)?;
        let _held = ready()?;
        let mut task = pin!(group.instrument(poll_fn(|_| Poll::<()>::Pending)));
        let mut context = Context::from_waker(Waker::noop());
        let began = thread_cpu_ns();
        (0..polls).for_each(|_| around(&mut || _ = black_box(task.as_mut().poll(&mut context))));
        Ok(Duration::from_nanos(thread_cpu_ns() - began))
    });
}

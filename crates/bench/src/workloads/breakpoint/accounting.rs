//! `accounting/…` and `waiting/…`: the price of a single reservation, and the time that threads
//! wait for locks.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::book::Book;
use super::params::BreakpointArgs;
use super::watched;
use crate::bench::Bench;
use crate::clocks::wall;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// Sizes of the population.
pub(super) const SIZES: [u32; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];

/// The tasks of a row.
pub(super) struct Order {
    pub(super) name: &'static str,
    /// From one task to the next.
    pub(super) step: u64,
    /// Our watches that are armed meanwhile.
    pub(super) watches: usize,
}

/// Adds `accounting/NAME/N` for each order, of up to `most` tasks; and `waiting/NAME` beside as
/// many tasks as live in the thread rows of `alive`.
pub(super) fn rows(
    bench: &mut Bench,
    alive: &BreakpointArgs,
    make: fn(u32) -> Result<Book, Failure>,
    orders: &[Order],
    most: u32,
) {
    let &BreakpointArgs { breakpoints, cpus, .. } = alive;
    let populated = |tasks| -> Result<Rc<Book>, Failure> {
        let book = make(cpus)?;
        book.populate(tasks, breakpoints)?;
        Ok(Rc::new(book))
    };
    for tasks in SIZES {
        let spec = |&Order { name, .. }: &Order| {
            Spec::new(format!("accounting/{name}/{tasks}"), "ns")
                .per("breakpoint reserved and released")
                .with("tasks", tasks)
                .with("breakpoints", breakpoints)
                .with("cpus", cpus)
        };
        let specs: Vec<Spec> = orders.iter().map(spec).collect();
        let too_large = "not run at this size: it grows with the tasks, as the smaller rows show";
        let made = if tasks > most { Err(too_large.into()) } else { populated(tasks) };
        let Some(book) = bench.need(specs.clone(), made) else { continue };
        for (spec, &Order { step, watches, .. }) in specs.into_iter().zip(orders) {
            let (book, mut task) = (Rc::clone(&book), u64::from(tasks) - 1);
            bench.per_iteration(spec, move |wanted| {
                let _armed = watched::arm(watches)?;
                let rounds = wanted.div_ceil(breakpoints.into());
                let (took, done) = wall(|| {
                    (0..rounds).try_for_each(|_| {
                        task = task.wrapping_add(step);
                        come_and_go(&book, task, breakpoints)
                    })
                });
                done?;
                Ok(took.mul_f64(wanted as f64 / (rounds * u64::from(breakpoints)) as f64))
            });
        }
    }
    let spec = Spec::new(format!("waiting/{}", orders[0].name), "%")
        .better(Better::Lower)
        .with("of", "wall time of the threads")
        .with("threads", threads(alive))
        .with("tasks", alive.population());
    if let Some(book) = bench.need(spec.clone(), populated(alive.population())) {
        let (alive, span) = (alive.clone(), Duration::from_millis(bench.pick(100, 20)));
        bench.sample(spec, move || waiting(&alive, &book, span));
    }
}

/// A task reserves its breakpoints and releases them.
fn come_and_go(book: &Book, task: u64, breakpoints: u32) -> Result<(), Failure> {
    // Four is the most; the time of a vector would be in the row.
    let mut held = [const { None }; 4];
    for place in held.iter_mut().take(breakpoints as usize) {
        *place = Some(book.reserve(task)?);
    }
    Ok(())
}

/// One a processor, as in the origin: more would wait for processors, and for the locks of threads
/// that have lost theirs.
fn threads(args: &BreakpointArgs) -> u32 {
    thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32).min(args.parallelism)
}

/// Percent of their time that threads which reserve and release for `span` wait for locks.
fn waiting(args: &BreakpointArgs, book: &Book, span: Duration) -> Result<f64, Failure> {
    let next = AtomicU64::new(args.population().into());
    let work = || {
        let begin = Instant::now();
        while begin.elapsed() < span {
            come_and_go(book, next.fetch_add(1, Ordering::Relaxed), args.breakpoints)?;
        }
        Ok(begin.elapsed())
    };
    let before = book.waited();
    let spent: Result<Duration, Failure> = thread::scope(|scope| {
        let threads = (0..threads(args)).map(|_| thread::Builder::new().spawn_scoped(scope, work));
        let threads = threads.collect::<Result<Vec<_>, _>>()?;
        let panicked = |_| Failure::wrong("a thread panicked");
        threads.into_iter().map(|thread| thread.join().map_err(panicked)?).sum()
    });
    let waited = book.waited().checked_sub(before).ok_or("a sum of waits has shrunk")?;
    Ok(100.0 * waited.as_secs_f64() / spent?.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_waiting_is_a_percentage() {
        let args = BreakpointArgs { repeat: 1, breakpoints: 4, parallelism: 2, threads: 8, cpus: 2 };
        let share = waiting(&args, &Book::list(2), Duration::from_millis(2)).unwrap();
        assert!((0.0..=100.0).contains(&share), "{share}");
    }
}

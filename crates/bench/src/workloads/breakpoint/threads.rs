//! The origin's operation: to make and join a thread that inherits breakpoints.
//!
//! As in `perf bench breakpoint thread`, parallel makers share one count of repetitions; for each
//! repetition a maker makes its threads, which wait, then lets them go and joins them. Breakpoints
//! are reserved by the maker before it starts the thread, and released by the thread as it ends,
//! where the kernel does either.
//!
//! On the origin's 256 processors all repetitions ran at once. Here they would run one after the
//! other, and few threads would live at a time; so no maker lets its threads go before all
//! repetitions that can be under way have made theirs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, RwLock};
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

use super::params::BreakpointArgs;
use crate::runner::Failure;

type Threads<'s> = Vec<ScopedJoinHandle<'s, Result<(), Failure>>>;

/// Runs the operations, with a function that reserves a breakpoint of a task. Returns how long they
/// took together.
pub(super) fn run<H: Send>(
    args: &BreakpointArgs,
    reserve: impl Fn(u64) -> Result<H, Failure> + Sync,
) -> Result<Duration, Failure> {
    let (gates, repetitions, tasks) = (Gates::default(), AtomicU32::new(0), AtomicU64::new(0));
    let hold = || {
        let task = tasks.fetch_add(1, Ordering::Relaxed);
        (0..args.breakpoints).map(|_| reserve(task)).collect::<Result<Vec<_>, _>>()
    };
    let repeat = |repetition: u32| {
        let gate = RwLock::new(());
        let wait = || {
            drop(gate.read());
            Ok(())
        };
        scope(|scope| {
            let closed = gate.write();
            let (threads, made) = start(scope, args.threads, hold, &wait);
            if made.is_ok() {
                // All repetitions up to the end of this one's turn.
                let turn = (repetition / args.parallelism + 1).saturating_mul(args.parallelism);
                gates.pass(turn.min(args.repeat));
            }
            drop(closed);
            join(threads).and(made)
        })
    };
    let make = || loop {
        let repetition = repetitions.fetch_add(1, Ordering::Relaxed);
        if repetition >= args.repeat {
            return Ok(());
        }
        repeat(repetition).inspect_err(|_| gates.give_up())?;
    };
    let _first = hold()?;
    let begin = Instant::now();
    scope(|scope| {
        let (makers, made) = start(scope, args.parallelism, hold, &make);
        if made.is_err() {
            gates.give_up();
        }
        join(makers).and(made)
    })?;
    Ok(begin.elapsed())
}

/// Starts threads that do `work`, each while it holds its breakpoints; ends with the first that
/// cannot be started.
fn start<'s, H: Send + 's>(
    scope: &'s Scope<'s, '_>,
    count: u32,
    hold: impl Fn() -> Result<H, Failure>,
    work: &'s (impl Fn() -> Result<(), Failure> + Sync),
) -> (Threads<'s>, Result<(), Failure>) {
    let mut threads = Vec::with_capacity(count as usize);
    let made = (0..count).try_for_each(|_| {
        let held = hold()?;
        threads.push(Builder::new().spawn_scoped(scope, move || {
            let _held = held;
            work()
        })?);
        Ok(())
    });
    (threads, made)
}

fn join(threads: Threads<'_>) -> Result<(), Failure> {
    let panicked = |_| Failure::wrong("a thread panicked");
    threads.into_iter().map(|thread| thread.join().map_err(panicked)?).fold(Ok(()), Result::and)
}

/// Where repetitions wait for those that run beside them: as many as there are makers pass
/// together.
#[derive(Default)]
struct Gates {
    /// Repetitions that have come; all of them, once one has failed.
    come: Mutex<u32>,
    changed: Condvar,
}

impl Gates {
    /// Comes, and waits until as many as `needed` have.
    fn pass(&self, needed: u32) {
        let mut come = self.come.lock().unwrap_or_else(PoisonError::into_inner);
        *come = come.saturating_add(1);
        self.changed.notify_all();
        let passed = self.changed.wait_while(come, |come| *come < needed);
        drop(passed.unwrap_or_else(PoisonError::into_inner));
    }

    /// A repetition will not come: none waits any more.
    fn give_up(&self) {
        *self.come.lock().unwrap_or_else(PoisonError::into_inner) = u32::MAX;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts held slots, and refuses those over its limit.
    #[derive(Default)]
    struct Limited {
        held: AtomicU32,
        most: AtomicU32,
        all: AtomicU32,
        limit: u32,
    }

    struct Slot<'c>(&'c Limited);

    impl Limited {
        fn reserve(&self) -> Result<Slot<'_>, Failure> {
            let held = self.held.fetch_add(1, Ordering::Relaxed) + 1;
            let guard = Slot(self);
            self.most.fetch_max(held, Ordering::Relaxed);
            self.all.fetch_add(1, Ordering::Relaxed);
            if held > self.limit { Err(Failure::wrong("too much")) } else { Ok(guard) }
        }
    }

    impl Drop for Slot<'_> {
        fn drop(&mut self) {
            self.0.held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    const ARGS: BreakpointArgs =
        BreakpointArgs { repeat: 7, breakpoints: 2, parallelism: 3, threads: 4, cpus: 1 };

    #[test]
    fn threads_hold_their_breakpoints_and_live_together() {
        let book = Limited { limit: u32::MAX, ..Limited::default() };
        run(&ARGS, |_| book.reserve()).unwrap();
        let count = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        assert_eq!(count(&book.held), 0);
        assert_eq!(count(&book.all), 2 * (1 + 3 + 7 * 4));
        // All threads of three repetitions, the three makers and the first.
        assert!(count(&book.most) >= 2 * ARGS.population());
    }

    #[test]
    fn a_refusal_ends_the_run_for_all() {
        for limit in [1, 5, 9, 20] {
            let book = Limited { limit, ..Limited::default() };
            assert!(run(&ARGS, |_| book.reserve()).is_err(), "{limit}");
            assert_eq!(book.held.load(Ordering::Relaxed), 0);
        }
    }
}

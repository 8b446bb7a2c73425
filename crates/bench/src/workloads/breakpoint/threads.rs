//! The origin's operation: to make and join a thread that inherits breakpoints.
//!
//! As in `perf bench breakpoint thread`, parallel makers share one count of repetitions; for each one
//! makes its threads, which wait on a futex, then lets them go and joins them. Breakpoints are reserved
//! by the maker before it starts the thread, and released by the thread as it ends, where the kernel
//! does either.
//!
//! On the origin's 256 processors all repetitions ran at once. Here they would run one after the other,
//! and few threads would live at a time; so nobody lets its threads go before all repetitions that can
//! be under way have made theirs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{Builder, ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use super::BreakpointArgs;
use super::accounting::Accounting;
use crate::runner::Failure;

/// Runs the operations: how long they took together.
pub(super) fn run<A: Accounting>(args: &BreakpointArgs, accounting: &A) -> Result<Duration, Failure> {
    let course = Course {
        args,
        accounting,
        tasks: AtomicU64::new(0),
        repetitions: AtomicU32::new(0),
        gates: Gates::new(args),
    };
    let _first = accounting.reserve_all(course.new_task(), args.breakpoints)?;
    let begin = Instant::now();
    scope(|scope| {
        let mut makers = Vec::new();
        let started = (0..args.parallelism).try_for_each(|_| {
            let held = accounting.reserve_all(course.new_task(), args.breakpoints)?;
            let course = &course;
            makers.push(Builder::new().spawn_scoped(scope, move || {
                let _held = held;
                course.make()
            })?);
            Ok::<_, Failure>(())
        });
        if started.is_err() {
            course.gates.give_up();
        }
        makers.into_iter().map(|maker| joined(maker)?).fold(started, Result::and)
    })?;
    Ok(begin.elapsed())
}

/// What a thread returned.
pub(super) fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T, Failure> {
    thread.join().map_err(|_| Failure::Wrong("a thread panicked".to_owned()))
}

/// One run, as all its threads see it.
struct Course<'a, A> {
    args: &'a BreakpointArgs,
    accounting: &'a A,
    /// Tasks so far.
    tasks: AtomicU64,
    /// Repetitions taken so far.
    repetitions: AtomicU32,
    gates: Gates,
}

impl<A: Accounting> Course<'_, A> {
    fn new_task(&self) -> u64 {
        self.tasks.fetch_add(1, Ordering::Relaxed)
    }

    /// What a maker does.
    fn make(&self) -> Result<(), Failure> {
        loop {
            let repetition = self.repetitions.fetch_add(1, Ordering::Relaxed);
            if repetition >= self.args.repeat {
                return Ok(());
            }
            if let Err(failure) = self.repeat(repetition) {
                self.gates.give_up();
                return Err(failure);
            }
        }
    }

    /// One repetition: makes threads, waits until the others have, joins them.
    fn repeat(&self, repetition: u32) -> Result<(), Failure> {
        let go = AtomicU32::new(0);
        scope(|scope| {
            let mut threads = Vec::with_capacity(self.args.threads as usize);
            let made = (0..self.args.threads).try_for_each(|_| {
                let held = self.accounting.reserve_all(self.new_task(), self.args.breakpoints)?;
                let go = &go;
                threads.push(Builder::new().spawn_scoped(scope, move || {
                    let _held = held;
                    while go.load(Ordering::Acquire) == 0 {
                        // Woken, interrupted, or the word has changed: look again.
                        let _ = futex::wait(go, futex::Flags::PRIVATE, 0, None);
                    }
                })?);
                Ok(())
            });
            if made.is_ok() {
                self.gates.pass(repetition);
            }
            // Pairs with the acquire load of the threads.
            go.store(1, Ordering::Release);
            let woken = futex::wake(&go, futex::Flags::PRIVATE, i32::MAX as u32);
            let ended = threads.into_iter().map(joined).fold(made, Result::and);
            woken.map_err(Failure::from).and(ended)
        })
    }
}

/// Where repetitions wait for those that run beside them: as many as there are makers pass together.
struct Gates {
    parallelism: u32,
    repeat: u32,
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    /// Repetitions that have come, by gate.
    come: Vec<u32>,
    given_up: bool,
}

impl Gates {
    fn new(args: &BreakpointArgs) -> Self {
        let gates = args.repeat.div_ceil(args.parallelism);
        let state = State { come: vec![0; gates as usize], given_up: false };
        let (parallelism, repeat) = (args.parallelism, args.repeat);
        Self { parallelism, repeat, state: Mutex::new(state), opened: Condvar::new() }
    }

    fn pass(&self, repetition: u32) {
        let gate = repetition / self.parallelism;
        let needed = self.parallelism.min(self.repeat - gate * self.parallelism);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.come[gate as usize] += 1;
        self.opened.notify_all();
        let closed = |state: &mut State| state.come[gate as usize] < needed && !state.given_up;
        let passed = self.opened.wait_while(state, closed);
        drop(passed.unwrap_or_else(PoisonError::into_inner));
    }

    /// Somebody will not come: nobody waits any more.
    fn give_up(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).given_up = true;
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what is held, and refuses what would be too much.
    #[derive(Default)]
    struct Counted {
        held: AtomicU32,
        most: AtomicU32,
        all: AtomicU32,
        limit: u32,
    }

    struct Held<'c>(&'c Counted);

    impl<'c> Accounting for &'c Counted {
        type Held = Held<'c>;

        fn reserve(&self, _task: u64) -> Result<Held<'c>, Failure> {
            let held = self.held.fetch_add(1, Ordering::Relaxed) + 1;
            let guard = Held(self);
            self.most.fetch_max(held, Ordering::Relaxed);
            self.all.fetch_add(1, Ordering::Relaxed);
            if held > self.limit { Err(Failure::Wrong("too much".to_owned())) } else { Ok(guard) }
        }

        fn waited(&self) -> Duration {
            Duration::ZERO
        }
    }

    impl Drop for Held<'_> {
        fn drop(&mut self) {
            self.0.held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    const ARGS: BreakpointArgs =
        BreakpointArgs { repeat: 7, breakpoints: 2, parallelism: 3, threads: 4, cpus: 1 };

    #[test]
    fn every_thread_holds_its_breakpoints_and_all_that_run_together_live_together() {
        let counted = Counted { limit: u32::MAX, ..Counted::default() };
        run(&ARGS, &&counted).unwrap();
        let count = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        assert_eq!(count(&counted.held), 0);
        assert_eq!(count(&counted.all), 2 * (1 + 3 + 7 * 4));
        // All threads of three repetitions, the three makers and the first.
        assert!(count(&counted.most) >= 2 * ARGS.population());
    }

    #[test]
    fn a_refusal_ends_the_run_for_all() {
        for limit in [1, 5, 9, 20] {
            let counted = Counted { limit, ..Counted::default() };
            assert!(run(&ARGS, &&counted).is_err(), "{limit}");
            assert_eq!(counted.held.load(Ordering::Relaxed), 0);
        }
    }
}

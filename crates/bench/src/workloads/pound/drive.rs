//! The pounding: N threads, released together, each of which makes its share of the calls.
//!
//! # Safety
//!
//! The unsafe code is `times`, which std and rustix do not have.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{OnceLock, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use dormouse::clock::{process_cpu_ns, process_exact};
use dormouse_lab::{Refresh, ThreadGroup};
use rustix::time::ClockId;

use crate::clocks::{cpu, kernel_ns};
use crate::runner::Failure;

/// The call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// `clock_gettime(CLOCK_PROCESS_CPUTIME_ID)`: the origin's first program.
    ClockGettime,
    /// `times()`: its second.
    Times,
    /// `process_cpu_ns()`.
    Process,
    /// `process_exact()`.
    ProcessExact,
    /// Group time, refreshed once a millisecond.
    GroupStale,
    /// Group time, all members refreshed at every read.
    GroupFresh,
    /// Group time, all members refreshed at every read, with prefetch.
    GroupFreshPrefetch,
}

use Call::{ClockGettime, GroupFresh, GroupFreshPrefetch, GroupStale, Process, ProcessExact, Times};

impl Call {
    pub(super) const ALL: [Self; 7] =
        [ClockGettime, Times, Process, ProcessExact, GroupStale, GroupFresh, GroupFreshPrefetch];

    pub(super) fn name(self) -> &'static str {
        match self {
            ClockGettime => "clock_gettime",
            Times => "times",
            Process => "process",
            ProcessExact => "process-exact",
            GroupStale => "group-stale",
            GroupFresh => "group-fresh",
            GroupFreshPrefetch => "group-fresh-prefetch",
        }
    }

    /// The group that is read, if one is.
    pub(super) fn group(self) -> Option<ThreadGroup> {
        let fresh = |prefetch| Refresh { tolerance: Duration::ZERO, most: usize::MAX, prefetch };
        match self {
            ClockGettime | Times | Process | ProcessExact => None,
            GroupStale => Some(ThreadGroup::new()),
            GroupFresh => Some(ThreadGroup::with_refresh(fresh(false))),
            GroupFreshPrefetch => Some(ThreadGroup::with_refresh(fresh(true))),
        }
    }
}

/// The origin's first call.
fn clock_gettime_process() -> u64 {
    kernel_ns(ClockId::ProcessCPUTime)
}

/// The origin's second call.
fn user_ticks() -> u64 {
    let mut times = libc::tms { tms_utime: 0, tms_stime: 0, tms_cutime: 0, tms_cstime: 0 };
    // SAFETY: `times` is a valid place.
    unsafe { libc::times(&raw mut times) };
    times.tms_utime as u64
}

/// Has `threads` threads make `each` calls: how long it took from their release to the end of the
/// last one's.
pub(super) fn pound(call: Call, threads: usize, each: usize) -> Result<Duration, Failure> {
    let group = call.group();
    match (call, group.as_ref()) {
        (_, Some(read)) => drive(threads, each, Some(read), || read.cpu_ns()),
        (Times, _) => drive(threads, each, None, user_ticks),
        (Process, _) => drive(threads, each, None, process_cpu_ns),
        (ProcessExact, _) => {
            // Without /proc the row is unavailable; a single failure later on is a step back to 0.
            process_exact()?;
            drive(threads, each, None, || process_exact().unwrap_or(0))
        }
        _ => drive(threads, each, None, clock_gettime_process),
    }
}

/// The calls of [`in_turns`].
pub(super) const TURNS: [Call; 2] = [ClockGettime, Process];

/// Has `threads` threads make `each` calls of each of [`TURNS`], a few of the one after a few of
/// the other: the price of a call, in nanoseconds of CPU time. Other work of the machine takes from
/// both alike.
pub(super) fn in_turns(threads: usize, each: usize) -> Result<[f64; 2], Failure> {
    const CALLS: [fn() -> u64; 2] = [clock_gettime_process, process_cpu_ns];
    /// Long against the two questions for the time, short against a thread's turn on its processor.
    const BLOCK: usize = 500;
    let took = [AtomicU64::new(0), AtomicU64::new(0)];
    let blocks = each.div_ceil(BLOCK).next_multiple_of(2);
    let block = each.div_ceil(blocks);
    let comers = AtomicUsize::new(0);
    let calls = || {
        // Each kind is the first one as often as the other, among the threads too: all in one order
        // made the second kind 4 to 7 % dearer with a hundred threads that have a few blocks each.
        let first = comers.fetch_add(1, Ordering::Relaxed);
        for which in (first..first + blocks).flat_map(|turn| [turn % 2, (turn + 1) % 2]) {
            let (time, ()) = cpu(|| (0..block).for_each(|_| _ = black_box(CALLS[which]())));
            took[which].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        }
    };
    with_threads(threads, None, calls, |release| {
        release();
        Ok(())
    })?;
    let made = (threads * blocks * block) as f64;
    Ok(took.map(|ns| ns.into_inner() as f64 / made))
}

fn drive(
    threads: usize,
    each: usize,
    group: Option<&ThreadGroup>,
    read: impl Fn() -> u64 + Sync,
) -> Result<Duration, Failure> {
    let (running, end) = (AtomicUsize::new(threads), OnceLock::new());
    let backwards = AtomicU64::new(0);
    let calls = || {
        let (mut last, mut back) = (0, 0);
        for _ in 0..each {
            let now = read();
            back += u64::from(now < last);
            last = now;
        }
        backwards.fetch_add(back, Ordering::Relaxed);
        if running.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _first = end.set(Instant::now());
        }
    };
    let begin = with_threads(threads, group, calls, |release| {
        let begin = Instant::now();
        release();
        Ok(begin)
    })?;
    match backwards.into_inner() {
        0 => Ok(end.get().map_or(Duration::ZERO, |end| end.duration_since(begin))),
        steps => Err(Failure::wrong(format!("the time stepped back {steps} times"))),
    }
}

/// Starts `threads` threads, members of `group` if there is one, which do `work` once they are
/// released, and waits for their end. `during` runs when all of them have started and wait, and
/// releases them; if it fails before that, they end without work.
pub(super) fn with_threads<T>(
    threads: usize,
    group: Option<&ThreadGroup>,
    work: impl Fn() + Sync,
    during: impl FnOnce(&mut dyn FnMut()) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // Held for writing until the release; true: to work, false: to end.
    let gate = RwLock::new(false);
    let ready = AtomicUsize::new(0);
    let mut closed = gate.write().ok();
    let (gate, ready, work) = (&gate, &ready, &work);
    thread::scope(|scope| {
        let member = move || {
            let member = group.map(ThreadGroup::join).transpose();
            // Pairs with the acquire load below: the group has all members when `during` runs.
            ready.fetch_add(1, Ordering::Release);
            if gate.read().is_ok_and(|go| *go) {
                work();
            }
            member.map(drop)
        };
        let started: Result<Vec<_>, _> =
            (0..threads).map(|_| thread::Builder::new().spawn_scoped(scope, member)).collect();
        let result = started.map_err(Failure::from).and_then(|handles| {
            while ready.load(Ordering::Acquire) < threads {
                thread::yield_now();
            }
            let result = during(&mut || {
                if let Some(mut go) = closed.take() {
                    *go = true;
                }
            })?;
            for handle in handles {
                handle.join().map_err(|_| Failure::from("a pounding thread panicked"))??;
            }
            Ok(result)
        });
        // No thread is left waiting, however it went.
        drop(closed.take());
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_makes_its_calls_and_is_timed() {
        let calls = AtomicU64::new(0);
        let read = || calls.fetch_add(1, Ordering::Relaxed);
        assert!(drive(5, 100, None, read).unwrap() > Duration::ZERO);
        assert_eq!(calls.load(Ordering::Relaxed), 500);
    }

    #[test]
    fn an_answer_that_steps_back_is_wrong() {
        let calls = AtomicU64::new(u64::MAX);
        let stepped = drive(2, 10, None, || calls.fetch_sub(1, Ordering::Relaxed));
        assert!(matches!(stepped, Err(Failure::Wrong(_))), "{stepped:?}");
    }

    #[test]
    fn a_failure_before_the_release_frees_threads() {
        let work = || panic!("not released");
        let failed = with_threads(3, None, work, |_| Err::<(), _>(Failure::from("no clock")));
        assert_eq!(failed, Err(Failure::from("no clock")));
    }

    #[test]
    fn calls_in_turns_are_timed_by_kind() {
        let ns = in_turns(3, 700).unwrap();
        assert!(ns.iter().all(|&ns| ns > 10.0), "{ns:?}");
    }

    #[test]
    fn each_call_answers() {
        for call in Call::ALL {
            assert!(pound(call, 2, 50).is_ok(), "{}", call.name());
        }
    }
}

//! Functions that use CPU time, with frames that do not depend on how the test was compiled.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dormouse_profile::{Options, Profile};
use dormouse_testkit::thread_cpu;

use crate::arch::{hog_caller, hog_caller_end, hog_leaf, hog_leaf_end, hog_on, hog_on_end};

/// Long beside a reading of the clock, which takes microseconds where a processor is emulated.
const ROUNDS: u64 = 500_000;

/// Uses this CPU time, nearly all of it in [`LEAF`], called by [`CALLER`].
pub(crate) fn hog(time: Duration) {
    let end = thread_cpu() + time;
    while thread_cpu() < end {
        // SAFETY: counts down.
        unsafe { hog_caller(ROUNDS) };
    }
}

/// Uses some CPU time, and asks no clock.
pub(crate) fn hog_unasked() {
    // SAFETY: counts down.
    unsafe { hog_caller(20 * ROUNDS) };
}

/// Uses this CPU time with these in the stack pointer and the frame pointer; 0: the present stack.
///
/// # Safety
///
/// Handlers may use memory below `stack`, unless the thread has an alternate stack.
pub(crate) unsafe fn hog_with(time: Duration, stack: usize, frame: usize) {
    let end = thread_cpu() + time;
    let here = 0_u64;
    let stack = if stack == 0 { ((&raw const here).addr() - 4096) & !15 } else { stack };
    while thread_cpu() < end {
        // SAFETY: counts down, and touches no memory but its own frame on the old stack.
        unsafe { hog_on(ROUNDS, stack, frame) };
    }
}

/// Does something while some threads use CPU time, a millisecond at a time.
pub(crate) fn beside(threads: usize, run: impl FnOnce()) {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also if it fails.
        let _over = Over(&over);
        for _ in 0..threads {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    hog(Duration::from_millis(1));
                }
            });
        }
        run();
    });
}

/// The addresses of a function.
pub(crate) type Function = Range<u64>;

pub(crate) fn leaf() -> Function {
    hog_leaf as *const () as u64..hog_leaf_end as *const () as u64
}

pub(crate) fn caller() -> Function {
    hog_caller as *const () as u64..hog_caller_end as *const () as u64
}

/// The function of [`hog_with`].
pub(crate) fn odd() -> Function {
    hog_on as *const () as u64..hog_on_end as *const () as u64
}

/// The weight of the samples that have these functions on their stack, the innermost first.
pub(crate) fn weight_in(profile: &Profile, functions: &[Function]) -> u64 {
    let rows = profile.samples.iter().filter(|row| {
        let mut stack = profile.stack(row.stack);
        functions.iter().all(|function| stack.next().is_some_and(|at| function.contains(&at)))
    });
    rows.map(|row| row.values[1]).sum()
}

/// The weight of all samples of a thread.
pub(crate) fn weight_of(profile: &Profile, tid: u32) -> u64 {
    sum_of(profile, tid, 1)
}

/// The number of samples of a thread.
pub(crate) fn samples_of(profile: &Profile, tid: u32) -> u64 {
    sum_of(profile, tid, 0)
}

fn sum_of(profile: &Profile, tid: u32, column: usize) -> u64 {
    let is_its = |index: u32| profile.threads[index as usize].tid == tid;
    profile.samples.iter().filter(|row| is_its(row.thread)).map(|row| row.values[column]).sum()
}

pub(crate) fn options(hz: u32) -> Options {
    let mut options = Options::default();
    options.hz = hz;
    options
}

/// The most that a thread may have used since its last sample: a period, and the kernel's tick, of
/// which some may have been missed on a virtual machine.
pub(crate) fn slack(hz: u32) -> u64 {
    2 * 1_000_000_000 / u64::from(hz) + 40_000_000
}

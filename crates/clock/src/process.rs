//! CPU time of the process, exact to the nanosecond.
//!
//! The kernel adds up the times of all threads at their last tick or switch. For other threads that
//! are running at this moment it leaves out the time since then (Linux: `thread_group_cputime` in
//! `kernel/sched/cputime.c`). Reading one thread's clock makes the kernel bring that thread up to
//! date (`task_sched_runtime` in `kernel/sched/core.c`). So every thread is read first, then the
//! process.
//!
//! One time is still missing: that of a switch. A thread to which its processor is just switching
//! has used time since the switch began, which the kernel does not report before the switch is
//! complete (`task_sched_runtime` treats a thread that is not on a processor yet as one whose
//! account is closed). In a virtual machine, where a new timer in the middle of a switch costs an
//! exit, 10 to 70 us were missing in one of a hundred thousand readings of a program whose threads
//! come and go.

use dormouse_sys::process::threads;

use crate::error::Error;
use crate::kernel::{process_cpu_ns, thread_cpu_ns_of};

/// How often the threads are listed, at most, until a list is complete: one that stands on a thread
/// that ends leaves out others. Where threads end all the time each of the lists has most.
const LISTS: u32 = 8;

/// CPU time of the process in nanoseconds: at least the time of all its threads when the call
/// began, except for the time of switches that are under way, at most one on each processor.
///
/// # Cost
///
/// A directory listing, and a system call for each thread: tens of microseconds with a hundred
/// threads. Each of these calls takes the lock of the run queue of the processor that the thread
/// runs on.
///
/// # Errors
///
/// [`Error::Threads`] where there is no `/proc`: without the list of threads the value would not be
/// exact.
pub fn process_exact() -> Result<u64, Error> {
    let mut tids = Vec::new();
    for _ in 0..LISTS {
        let is_whole = threads::list(&mut tids).map_err(|source| Error::Threads { source })?;
        for &tid in &tids {
            // None: it has ended since, and the kernel has added all it used to the process's
            // account.
            let _up_to_date = thread_cpu_ns_of(tid);
        }
        if is_whole {
            break;
        }
    }
    Ok(process_cpu_ns())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;
    use crate::thread::asked_ns as thread_ns;

    #[test]
    #[cfg_attr(miri, ignore = "it has no clocks of threads")]
    fn it_holds_the_time_of_running_threads() {
        let (stop, tid) = (&AtomicBool::new(false), &AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tid.store(dormouse_sys::process::identity::tid(), Ordering::Release);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            while tid.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let sibling = || thread_cpu_ns_of(tid.load(Ordering::Relaxed)).unwrap();
            let mut last = 0;
            for _ in 0..2000 {
                // Threads of other tests, which are left out here, only make the process's time
                // larger.
                let known = thread_ns() + sibling();
                let exact = process_exact().unwrap();
                assert!(exact >= known, "{} ns missing", known - exact);
                assert!(exact >= last, "{exact} after {last}");
                last = exact;
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

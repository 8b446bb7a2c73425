//! Meters of threads, of the process and of groups of threads, for budgets.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::lab::asked_ns;
use dormouse_clock::{CpuMeter, process_cpu_ns, thread_cpu_ns_of};
use dormouse_sys::process::identity::tid;

use crate::error::Error;
use crate::estimate::exact_where_allowed;
use crate::thread_group::ThreadGroup;

/// How far the clock of a running thread (`thread_cpu_ns`) may be behind the kernel's, in
/// nanoseconds: half of a resync's bracket (10 µs wide at most, unless four in a row were wider),
/// and a hundredth of an epoch of a millisecond for a rate that was just measured.
const BEHIND: u64 = 20_000;

/// CPU time of one thread: the least that its own `thread_cpu_ns` can return now, which is
/// 20 µs less than the kernel's value.
///
/// It is not the thread's share of a group. A thread that waits for a budget on its own time waits
/// for ever.
#[derive(Debug, Clone)]
pub struct ThreadMeter {
    thread: Arc<Thread>,
}

#[derive(Debug)]
struct Thread {
    tid: u32,
    /// The largest value that the kernel has given.
    largest: AtomicU64,
    /// Its time at its end; [`RUNS`] while it runs, [`UNKNOWN`] if that is unknown.
    end: AtomicU64,
}

const RUNS: u64 = u64::MAX;
const UNKNOWN: u64 = u64::MAX - 1;

/// Marks the calling thread's meter as ended when the thread ends.
struct Own(Arc<Thread>);

thread_local! {
    static OWN: RefCell<Own> = RefCell::new(Own(Arc::new(Thread::current())));
}

impl Drop for Own {
    fn drop(&mut self) {
        // Pairs with the load in `ThreadMeter::cpu_ns`: a meter that reads the clock of a later
        // thread of this id sees the end.
        self.0.end.store(asked_ns(), Ordering::Release);
    }
}

impl Thread {
    fn current() -> Self {
        Self::new(tid(), asked_ns())
    }

    fn new(tid: u32, ns: u64) -> Self {
        Self { tid, largest: AtomicU64::new(ns), end: AtomicU64::new(RUNS) }
    }
}

impl ThreadMeter {
    /// The calling thread. Its end is always noticed, with its time until its thread-locals were
    /// destroyed.
    pub fn current() -> Self {
        let own = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            if own.0.tid != tid() {
                // In a fork child the meter there is the parent's.
                *own = Own(Arc::new(Thread::current()));
            }
            Arc::clone(&own.0)
        });
        Self { thread: own.unwrap_or_else(|_| Arc::new(Thread::current())) }
    }

    /// A thread of this process by its id. Its end is noticed when the id is free, or when its
    /// clock steps back. A thread that gets the same id between two readings, and has used more CPU
    /// time by then, is mistaken for it.
    ///
    /// # Errors
    ///
    /// [`Error::NoThread`] if there is no such thread.
    pub fn of(tid: u32) -> Result<Self, Error> {
        let ns = thread_cpu_ns_of(tid).ok_or(Error::NoThread { tid })?;
        Ok(Self { thread: Arc::new(Thread::new(tid, ns)) })
    }
}

impl CpuMeter for ThreadMeter {
    fn cpu_ns(&self) -> Option<u64> {
        let thread = &*self.thread;
        // Before the clock, which is then no less. Pairs with the maximum below, on another thread.
        let least = thread.largest.load(Ordering::Acquire);
        let read = thread_cpu_ns_of(thread.tid).filter(|&ns| ns >= least);
        // After the clock. Pairs with the store in `Own::drop`: the clock was this thread's.
        if thread.end.load(Ordering::Acquire) != RUNS {
            return None;
        }
        let Some(ns) = read else {
            let _known = thread.end.compare_exchange(RUNS, UNKNOWN, Ordering::Relaxed, Ordering::Relaxed);
            return None;
        };
        // Pairs with the load above, on another thread.
        thread.largest.fetch_max(ns, Ordering::Release);
        Some(ns.saturating_sub(BEHIND))
    }

    fn final_ns(&self) -> Option<u64> {
        // Pairs with the store in `Own::drop`.
        let end = self.thread.end.load(Ordering::Acquire);
        (end < UNKNOWN).then_some(end)
    }

    fn processors(&self) -> usize {
        1
    }
}

/// CPU time of the process: `process_exact`, so that a later [`process_cpu_ns`]
/// returns no less. Where there is no `/proc`, and on threads with a seccomp filter, it is
/// [`process_cpu_ns`] itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessMeter;

impl CpuMeter for ProcessMeter {
    fn cpu_ns(&self) -> Option<u64> {
        Some(exact_where_allowed().unwrap_or_else(process_cpu_ns))
    }
}

/// CPU time of the members, each of which is asked for.
impl CpuMeter for ThreadGroup {
    fn cpu_ns(&self) -> Option<u64> {
        self.refresh_all();
        Some(self.total())
    }

    fn processors(&self) -> usize {
        self.cpus() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_thread_is_noticed() {
        let (send, receive) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send((ThreadMeter::current(), ThreadMeter::of(tid()).unwrap())).unwrap();
            let _told = wait.recv();
            asked_ns()
        });
        let (own, named) = receive.recv().unwrap();
        let running = own.cpu_ns().zip(named.cpu_ns()).unwrap();
        go.send(()).unwrap();
        let used = thread.join().unwrap();
        assert_eq!(own.cpu_ns(), None);
        assert!(own.final_ns().unwrap() >= used && used + BEHIND >= running.0);
        // The kernel may take a moment longer to forget the number.
        while named.cpu_ns().is_some() {}
        assert_eq!((named.cpu_ns(), named.final_ns()), (None, None));
        assert!(
            matches!(ThreadMeter::of(u32::MAX >> 4), Err(Error::NoThread { tid }) if tid == u32::MAX >> 4)
        );
    }

    #[test]
    fn a_clock_that_steps_back_is_another_threads() {
        let meter = ThreadMeter::of(tid()).unwrap();
        meter.thread.largest.fetch_add(1 << 40, Ordering::Relaxed);
        assert_eq!((meter.cpu_ns(), meter.cpu_ns()), (None, None));
    }

    #[test]
    fn a_clock_has_reached_its_meter() {
        let meter = ThreadMeter::current();
        for _ in 0..10_000 {
            let read = meter.cpu_ns().unwrap();
            assert!(dormouse_clock::thread_cpu_ns() >= read);
        }
        for _ in 0..100 {
            let read = ProcessMeter.cpu_ns().unwrap();
            assert!(process_cpu_ns() >= read);
        }
    }
}

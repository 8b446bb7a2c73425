//! What a budget can be set on: anything whose CPU time only grows.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::error::Error;
use crate::group::ThreadGroup;
use crate::kernel;
use crate::process::process_exact;

/// How far the clock of a running thread ([`crate::thread_cpu_ns`]) may be behind the kernel's, in nanoseconds:
/// half of a resync's bracket (10 µs wide at most, unless four in a row were wider), and a hundredth of an epoch
/// of a millisecond for a rate that was just measured.
const BEHIND: u64 = 20_000;

/// Something whose CPU time only grows. A budget reads it on the thread that makes the budget and then on the
/// timer's.
///
/// [`CpuMeter::cpu_ns`] is called up to a thousand times a second and must not block. One that panics has ended.
pub trait CpuMeter: Send + Sync {
    /// CPU time so far, in nanoseconds; never less than an earlier answer on any thread. `None` when no more will
    /// come: what was measured has ended.
    fn cpu_ns(&self) -> Option<u64>;

    /// CPU time at the end, in nanoseconds, where that is known; asked after [`CpuMeter::cpu_ns`] gave `None`.
    fn final_ns(&self) -> Option<u64> {
        None
    }

    /// How many processors it can use at once, at most. Fewer than it does makes the budget late.
    fn processors(&self) -> usize {
        processors()
    }
}

/// Processors of the machine.
fn processors() -> usize {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        // A list of files to read.
        0 => {
            let count = kernel::processors();
            KNOWN.store(count, Ordering::Relaxed);
            count
        }
        count => count,
    }
}

/// CPU time of one thread: the least that its own [`crate::thread_cpu_ns`] gives now, which is 20 µs less than what
/// the kernel says.
///
/// It is not the thread's share of a group, and waiting for one's own is waiting for ever.
#[derive(Debug, Clone)]
pub struct ThreadMeter {
    thread: Arc<Thread>,
}

#[derive(Debug)]
struct Thread {
    tid: u32,
    /// The largest value that the kernel has given.
    largest: AtomicU64,
    /// What it had used at its end; [`RUNS`], or [`UNKNOWN`].
    end: AtomicU64,
}

const RUNS: u64 = u64::MAX;
const UNKNOWN: u64 = u64::MAX - 1;

/// The calling thread's, told at the thread's end.
struct Own(Arc<Thread>);

thread_local! {
    static OWN: RefCell<Own> = RefCell::new(Own(Arc::new(Thread::current())));
}

impl Drop for Own {
    fn drop(&mut self) {
        // Pairs with the load in `ThreadMeter::cpu_ns`: who reads the clock of a later thread of this number sees it.
        self.0.end.store(kernel::thread_ns(), Ordering::Release);
    }
}

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_pid().cast_unsigned()
}

impl Thread {
    fn current() -> Self {
        Self::new(tid(), kernel::thread_ns())
    }

    fn new(tid: u32, ns: u64) -> Self {
        Self { tid, largest: AtomicU64::new(ns), end: AtomicU64::new(RUNS) }
    }
}

impl ThreadMeter {
    /// The calling thread. Its end is noticed for certain, with what it had used until its thread-locals were
    /// destroyed.
    pub fn current() -> Self {
        let own = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            if own.0.tid != tid() {
                // In a fork child: what is there is the parent's.
                *own = Own(Arc::new(Thread::current()));
            }
            Arc::clone(&own.0)
        });
        Self { thread: own.unwrap_or_else(|_| Arc::new(Thread::current())) }
    }

    /// A thread of this process by its number. Its end is noticed by the number's being free, or by a clock that
    /// steps back; a thread that gets the number between two looks, and by then has used more, is taken for it.
    ///
    /// # Errors
    ///
    /// [`Error::NoThread`] when there is none.
    pub fn of(tid: u32) -> Result<Self, Error> {
        let ns = kernel::thread_cpu_ns_of(tid).ok_or(Error::NoThread { tid })?;
        Ok(Self { thread: Arc::new(Thread::new(tid, ns)) })
    }
}

impl CpuMeter for ThreadMeter {
    fn cpu_ns(&self) -> Option<u64> {
        let thread = &*self.thread;
        // Before the clock, which is then no less. Pairs with the maximum below.
        let least = thread.largest.load(Ordering::Acquire);
        let read = kernel::thread_cpu_ns_of(thread.tid).filter(|&ns| ns >= least);
        // After the clock. Pairs with the store at the thread's end.
        if thread.end.load(Ordering::Acquire) != RUNS {
            return None;
        }
        let Some(ns) = read else {
            let _known = thread.end.compare_exchange(RUNS, UNKNOWN, Ordering::Relaxed, Ordering::Relaxed);
            return None;
        };
        // Pairs with the load above.
        thread.largest.fetch_max(ns, Ordering::Release);
        Some(ns.saturating_sub(BEHIND))
    }

    fn final_ns(&self) -> Option<u64> {
        // Pairs with the store at the thread's end.
        let end = self.thread.end.load(Ordering::Acquire);
        (end < UNKNOWN).then_some(end)
    }

    fn processors(&self) -> usize {
        1
    }
}

/// CPU time of the process: [`crate::process_exact`], so that [`crate::process_cpu_ns`] after it is no less. Where
/// there is no `/proc`, that itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessMeter;

impl CpuMeter for ProcessMeter {
    fn cpu_ns(&self) -> Option<u64> {
        Some(process_exact().unwrap_or_else(|_| kernel::process_cpu_ns()))
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
    fn the_end_of_a_thread_is_noticed_with_what_it_had_used_however_it_is_named() {
        let (send, receive) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send((ThreadMeter::current(), ThreadMeter::of(tid()).unwrap())).unwrap();
            let _told = wait.recv();
            kernel::thread_ns()
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
    fn a_number_whose_clock_steps_back_belongs_to_another_thread() {
        let meter = ThreadMeter::of(tid()).unwrap();
        meter.thread.largest.fetch_add(1 << 40, Ordering::Relaxed);
        assert_eq!((meter.cpu_ns(), meter.cpu_ns()), (None, None));
    }

    #[test]
    fn what_a_meter_gives_its_clock_has_reached() {
        let meter = ThreadMeter::current();
        for _ in 0..10_000 {
            let read = meter.cpu_ns().unwrap();
            assert!(crate::thread_cpu_ns() >= read);
        }
        for _ in 0..100 {
            let read = ProcessMeter.cpu_ns().unwrap();
            assert!(kernel::process_cpu_ns() >= read);
        }
    }
}

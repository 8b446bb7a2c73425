//! Threads beside the measured one: a patch of text that no other thread runs interrupts no
//! processor.

use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_sys::process::identity::tid;

use crate::affinity::Halves;
use crate::clocks::wall;
use crate::runner::Failure;

/// How long to wait for the thread to start, or to go: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// A thread that runs something until it is dropped, on the second half of the processors.
#[derive(Debug)]
pub(crate) struct Neighbour {
    stop: Arc<AtomicBool>,
    tid: u32,
    thread: Option<thread::JoinHandle<()>>,
}

impl Neighbour {
    /// Has the thread run `turn` over and over, and waits until it is at work.
    pub(crate) fn start<T>(halves: &Halves, turn: impl Fn() -> T + Send + 'static) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen_stop, (ready, is_ready)) = (Arc::clone(&stop), mpsc::channel());
        let work = move || {
            black_box(turn());
            // Fails if the thread was too slow; then it is being stopped.
            let _ = ready.send(tid());
            while !seen_stop.load(Ordering::Relaxed) {
                black_box(turn());
            }
        };
        let spawn = || thread::Builder::new().name("bench-neighbour".to_owned()).spawn(work);
        let thread = Some(halves.on_second(spawn)??);
        let mut neighbour = Self { stop, tid: 0, thread };
        neighbour.tid = is_ready.recv_timeout(PATIENCE)?;
        Ok(neighbour)
    }

    /// The result of `work`, and the share of its wall time that this thread ran, in percent.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> Result<(T, f64), Failure> {
        let before = self.cpu()?;
        let (span, result) = wall(work);
        let cpu = self.cpu()?.saturating_sub(before);
        Ok((result, 100.0 * cpu.as_secs_f64() / span.as_secs_f64()))
    }

    /// CPU time that the thread has used.
    fn cpu(&self) -> Result<Duration, Failure> {
        let time = dormouse::clock::thread_cpu_ns_of(self.tid);
        Ok(Duration::from_nanos(time.ok_or("the other thread's clock cannot be read")?))
    }
}

impl Drop for Neighbour {
    /// Returns when the process's list of threads has lost the thread too: a thread that ends
    /// blocks all signals, and the int3 protocol refuses to start beside a thread that blocks
    /// SIGTRAP.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // `turn` does not panic; if it did, its message has been printed.
            drop(thread.join());
        }
        let listed = format!("/proc/self/task/{}", self.tid);
        let deadline = Instant::now() + PATIENCE;
        while self.tid != 0 && Path::new(&listed).exists() && Instant::now() < deadline {
            thread::yield_now();
        }
    }
}

/// Runs `work` while `count` threads run `turn` over and over; they inherit this thread's
/// processors.
pub(crate) fn beside<T>(count: usize, turn: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    turn();
                }
            });
        }
        let result = work();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

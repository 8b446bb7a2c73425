//! The other thread: who patches text that nobody runs pays for nobody's interrupt.

use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use crate::affinity::Halves;
use crate::clocks::wall;
use crate::runner::Failure;

/// How long to wait for the thread to start, or to go: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// A thread that runs something until it is dropped, on the second half of the processors.
#[derive(Debug)]
pub(super) struct Neighbour {
    stop: Arc<AtomicBool>,
    tid: u32,
    thread: Option<thread::JoinHandle<()>>,
}

impl Neighbour {
    /// Has it run `turn` over and over, and waits until it is at work.
    pub(super) fn start<T>(halves: &Halves, turn: impl Fn() -> T + Send + 'static) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen_stop, (ready, is_ready)) = (Arc::clone(&stop), mpsc::channel());
        let work = move || {
            black_box(turn());
            // Nobody listens any more if it was too slow; then it is stopped anyway.
            let _ = ready.send(gettid().as_raw_pid().cast_unsigned());
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

    /// What `work` gives, and the share of its wall time that this thread ran, in percent.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> Result<(T, f64), Failure> {
        let before = self.cpu()?;
        let (span, result) = wall(work);
        let cpu = self.cpu()?.saturating_sub(before);
        Ok((result, 100.0 * cpu.as_secs_f64() / span.as_secs_f64()))
    }

    /// CPU time it has used.
    fn cpu(&self) -> Result<Duration, Failure> {
        let time = dormouse::clock::thread_cpu_ns_of(self.tid);
        Ok(Duration::from_nanos(time.ok_or("the other thread's clock cannot be read")?))
    }
}

impl Drop for Neighbour {
    /// Returns when the thread is gone from the process's list too: a thread that ends blocks all signals, which
    /// is a reason to refuse int3.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and there is nobody to tell if it does.
            drop(thread.join());
        }
        let listed = format!("/proc/self/task/{}", self.tid);
        let deadline = Instant::now() + PATIENCE;
        while self.tid != 0 && Path::new(&listed).exists() && Instant::now() < deadline {
            thread::yield_now();
        }
    }
}

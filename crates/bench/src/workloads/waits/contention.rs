//! `threads/NAME`: threads by the kernel's account of their waits for a CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dormouse_sys::process::identity::tid;
use dormouse_sys::process::schedstat::Schedstat;

use crate::affinity::Halves;
use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// The rows.
pub(super) const LOOK: &str = "threads/look";
pub(super) const APART: &str = "threads/apart";

/// Threads that are checked.
const MANY: usize = 256;
/// Threads that share a processor.
const SPINNERS: usize = 3;

/// Adds the rows.
pub(super) fn rows(bench: &mut Bench) {
    let spec = Spec::new(LOOK, "us").cpu().per("thread").with("threads", MANY as u64);
    bench.sample(spec, || {
        let crowd = Crowd::start(MANY, std::thread::park)?;
        let begun = thread_cpu_ns();
        let seen = crowd.tids.iter().filter(|&&tid| Schedstat::of_own(tid).is_some()).count();
        let took = thread_cpu_ns() - begun;
        if seen < MANY {
            return Err(Failure::from(format!("{} threads have no account", MANY - seen)));
        }
        Ok(took as f64 / 1e3 / MANY as f64)
    });
    // Long beside the waits that go on at either end, which the kernel has not added yet.
    let length = bench.pick(Duration::from_secs(5), Duration::from_secs(3));
    let spec = Spec::new(APART, "%")
        .better(Better::Lower)
        .wall()
        .with("threads", SPINNERS as u64)
        .with("processors", 1);
    bench.sample(spec, move || Halves::of_this_thread().on_last(|| apart(length))?);
}

/// The largest distance of a spinning thread's account from the time that has passed, in percent.
fn apart(length: Duration) -> Result<f64, Failure> {
    let crowd = Crowd::start(SPINNERS, std::hint::spin_loop)?;
    let (first, begun) = (crowd.accounts()?, Instant::now());
    std::thread::sleep(length);
    let (last, passed) = (crowd.accounts()?, begun.elapsed().as_nanos() as f64);
    let apart = first.iter().zip(last).map(|(first, last)| ((last - first) as f64 - passed).abs() / passed);
    Ok(apart.fold(0.0, f64::max) * 100.0)
}

/// Threads that do one thing until this goes.
struct Crowd {
    tids: Vec<u32>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn start(threads: usize, step: fn()) -> Result<Self, Failure> {
        let mut crowd =
            Self { tids: Vec::new(), ended: Arc::new(AtomicBool::new(false)), threads: Vec::new() };
        let (tell, told) = channel();
        for _ in 0..threads {
            let (tell, ended) = (tell.clone(), Arc::clone(&crowd.ended));
            let body = move || {
                let _ = tell.send(tid());
                while !ended.load(Ordering::Relaxed) {
                    step();
                }
            };
            crowd.threads.push(std::thread::Builder::new().stack_size(64 * 1024).spawn(body)?);
        }
        drop(tell);
        crowd.tids = told.into_iter().take(threads).collect();
        Ok(crowd)
    }

    /// For how long each has run or waited to.
    fn accounts(&self) -> Result<Vec<u64>, Failure> {
        let of = |&tid| {
            let Schedstat { run_ns, runnable_ns } = Schedstat::of_own(tid)?;
            Some(run_ns + runnable_ns?)
        };
        let accounts: Option<Vec<u64>> = self.tids.iter().map(of).collect();
        accounts.ok_or_else(|| Failure::from("the kernel does not count how long threads wait for a CPU"))
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

//! A peer of `bench profile` in a separate program: `pprof-rs` by the tables of exceptions. Two
//! versions of it cannot be in one program.
//!
//! Takes the number of bursts and of signals in each, and the form of the chain; prints the
//! nanoseconds per signal, and the frames of the deepest stack.

#[path = "../workloads/profile/frames.rs"]
#[allow(dead_code, reason = "the bench uses the rest")]
mod frames;

use std::time::Duration;

use anyhow::Context;
use frames::{Built, TimerSignal, take};

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [bursts, burst, form] = &words[..] else { anyhow::bail!("wants bursts, signals, and a form") };
    let (bursts, burst) = (bursts.parse::<u64>()?, burst.parse::<u64>()?);
    let built = Built::ALL.into_iter().find(|built| built.name() == form).context("no such form")?;
    let guard = pprof_by_tables::ProfilerGuard::new(1)?;
    let signals = move || -> std::io::Result<Duration> {
        let mut took = Duration::ZERO;
        for _ in 0..bursts {
            took += take(TimerSignal { signal: libc::SIGPROF, value: 0 }, built, burst)?;
        }
        Ok(took)
    };
    let sampled = std::thread::Builder::new().name("bench-sampled".to_owned()).spawn(signals)?;
    let took = sampled.join().map_err(|_| anyhow::anyhow!("the sampled thread panicked"))??;
    let deepest = guard.report().build_unresolved()?.data.keys().map(|key| key.frames.len()).max();
    println!("{} {}", took.as_nanos() as f64 / (bursts * burst) as f64, deepest.unwrap_or(0));
    Ok(())
}

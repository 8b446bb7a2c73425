//! `switch-cost/TIER` and `switch-and-read/TIER`: the price that a tier adds to a switch of the
//! kernel.
//!
//! Two threads on one processor pass a byte to each other through two pipes, so that each hand-over
//! is a switch. A value is the CPU time of both for each switch, in the fastest of a few batches:
//! other work on that processor only has an effect through the lines that it leaves in the caches.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::thread;

use dormouse::clock::{Tier, thread_cpu_ns as ours};
use dormouse_sys::rseq::Flag;

use super::tiers::{ALL, QUICK, has, only};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::clocks::thread_cpu_ns as kernels;
use crate::row::Spec;
use crate::runner::Failure;

/// Batches of a sample.
const BATCHES: usize = 10;

/// CPU time of each batch, in nanoseconds.
type Batches = [u64; BATCHES];

pub(super) fn rows(bench: &mut Bench) {
    row(bench, "switch-cost/none".to_owned(), Tier::Syscall, false);
    for tier in QUICK {
        row(bench, format!("switch-cost/{tier}"), tier, false);
    }
    for tier in ALL {
        row(bench, format!("switch-and-read/{tier}"), tier, true);
    }
}

fn row(bench: &mut Bench, name: String, tier: Tier, reads: bool) {
    let laps: u32 = bench.pick(100, 30);
    let spec = Spec::new(name, "ns").per("switch").with("clock", "CPU time of both threads");
    bench.sample(spec.with("batches", BATCHES).with("switches", 2 * laps), move || {
        only(tier)?;
        hand_round(tier, laps, reads)
    });
}

/// CPU nanoseconds for each switch between two threads in `tier`.
fn hand_round(tier: Tier, laps: u32, reads: bool) -> Result<f64, Failure> {
    let (first, second) = (pipe()?, pipe()?);
    let player = |from: PipeReader, to: PipeWriter, begins: bool| {
        move || -> Result<Batches, Failure> {
            has(tier)?;
            let flag = (tier == Tier::Rseq && !reads).then(Flag::of_this_thread).transpose()?;
            let away = || {
                if let Some(flag) = flag {
                    flag.arm();
                }
            };
            let back = || {
                if reads {
                    ours();
                }
            };
            play(from, to, begins, laps, away, back)
        }
    };
    // New threads: an old one would still pay for the tiers that it has had.
    let threads = Halves::of_this_thread().on_last(|| {
        let one = thread::Builder::new().spawn(player(first.0, second.1, true))?;
        Ok::<_, Failure>([one, thread::Builder::new().spawn(player(second.0, first.1, false))?])
    })??;
    let mut used = Batches::default();
    for thread in threads {
        let batches = thread.join().map_err(|_| Failure::from("a thread that hands on panicked"))??;
        used.iter_mut().zip(batches).for_each(|(sum, batch)| *sum += batch);
    }
    let fastest = used.into_iter().min().unwrap_or(0);
    Ok(fastest as f64 / f64::from(2 * laps))
}

/// One thread's part. A thread that cannot go on closes its pipes, and so ends the other.
fn play(
    mut from: PipeReader,
    mut to: PipeWriter,
    begins: bool,
    laps: u32,
    away: impl Fn(),
    back: impl Fn(),
) -> Result<Batches, Failure> {
    let mut byte = [0];
    let mut lap = || -> Result<(), Failure> {
        if begins {
            to.write_all(&byte)?;
        }
        away();
        from.read_exact(&mut byte)?;
        back();
        if !begins {
            to.write_all(&byte)?;
        }
        Ok(())
    };
    // The first lap finds both threads ready.
    lap()?;
    let mut batches = Batches::default();
    for batch in &mut batches {
        let begin = kernels();
        for _ in 0..laps {
            lap()?;
        }
        *batch = kernels() - begin;
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::clock::tiers::FORCING;

    #[test]
    fn two_threads_hand_on_to_the_end() {
        let _alone = FORCING.lock();
        for reads in [false, true] {
            assert!(hand_round(dormouse::clock::tier(), 20, reads).unwrap() > 0.0);
        }
    }
}

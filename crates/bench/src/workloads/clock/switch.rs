//! What a tier adds to a switch of the kernel.
//!
//! Two threads on one processor hand a byte to each other through two pipes, so that handing on is
//! switching. The value is the CPU time of both for each switch, in the fastest of a few batches: what else
//! runs on that processor is in it only by what it leaves in the caches.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::thread;

use dormouse::clock::{Tier, thread_cpu_ns as ours};
use dormouse_sys::rseq::Flag;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use super::{ALL, QUICK, has, only};
use crate::clocks::thread_cpu_ns as kernels;
use crate::runner::{Case, Failure, Spec};
use crate::workloads::Settings;

/// Batches of a sample.
const BATCHES: usize = 10;

/// CPU time of each batch, in nanoseconds.
type Batches = [u64; BATCHES];

/// The cases.
pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let laps: u32 = if settings.quick { 30 } else { 100 };
    let case = |name: String, tier: Tier, reads: bool| {
        let spec = Spec::new(name, "ns").with("per", "switch").with("clock", "CPU time of both threads");
        let spec = spec.with("batches", BATCHES).with("switches", 2 * laps);
        Case::new(vec![spec], move || {
            only(tier)?;
            Ok(vec![hand_round(tier, laps, reads)?])
        })
    };
    let mut cases = vec![case("switch-cost/none".to_owned(), Tier::Syscall, false)];
    cases.extend(QUICK.map(|tier| case(format!("switch-cost/{tier}"), tier, false)));
    cases.extend(ALL.map(|tier| case(format!("switch-and-read/{tier}"), tier, true)));
    cases
}

/// CPU nanoseconds for each switch between two threads in `tier`.
fn hand_round(tier: Tier, laps: u32, reads: bool) -> Result<f64, Failure> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    let (first, second) = (pipe()?, pipe()?);
    let player = |from: PipeReader, to: PipeWriter, begins: bool| {
        move || -> Result<Batches, Failure> {
            sched_setaffinity(None, &here)?;
            has(tier)?;
            let flag = (tier == Tier::Rseq && !reads).then(Flag::of_this_thread).transpose()?;
            let away = || {
                if let Some(flag) = flag {
                    flag.arm();
                }
            };
            play(from, to, begins, laps, away, || {
                if reads {
                    ours();
                }
            })
        }
    };
    // Threads of their own: what a thread once had for a tier would still cost it.
    let one = thread::Builder::new().spawn(player(first.0, second.1, true))?;
    let other = thread::Builder::new().spawn(player(second.0, first.1, false))?;
    let mut used = Batches::default();
    for thread in [one, other] {
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
    // Finds both ready.
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

    #[test]
    fn two_threads_hand_on_to_the_end() {
        let _alone = crate::workloads::clock::FORCING.lock();
        for reads in [false, true] {
            assert!(hand_round(dormouse::clock::tier(), 20, reads).unwrap() > 0.0);
        }
    }
}

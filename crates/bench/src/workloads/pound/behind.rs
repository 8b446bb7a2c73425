//! How far an answer is behind, while the threads pound.
//!
//! This thread reads now and then, as one more member, and asks `process_exact()` before and after. Everything that
//! the first of the two has counted had been used before the read: that much the answer is behind *at
//! least*. What the second one has counted is the *most*; it holds what was used while the threads were asked.
//! What the process has used outside the group is known from a moment when all members wait.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dormouse::clock::{Refresh, ThreadGroup, process_cpu_ns, process_exact};

use super::drive::{Kind, with_threads};
use crate::runner::{Case, Failure, Spec};
use crate::stats::Summary;
use crate::workloads::Settings;

/// What is measured: the rest of the rows' names.
pub(super) const NAMES: [&str; 4] = ["process", "group-stale", "group-stale-silent", "group-fresh"];

/// The cases for so many threads.
pub(super) fn cases(settings: &Settings, threads: usize) -> Vec<Case<'static>> {
    // Each waits until all other threads have had their turn on the processors: a quarter of a second at 128.
    let samples = if settings.quick { 2 } else { 10 };
    NAMES
        .into_iter()
        .map(|name| {
            let spec = |end| {
                Spec::new(format!("{end}/{name}/{threads}"), "ns")
                    .with("threads", threads)
                    .with("samples", samples)
                    .with("of_samples", "median")
            };
            Case::new(vec![spec("behind-least"), spec("behind-most")], move || behind(name, threads, samples))
        })
        .collect()
}

fn behind(name: &str, threads: usize, samples: usize) -> Result<Vec<f64>, Failure> {
    let kind = match name {
        "process" => Kind::Process,
        "group-fresh" => Kind::GroupFreshPrefetch,
        _ => Kind::GroupStale,
    };
    let silent = name.ends_with("-silent");
    let group = kind.group();
    // This thread is a member too: what it uses is no distance.
    let own = group.as_ref().map(ThreadGroup::join).transpose()?;
    let stop = AtomicBool::new(false);
    let read = || group.as_ref().map_or_else(process_cpu_ns, ThreadGroup::cpu_ns);
    let pound = || {
        while !stop.load(Ordering::Relaxed) {
            black_box(if silent { 0 } else { read() });
        }
    };
    let mut outside = 0;
    let before = || {
        outside = group.as_ref().map_or(Ok(0), outside_of)?;
        Ok(())
    };
    let distances = with_threads(threads, group.as_ref(), pound, before, |release| {
        release();
        let distances = (0..samples).map(|_| distance(&read)).collect::<Result<Vec<_>, _>>();
        stop.store(true, Ordering::Relaxed);
        distances
    })?;
    drop(own);
    let end = |of: fn(&(i64, i64)) -> i64| -> Result<f64, Failure> {
        let values: Vec<f64> = distances.iter().map(|pair| (of(pair) - outside) as f64).collect();
        let summary = Summary::of(&values).ok_or_else(|| Failure::from("no sample"))?;
        Ok(summary.median.max(0.0))
    };
    Ok(vec![end(|pair| pair.0)?, end(|pair| pair.1)?])
}

/// What the process has used outside a group whose members all wait but this thread.
fn outside_of(group: &ThreadGroup) -> Result<i64, Failure> {
    // A group that is refreshed in parts is waited for: each read walks on once a tolerance has passed.
    let parts = group.members().div_ceil(Refresh::default().most);
    for _ in 0..parts {
        group.refresh();
    }
    let exact = process_exact()?;
    Ok(exact.cast_signed() - group.cpu_ns().cast_signed())
}

/// What `process_exact` has before the read and after it, less the answer.
fn distance(read: &impl Fn() -> u64) -> Result<(i64, i64), Failure> {
    // Lets the others run and the last refresh grow old.
    thread::sleep(Duration::from_micros(500));
    let least = process_exact()?.cast_signed();
    let answer = read().cast_signed();
    let most = process_exact()?.cast_signed();
    Ok((least - answer, most - answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_not_above_the_most() {
        for name in NAMES {
            let ends = behind(name, 2, 4).unwrap();
            assert!(ends[0] <= ends[1], "{name}: {ends:?}");
        }
    }
}

//! How far an answer is from `process_exact()`, and from what its reader was told, while the threads pound.
//!
//! This thread reads now and then, as one more member, and then asks `process_exact()`, which is the *most* that the
//! answer had to be: it holds what was used while the threads were asked, too. Since the read began all processors
//! together had no more to give than that time; so much less is the *least*. Nobody is asked before the read, because
//! the kernel's plain answer would profit from it. So an answer is outside of its bound for certain if it is behind the
//! least by more than its reader was told, or ahead of the most by more than the members' clocks may be: for a group
//! that is a wrong answer. What the process has used outside the group is known from a moment when all members wait.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dormouse::clock::{GroupTime, Refresh, ThreadGroup, process_cpu_ns, process_exact};
use rustix::time::{ClockId, clock_getres};

use super::drive::{Kind, with_threads};
use crate::runner::{Case, Failure, Spec};
use crate::stats::Summary;
use crate::workloads::clock::error::error;

/// Who is asked, and whether the threads ask too: a part of the rows' names.
pub(super) const NAMES: [&str; 5] =
    ["process", "process-silent", "group-stale", "group-stale-silent", "group-fresh"];

/// Of the distances and of what the reader was told, with `outside` the rest of the rows' names.
const STATISTICS: [&str; 4] = ["p50", "max", "told-p50", "told-max"];

/// What a member's clock may be ahead, in nanoseconds, by the words of `ThreadGroup::read`.
const AHEAD: u64 = 1_000_000;

/// The cases for so many threads.
pub(super) fn cases(threads: usize) -> Vec<Case<'static>> {
    // Each waits until all other threads have had their turn on the processors: a quarter of a second at 128 on two.
    let samples = (120 / threads).clamp(2, 40);
    NAMES
        .into_iter()
        .map(|name| {
            let params =
                |name: String, unit| Spec::new(name, unit).with("threads", threads).with("samples", samples);
            let behind = |end| params(format!("{end}/{name}/{threads}"), "ns").with("of_samples", "median");
            let error = |what, unit| params(format!("pound-error/{name}/{threads}/{what}"), unit);
            let mut specs = vec![behind("behind-least"), behind("behind-most")];
            specs.extend(STATISTICS.map(|statistic| error(statistic, "ns")));
            specs.push(error("outside", "reads"));
            Case::new(specs, move || {
                let reads = read_among(name, threads, samples)?;
                let ahead = AHEAD * (threads as u64 + 1);
                let outside: Vec<&Read> = reads.iter().filter(|read| read.is_outside(ahead)).collect();
                match outside.first() {
                    Some(read) if name.starts_with("group") => {
                        let said = format!(
                            "{} of {samples} answers outside of their bound: {read:?}",
                            outside.len()
                        );
                        Err(Failure::Wrong(said))
                    }
                    _ => values(&reads, outside.len()),
                }
            })
        })
        .collect()
}

/// How long a tick of the kernel is: what that clock moves by.
fn tick_ns() -> u64 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    tick.tv_sec as u64 * 1_000_000_000 + tick.tv_nsec as u64
}

/// An answer, what its reader was told, and what it had to be. All without what was used outside a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Read {
    least: u64,
    answer: u64,
    told: u64,
    most: u64,
}

impl Read {
    /// Whether the answer is certainly further behind than it was said to be, or ahead by more than `ahead`.
    fn is_outside(&self, ahead: u64) -> bool {
        self.answer.saturating_add(self.told) < self.least || self.answer > self.most.saturating_add(ahead)
    }
}

/// Reads among pounding threads.
fn read_among(name: &str, threads: usize, samples: usize) -> Result<Vec<Read>, Failure> {
    let cpus = thread::available_parallelism().map_or(1, usize::from) as u64;
    let kind = match name {
        "process" | "process-silent" => Kind::Process,
        "group-fresh" => Kind::GroupFreshPrefetch,
        _ => Kind::GroupStale,
    };
    let silent = name.ends_with("-silent");
    let group = kind.group();
    // This thread is a member too: what it uses is no distance.
    let own = group.as_ref().map(ThreadGroup::join).transpose()?;
    let stop = AtomicBool::new(false);
    let pound = || {
        while !stop.load(Ordering::Relaxed) {
            black_box(match &group {
                _ if silent => 0,
                Some(group) => group.cpu_ns(),
                None => process_cpu_ns(),
            });
        }
    };
    let mut outside = (0, 0);
    let before = || {
        outside = group.as_ref().map_or(Ok((0, 0)), outside_of)?;
        Ok(())
    };
    let asked = with_threads(threads, group.as_ref(), pound, before, |release| {
        release();
        let read = || match &group {
            Some(group) => group.read(),
            // The kernel leaves out a tick for each sibling that runs.
            None => GroupTime { ns: process_cpu_ns(), behind_ns: tick_ns() * (cpus - 1) },
        };
        let asked = (0..samples).map(|_| ask(cpus, read)).collect::<Result<Vec<_>, _>>();
        stop.store(true, Ordering::Relaxed);
        asked
    })?;
    drop(own);
    let of_group = |(least, time, most): (u64, GroupTime, u64)| Read {
        least: least.saturating_sub(outside.1),
        answer: time.ns,
        told: time.behind_ns,
        most: most.saturating_sub(outside.0),
    };
    Ok(asked.into_iter().map(of_group).collect())
}

/// What the process had used at a read, at least and at most, and the answer in between.
fn ask(cpus: u64, read: impl Fn() -> GroupTime) -> Result<(u64, GroupTime, u64), Failure> {
    // Lets the others run and the last refresh grow old.
    thread::sleep(Duration::from_micros(500));
    let begin = Instant::now();
    let answer = read();
    let most = process_exact()?;
    let since = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok((most.saturating_sub(since.saturating_mul(cpus)), answer, most))
}

/// What the process has used outside a group whose members all wait but this thread, at least and at most.
fn outside_of(group: &ThreadGroup) -> Result<(u64, u64), Failure> {
    // A group that is refreshed in parts is waited for: each read walks on once a tolerance has passed.
    let parts = group.members().div_ceil(Refresh::default().most);
    let mut last = (0, 0);
    // Threads of the sample before may not be quite at their end.
    for _ in 0..100 {
        for _ in 0..parts {
            group.refresh();
        }
        process_exact()?;
        // Everybody who waits has been asked: between two reads of ours there is nothing but our own time.
        let before = group.cpu_ns();
        let process = process_cpu_ns();
        let outside = (process.saturating_sub(group.cpu_ns()), process.saturating_sub(before));
        if outside.0 <= last.1 {
            return Ok(outside);
        }
        last = outside;
        thread::sleep(Duration::from_micros(500));
    }
    Err(Failure::from("something else in this process computes all the time"))
}

/// The values of the rows of a case.
fn values(reads: &[Read], outside: usize) -> Result<Vec<f64>, Failure> {
    let behind = |of: fn(&Read) -> u64| {
        reads.iter().map(|read| (of(read) as f64 - read.answer as f64).max(0.0)).collect::<Vec<_>>()
    };
    let narrow = 3 * reads.iter().map(|read| read.most.saturating_sub(read.least)).min().unwrap_or(0);
    let errors: Vec<f64> = reads
        .iter()
        .filter_map(|read| error(read.least, read.answer, read.most.max(read.least), narrow))
        .map(|error| error as f64)
        .collect();
    let told: Vec<f64> = reads.iter().map(|read| read.told as f64).collect();
    let [least, most] = [behind(|read| read.least), behind(|read| read.most)];
    let [least, most, errors, told] = [least, most, errors, told].map(|values| Summary::of(&values));
    let missing = || Failure::from("no sample");
    let (errors, told) = (errors.ok_or_else(missing)?, told.ok_or_else(missing)?);
    let [least, most] = [least.ok_or_else(missing)?.median, most.ok_or_else(missing)?.median];
    Ok(vec![least, most, errors.median, errors.max, told.median, told.max, outside as f64])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests' threads are outside the group here: no bound is judged.
    #[test]
    fn each_read_has_a_least_a_most_and_a_bound() {
        for name in NAMES {
            let reads = loop {
                match read_among(name, 2, 4) {
                    Ok(reads) => break reads,
                    // Another test of this process computes; it comes to an end.
                    Err(Failure::Unavailable(_)) => std::thread::yield_now(),
                    Err(wrong) => panic!("{name}: {wrong:?}"),
                }
            };
            assert_eq!(reads.len(), 4);
            for read in reads {
                assert!(read.least <= read.most && read.answer > 0, "{name}: {read:?}");
                assert!(read.told > 0 || name.starts_with("process"), "{name}: {read:?}");
            }
        }
    }

    #[test]
    fn an_answer_is_outside_if_it_is_further_behind_than_told_or_further_ahead_than_clocks_may_be() {
        let read = Read { least: 1000, answer: 900, told: 100, most: 1200 };
        assert!(!read.is_outside(0));
        assert!(Read { told: 99, ..read }.is_outside(50));
        assert!(!Read { answer: 1250, ..read }.is_outside(50));
        assert!(Read { answer: 1251, ..read }.is_outside(50));
    }

    #[test]
    fn the_rows_are_the_medians_and_the_largest_of_the_reads() {
        let read = |answer, told| Read { least: 1000, answer, told, most: 1200 };
        let values = values(&[read(1100, 5), read(1090, 20), read(900, 300)], 0).unwrap();
        assert_eq!(values, [0.0, 110.0, 10.0, 200.0, 20.0, 300.0, 0.0]);
    }
}

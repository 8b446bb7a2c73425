//! `behind-…` and `pound-error/…`: how far an answer is from `process_exact()`, and from its own
//! bound, while the threads pound.
//!
//! This thread reads now and then, as one more member, and then asks `process_exact()`, which is
//! the *most* that the answer had to be: it includes the time used while the threads were asked.
//! Since the read began all processors together had no more to give than that time; the most less
//! that is the *least*. The kernel is not asked before the read, because its plain answer would
//! profit from that. So an answer is outside of its bound for certain if it is behind the least by
//! more than its reader was told, or ahead of the most by more than the members' clocks may be: for
//! a group that is a wrong answer. The time that the process has used outside the group is known
//! from a moment when all members wait, and what its other threads have used since then (a test's
//! first thread says after a minute that it still waits) is asked for at each read. One that ends
//! takes its time along, and one that begins is not asked: then all reads are taken again.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dormouse::clock::{process_cpu_ns, process_exact, thread_cpu_ns_of};
use dormouse_lab::{GroupTime, Refresh, ThreadGroup};
use dormouse_statistics::Statistics;
use rustix::time::{ClockId, clock_getres};

use super::drive::{Call, with_threads};
use crate::bench::Bench;
use crate::clocks::error;
use crate::row::Spec;
use crate::runner::Failure;

/// The clock that is asked, and whether the threads ask too: a part of the rows' names.
const NAMES: [&str; 5] = ["process", "process-silent", "group-stale", "group-stale-silent", "group-fresh"];

/// How far a member's clock may be ahead, in nanoseconds, by the documentation of
/// `ThreadGroup::read`.
const AHEAD: u64 = 1_000_000;

/// How often reads are taken until no other thread has begun or ended meanwhile.
const ATTEMPTS: usize = 5;

/// Adds the rows of this number of threads.
pub(super) fn rows(bench: &mut Bench, threads: usize) {
    // Each waits until all other threads have had their turn on the processors: a quarter of a
    // second at 128 on two.
    let samples = (120 / threads).clamp(2, 40);
    let ahead = AHEAD * (threads as u64 + 1);
    for name in NAMES {
        let spec = |name, unit| Spec::new(name, unit).with("threads", threads).with("samples", samples);
        let behind = ["behind-least", "behind-most"]
            .map(|end| spec(format!("{end}/{name}/{threads}"), "ns").with("of_samples", "median"));
        let errors = ["p50", "max", "told-p50", "told-max", "outside"].map(|what| {
            let unit = if what == "outside" { "reads" } else { "ns" };
            spec(format!("pound-error/{name}/{threads}/{what}"), unit)
        });
        bench.sample(behind.into_iter().chain(errors).collect::<Vec<_>>(), move || {
            let reads = undisturbed(|| read_among(name, threads, samples))?;
            let outside: Vec<&Read> = reads.iter().filter(|read| read.is_outside(ahead)).collect();
            match outside.first() {
                Some(read) if name.starts_with("group") => Err(Failure::wrong(format!(
                    "{} of {samples} answers outside of their bound: {read:?}",
                    outside.len()
                ))),
                _ => values(&reads, outside.len()),
            }
        });
    }
}

/// How long a tick of the kernel is: the step of that clock.
fn tick_ns() -> u64 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    tick.tv_sec as u64 * 1_000_000_000 + tick.tv_nsec as u64
}

/// An answer, its bound, and the least and most that it had to be. All without the time used
/// outside a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Read {
    least: u64,
    answer: u64,
    told: u64,
    most: u64,
}

impl Read {
    /// Whether the answer is certainly further behind than its bound, or ahead by more than
    /// `ahead`.
    fn is_outside(&self, ahead: u64) -> bool {
        self.answer.saturating_add(self.told) < self.least || self.answer > self.most.saturating_add(ahead)
    }
}

/// The first reads during which no other thread began or ended.
fn undisturbed<T>(mut take: impl FnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    for _ in 0..ATTEMPTS {
        if let Some(reads) = take()? {
            return Ok(reads);
        }
    }
    Err(Failure::from("other threads of this process began or ended each time"))
}

/// Reads among pounding threads. `None`: other threads began or ended meanwhile.
fn read_among(name: &str, threads: usize, samples: usize) -> Result<Option<Vec<Read>>, Failure> {
    let cpus = thread::available_parallelism().map_or(1, usize::from) as u64;
    let call = match name {
        "process" | "process-silent" => Call::Process,
        "group-fresh" => Call::GroupFreshPrefetch,
        _ => Call::GroupStale,
    };
    let silent = name.ends_with("-silent");
    let group = call.group();
    // This thread is a member too: the time that it uses is no distance.
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
    let read = || match &group {
        Some(group) => group.read(),
        // The kernel leaves out a tick for each sibling that runs.
        None => GroupTime { ns: process_cpu_ns(), behind_ns: tick_ns() * (cpus - 1) },
    };
    let others = group.as_ref().map(|_| Others::of_this_process()).transpose()?;
    let reads = with_threads(threads, group.as_ref(), pound, |release| {
        let used = || others.as_ref().map_or(0, Others::cpu_ns);
        let before = used();
        let outside = group.as_ref().map_or(Ok((0, 0)), outside_of)?;
        release();
        let since = || outside.1 + used().saturating_sub(before);
        let reads: Result<_, _> = (0..samples).map(|_| ask(cpus, outside.0, since, read)).collect();
        let are_same = others.as_ref().map_or(Ok(true), |others| others.are_beside(threads));
        stop.store(true, Ordering::Relaxed);
        Ok(are_same?.then_some(reads?))
    });
    drop(own);
    reads
}

/// The threads that the process has besides this one.
#[derive(Debug)]
struct Others(Vec<u32>);

impl Others {
    fn of_this_process() -> Result<Self, Failure> {
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let names = std::fs::read_dir("/proc/self/task")?.map_while(Result::ok);
        let tids = names.filter_map(|name| name.file_name().to_str()?.parse().ok());
        Ok(Self(tids.filter(|&tid| tid != own).collect()))
    }

    /// Whether they and this number of `members` are all that there are now.
    fn are_beside(&self, members: usize) -> Result<bool, Failure> {
        let Self(now) = Self::of_this_process()?;
        Ok(now.len() == self.0.len() + members && self.0.iter().all(|tid| now.contains(tid)))
    }

    fn cpu_ns(&self) -> u64 {
        self.0.iter().filter_map(|&tid| thread_cpu_ns_of(tid)).sum()
    }
}

/// Reads once, and determines the least and most that the answer had to be. The process has used at
/// least `outside` outside the group, and at most what `outside_by_now` returns after the read.
fn ask(
    cpus: u64,
    outside: u64,
    outside_by_now: impl Fn() -> u64,
    read: impl Fn() -> GroupTime,
) -> Result<Read, Failure> {
    // Lets the others run and the last refresh grow old.
    thread::sleep(Duration::from_micros(500));
    let begin = Instant::now();
    let GroupTime { ns: answer, behind_ns: told } = read();
    let most = process_exact()?;
    let since = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let least = most.saturating_sub(since.saturating_mul(cpus));
    let [least, most] = [least.saturating_sub(outside_by_now()), most.saturating_sub(outside)];
    Ok(Read { least, answer, told, most })
}

/// The time that the process has used outside a group whose members all wait but this thread, at
/// least and at most.
fn outside_of(group: &ThreadGroup) -> Result<(u64, u64), Failure> {
    // A group that is refreshed in parts is waited for: each read walks on once a tolerance has
    // passed.
    let parts = group.members().div_ceil(Refresh::default().most);
    let mut last = (0, 0);
    // Threads of the sample before may not be quite at their end.
    for _ in 0..100 {
        for _ in 0..parts {
            group.refresh();
        }
        process_exact()?;
        // All waiting members have been asked: between two reads of ours only this thread uses
        // time.
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
    let summary = |values: Vec<f64>| Statistics::of(&values).ok_or_else(|| Failure::from("no sample"));
    let behind = |of: fn(&Read) -> u64| {
        summary(reads.iter().map(|read| (of(read) as f64 - read.answer as f64).max(0.0)).collect())
    };
    let narrow = 3 * reads.iter().map(|read| read.most.saturating_sub(read.least)).min().unwrap_or(0);
    let errors =
        reads.iter().filter_map(|read| error(read.least, read.answer, read.most.max(read.least), narrow));
    let errors = summary(errors.map(|error| error as f64).collect())?;
    let told = summary(reads.iter().map(|read| read.told as f64).collect())?;
    let [least, most] = [behind(|read| read.least)?, behind(|read| read.most)?];
    Ok(vec![least.median, most.median, errors.median, errors.max, told.median, told.max, outside as f64])
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use dormouse_testkit::{eventually, in_child};

    use super::*;

    /// Threads of other tests are outside the group here: no bound is judged.
    #[test]
    fn each_read_has_its_bounds() {
        for name in NAMES {
            let reads = loop {
                match undisturbed(|| read_among(name, 2, 4)) {
                    Ok(reads) => break reads,
                    // Other tests of this process compute, or begin threads; they come to an end.
                    Err(Failure::Unavailable(_)) => std::thread::yield_now(),
                    Err(wrong) => panic!("{name}: {wrong:?}"),
                }
            };
            assert_eq!(reads.len(), 4);
            for read in reads {
                assert!(read.least <= read.most && read.answer > 0, "{name}: {read:?}");
            }
        }
    }

    #[test]
    fn threads_that_begin_or_end_are_seen() {
        in_child(|| {
            let (end, ended) = mpsc::channel::<()>();
            let other = thread::spawn(move || ended.recv());
            let others = Others::of_this_process().unwrap();
            assert!(others.are_beside(0).unwrap());
            let (end_member, ended) = mpsc::channel::<()>();
            let member = thread::spawn(move || ended.recv());
            assert!(others.are_beside(1).unwrap() && !others.are_beside(0).unwrap());
            drop(end);
            other.join().unwrap().unwrap_err();
            // Joined a moment before the kernel forgets it.
            eventually(|| !others.are_beside(1).unwrap());
            // As many as before, but not the same.
            assert!(!others.are_beside(0).unwrap());
            drop(end_member);
            member.join().unwrap().unwrap_err();
        });
    }

    #[test]
    fn disturbed_reads_are_taken_again() {
        let mut taken = 0;
        let mut third = || {
            taken += 1;
            Ok((taken == 3).then_some(taken))
        };
        assert_eq!(undisturbed(&mut third), Ok(3));
        let given_up = undisturbed(&mut third);
        assert!(
            matches!(&given_up, Err(Failure::Unavailable(why)) if why.contains("threads")),
            "{given_up:?}"
        );
        assert_eq!(taken, 3 + ATTEMPTS);
    }

    #[test]
    fn answers_beyond_their_bounds_are_outside() {
        let read = Read { least: 1000, answer: 900, told: 100, most: 1200 };
        assert!(!read.is_outside(0));
        assert!(Read { told: 99, ..read }.is_outside(50));
        assert!(!Read { answer: 1250, ..read }.is_outside(50));
        assert!(Read { answer: 1251, ..read }.is_outside(50));
    }

    #[test]
    fn rows_are_medians_and_maxima_of_reads() {
        let read = |answer, told| Read { least: 1000, answer, told, most: 1200 };
        let values = values(&[read(1100, 5), read(1090, 20), read(900, 300)], 0).unwrap();
        assert_eq!(values, [0.0, 110.0, 10.0, 200.0, 20.0, 300.0, 0.0]);
    }
}

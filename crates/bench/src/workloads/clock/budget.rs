//! `budget/…`: how late a CPU budget ends, its cost, and the cost of one that waits.
//!
//! Threads spin while this one waits for the end of a budget on them, and then reads the same
//! clock: the time past the target is the delay, including its own wake-up. The kernel's own sleep
//! on the CPU clock of the process is measured in the same way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, thread};

use dormouse::clock::{Budget, BudgetEnd, CpuMeter, process_cpu_ns, process_exact, thread_cpu_ns_of};
use dormouse_lab::{ProcessMeter, ThreadGroup, ThreadMeter};
use dormouse_statistics::quantiles;
use dormouse_sys::process::identity;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec};

use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// The budget of the `late` rows, in nanoseconds.
const BUDGET: u64 = 3_000_000;

/// The budgets of the `idle` rows: more than a thread that sleeps uses, also on a machine that
/// counts as its time what another guest took from it.
const UNUSED: Duration = Duration::from_millis(20);

const QUANTILES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// How far past its target each of `budgets` budgets on `threads` spinning threads is read.
type Late = fn(threads: usize, budgets: usize) -> Result<Vec<u64>, Failure>;

/// The `late` rows, and how many threads use each budget.
const METERS: [(&str, usize, Late); 4] = [
    ("thread", 1, of_thread),
    ("group", 2, of_group),
    ("process", 1, of_process),
    ("process-by-kernel", 1, by_kernel),
];

pub(super) fn rows(bench: &mut Bench) {
    let budgets = bench.pick(50, 10);
    for (name, threads, late) in METERS {
        let specs = QUANTILES.map(|(of, _)| {
            Spec::new(format!("budget/late/{name}/{of}"), "ns")
                .with("budget_ns", BUDGET)
                .with("budgets", budgets)
                .with("threads", threads)
        });
        bench.sample(specs, move || Ok(quantiles(late(threads, budgets)?, QUANTILES.map(|(_, part)| part))));
    }
    bench.per_iteration(Spec::new("budget/make-and-drop", "ns").per("budget"), |iterations| {
        let make = || Budget::new(ThreadMeter::current(), Duration::from_secs(1)).map(drop);
        let (elapsed, made) = cpu(|| (0..iterations).try_for_each(|_| make()));
        made?;
        Ok(elapsed)
    });
    let wall = Duration::from_millis(bench.pick(200, 50));
    for waiting in [1_usize, 100] {
        let spec = Spec::new(format!("budget/idle/{waiting}"), "us/s")
            .with("budgets", waiting)
            .with("budget_ns", UNUSED.as_nanos() as u64);
        bench.sample(spec, move || idle(waiting, wall));
    }
}

/// Runs `measure` while `threads` threads spin, members of `join` if there is one, and passes it
/// their ids.
fn beside<T>(
    threads: usize,
    join: Option<&ThreadGroup>,
    measure: impl FnOnce(&[u32]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let stop = AtomicBool::new(false);
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (send, stop) = (send.clone(), &stop);
            scope.spawn(move || {
                let member = join.map(ThreadGroup::join).transpose();
                let joined = member.as_ref().map(|_| identity::tid()).map_err(ToString::to_string);
                // Fails if another thread could not join: then the receiver is gone.
                let _told = send.send(joined);
                while member.is_ok() && !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let tids: Result<Vec<u32>, String> = receive.iter().take(threads).collect();
        let result = tids.map_err(Failure::Unavailable).and_then(|tids| measure(&tids));
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn late<M: CpuMeter + Clone + 'static>(
    meter: &M,
    budgets: usize,
    read: impl Fn() -> Option<u64>,
) -> Result<Vec<u64>, Failure> {
    let one = |_| {
        let budget = Budget::new(meter.clone(), Duration::from_nanos(BUDGET))?;
        let BudgetEnd::Exceeded { .. } = budget.wait() else {
            return Err(Failure::wrong("what spins has ended"));
        };
        let (read, target) = (read().ok_or("a thread has no clock")?, budget.target_ns());
        let early = || Failure::wrong(format!("{read} is read after a budget until {target}"));
        read.checked_sub(target).ok_or_else(early)
    };
    (0..budgets).map(one).collect()
}

fn of_thread(threads: usize, budgets: usize) -> Result<Vec<u64>, Failure> {
    beside(threads, None, |tids| late(&ThreadMeter::of(tids[0])?, budgets, || thread_cpu_ns_of(tids[0])))
}

fn of_group(threads: usize, budgets: usize) -> Result<Vec<u64>, Failure> {
    let group = ThreadGroup::new();
    beside(threads, Some(&group), |_| late(&group, budgets, || group.cpu_ns().into()))
}

fn of_process(threads: usize, budgets: usize) -> Result<Vec<u64>, Failure> {
    beside(threads, None, |_| late(&ProcessMeter, budgets, || process_exact().ok()))
}

fn by_kernel(threads: usize, budgets: usize) -> Result<Vec<u64>, Failure> {
    let one = |_| {
        let target = process_exact()? + BUDGET;
        let until = Timespec {
            tv_sec: (target / 1_000_000_000).cast_signed(),
            tv_nsec: (target % 1_000_000_000).cast_signed(),
        };
        while clock_nanosleep_absolute(ClockId::ProcessCPUTime, &until).is_err() {
            if process_cpu_ns() > target + 1_000_000_000 {
                return Err(Failure::from("no sleep on the CPU clock of the process"));
            }
        }
        Ok(process_exact()?.saturating_sub(target))
    };
    beside(threads, None, |_| (0..budgets).map(one).collect())
}

/// Microseconds a second that the timer uses while `budgets` budgets wait for this thread, which
/// sleeps.
fn idle(budgets: usize, wall: Duration) -> Result<f64, Failure> {
    let meter = ThreadMeter::current();
    // Before the others begin, since to look for the timer's thread takes CPU time.
    let _first = Budget::new(meter.clone(), Duration::from_secs(60))?;
    let timer = timer()?;
    let waiting = (0..budgets).map(|_| Budget::new(meter.clone(), UNUSED));
    let waiting = waiting.collect::<Result<Vec<_>, _>>()?;
    let used = || thread_cpu_ns_of(timer).ok_or_else(|| Failure::from("the timer's thread has no clock"));
    // By then the timer looks as rarely as it ever will.
    thread::sleep(Duration::from_millis(100));
    let before = used()?;
    thread::sleep(wall);
    let used = used()? - before;
    if waiting.iter().any(|budget| budget.end().is_some()) {
        return Err(Failure::from("a budget was used up by a thread that slept"));
    }
    Ok(used as f64 / 1000.0 / wall.as_secs_f64())
}

/// The number of the timer's thread.
fn timer() -> Result<u32, Failure> {
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?;
        if fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "dormouse-budget") {
            return Ok(task.file_name().to_string_lossy().parse()?);
        }
    }
    Err(Failure::from("the timer has no thread"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_budget_ends_past_its_target() {
        for (_, _, late) in METERS {
            assert_eq!(late(1, 2).unwrap().len(), 2);
        }
        assert!(idle(3, Duration::from_millis(20)).unwrap() < 1_000_000.0);
    }
}

//! How late a CPU budget ends, what one costs, and what one costs that waits.
//!
//! Threads spin while this one waits for the end of a budget on them, and then reads the same clock: what it finds
//! past the target is how late it was told, its own waking included. The kernel's own sleep on the CPU clock of
//! the process is measured the same way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, thread};

use dormouse::clock::{
    Budget, BudgetEnd, CpuMeter, ProcessMeter, ThreadGroup, ThreadMeter, process_cpu_ns, process_exact,
    thread_cpu_ns_of,
};
use rustix::thread::{clock_nanosleep_absolute, gettid};
use rustix::time::{ClockId, Timespec};

use crate::clocks::cpu;
use crate::runner::{Case, Failure, Spec};
use crate::workloads::Settings;

/// The budget of the `late` rows, in nanoseconds.
const BUDGET: u64 = 3_000_000;

const PERCENTILES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// Meters of the `late` rows, and how many threads use their budget.
const METERS: [(&str, usize); 3] = [("thread", 1), ("group", 2), ("process", 1)];

pub(super) const NOTES: [&str; 2] = [
    "budget/late rows: CPU time past the target when who waited reads the same clock; a value is the percentile of one \
     round's budgets of 3 ms, used by spinning threads (a group by two of them). process-by-kernel: \
     clock_nanosleep on the CPU clock of the process, which looks in the scheduler's tick",
    "budget/idle rows: CPU time of the timer's thread in a second of wall time while so many budgets of 1 ms wait for a \
     thread that sleeps",
];

/// The cases.
pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let budgets = if settings.quick { 10 } else { 50 };
    let late = |name: &str, threads: usize, measure: fn(usize, usize) -> Result<Vec<u64>, Failure>| {
        let specs = PERCENTILES.map(|(percentile, _)| {
            Spec::new(format!("budget/late/{name}/{percentile}"), "ns")
                .with("budget_ns", BUDGET)
                .with("budgets", budgets)
                .with("threads", threads)
        });
        Case::new(specs.into(), move || {
            let mut late = measure(threads, budgets)?;
            late.sort_unstable();
            let last = late.len().saturating_sub(1);
            Ok(PERCENTILES.map(|(_, part)| late[(part * last as f64).ceil() as usize] as f64).into())
        })
    };
    let [thread, group, process] = METERS;
    let mut cases = vec![
        late(thread.0, thread.1, of_thread),
        late(group.0, group.1, of_group),
        late(process.0, process.1, of_process),
        late("process-by-kernel", 1, by_kernel),
        Case::per_iteration(
            Spec::new("budget/make-and-drop", "ns").with("per", "budget"),
            settings.target(),
            |iterations| {
                let make = || Budget::new(ThreadMeter::current(), Duration::from_secs(1)).map(drop);
                let (elapsed, made) = cpu(|| (0..iterations).try_for_each(|_| make()));
                made?;
                Ok(elapsed)
            },
        ),
    ];
    let wall = Duration::from_millis(if settings.quick { 50 } else { 200 });
    for waiting in [1_usize, 100] {
        let spec = Spec::new(format!("budget/idle/{waiting}"), "us/s").with("budgets", waiting);
        cases.push(Case::new(vec![spec], move || Ok(vec![idle(waiting, wall)?])));
    }
    cases
}

/// Runs `measure` while so many threads spin, and tells it their numbers.
fn beside<T>(
    threads: usize,
    join: Option<&ThreadGroup>,
    measure: impl FnOnce(&[u32]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let stop = AtomicBool::new(false);
    let (send, receive) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (send, stop) = (send.clone(), &stop);
            scope.spawn(move || {
                let member = join.map(ThreadGroup::join).transpose();
                // Gone, if somebody else failed.
                let _told = send.send(
                    member
                        .as_ref()
                        .map(|_| gettid().as_raw_pid().cast_unsigned())
                        .map_err(ToString::to_string),
                );
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

/// How far past its target each of so many budgets is read when it has ended.
fn late<M: CpuMeter + Clone + 'static>(
    meter: &M,
    budgets: usize,
    read: impl Fn() -> Option<u64>,
) -> Result<Vec<u64>, Failure> {
    (0..budgets)
        .map(|_| {
            let budget = Budget::new(meter.clone(), Duration::from_nanos(BUDGET))?;
            let BudgetEnd::Exceeded { .. } = budget.wait() else {
                return Err(Failure::Wrong("what spins has ended".to_owned()));
            };
            let read = read().ok_or_else(|| Failure::from("a thread has no clock"))?;
            let late = read.checked_sub(budget.target_ns());
            late.ok_or_else(|| {
                Failure::Wrong(format!("{read} is read after a budget until {}", budget.target_ns()))
            })
        })
        .collect()
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
    beside(threads, None, |_| {
        (0..budgets)
            .map(|_| {
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
            })
            .collect()
    })
}

/// Microseconds a second that the timer uses while so many budgets wait for this thread, which sleeps.
fn idle(budgets: usize, wall: Duration) -> Result<f64, Failure> {
    let meter = ThreadMeter::current();
    let waiting = (0..budgets).map(|_| Budget::new(meter.clone(), Duration::from_millis(1)));
    let waiting = waiting.collect::<Result<Vec<_>, _>>()?;
    let timer = timer()?;
    let used = || thread_cpu_ns_of(timer).ok_or_else(|| Failure::from("the timer's thread has no clock"));
    // Until it looks as rarely as it ever will.
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
        for measure in [of_thread, of_group, of_process, by_kernel] {
            assert_eq!(measure(1, 2).unwrap().len(), 2);
        }
        assert!(idle(3, Duration::from_millis(20)).unwrap() < 1_000_000.0);
    }
}

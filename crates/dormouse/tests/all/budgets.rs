//! CPU budgets of groups and of tasks: they are told of once, when they are over, whatever their
//! tasks do.

use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use dormouse::clock::BudgetEnd;
use dormouse::{Budgeted, Group, TaskBudget, budgeted};
use dormouse_testkit::{HANG, spin_for};

const MS: Duration = Duration::from_millis(1);

/// The calls of a budget's function.
#[derive(Clone, Default)]
struct Exceeded(Arc<Mutex<Vec<Duration>>>);

impl Exceeded {
    fn function(&self) -> impl Fn(Duration) + Send + Sync + 'static {
        let told = Arc::clone(&self.0);
        move |used| told.lock().unwrap().push(used)
    }

    fn times(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A future that uses `time` in each of `polls` polls.
fn works(time: Duration, polls: u32) -> impl Future<Output = ()> {
    let mut left = polls;
    poll_fn(move |_| {
        spin_for(time);
        left -= 1;
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
}

#[test]
fn a_group_over_its_budget_reads_no_less() {
    let group = Group::new("over its budget");
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // One task that never yields, so that nothing but a reading from outside can tell.
            let _entered = group.enter();
            while !stop.load(Ordering::Relaxed) {
                spin_for(MS / 10);
            }
        });
        let told = Exceeded::default();
        for budget in [MS, 5 * MS] {
            let before = group.read().cpu;
            let tell = told.function();
            let watched = group.budget(budget).unwrap().on_exceeded(tell);
            let end = watched.wait_timeout(HANG);
            let read = group.read().cpu;
            assert!(matches!(end, Some(BudgetEnd::Exceeded { used }) if used >= budget), "{end:?}");
            assert!(read >= before + budget, "{read:?} after {before:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_task_over_its_budget_is_told_once() {
    let told = Exceeded::default();
    let mut future = pin!(budgeted(works(2 * MS, 4), 5 * MS, told.function()));
    for polls in 1..=4 {
        let outside = told.clone();
        let done = poll(future.as_mut()).is_ready();
        assert_eq!(done, polls == 4);
        // Two polls may be over already, by what is preempted inside of an epoch; one cannot, nor
        // three not be.
        if polls != 2 {
            assert_eq!(outside.times(), usize::from(polls > 2), "after {polls} polls");
        }
    }
    let used = told.0.lock().unwrap()[0];
    assert!(used > 5 * MS && Some(used) <= future.budget().used(), "{used:?} {:?}", future.budget());
    assert_eq!(told.times(), 1);
}

#[test]
fn a_task_within_its_budget_is_never_told() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let told = Exceeded::default();
    runtime.block_on(budgeted(
        async {
            tokio::time::sleep(200 * MS).await;
            // Other work meanwhile pays for itself.
            tokio::join!(async { tokio::task::yield_now().await }, tokio::time::sleep(MS));
        },
        150 * MS,
        told.function(),
    ));
    assert_eq!(told.times(), 0);
}

#[test]
fn a_recorded_budget_sleeps_until_it_is_traced() {
    let asleep = TaskBudget::recorded(MS);
    let work = |budget: &TaskBudget| {
        let group = Group::new("recorded");
        assert!(poll(pin!(group.instrument(budget.instrument(works(2 * MS, 1))))).is_ready());
        let _counted = budget.enter();
    };
    work(&asleep);
    let mut trace = dormouse::trace("dormouse.over_budget").unwrap();
    let awake = TaskBudget::recorded(MS);
    work(&asleep);
    work(&awake);
    assert_eq!(asleep.used(), None);
    let used = awake.used().unwrap();
    let mut records = Vec::new();
    trace.poll(|_, _, record| {
        let [used, limit] =
            record.values.iter().map(|value| value.to_string().parse().unwrap()).collect::<Vec<u128>>()[..]
        else {
            panic!()
        };
        records.push((record.group, used, limit));
    });
    let [(group, cpu_us, limit_us)] = records[..] else { panic!("{records:?}") };
    assert_eq!((group, limit_us), (Group::new("recorded").id(), 1000));
    assert!((1000..=used.as_micros()).contains(&cpu_us), "{cpu_us} of {used:?}");
}

#[test]
fn work_on_other_threads_uses_the_same_budget() {
    let told = Exceeded::default();
    let budget = TaskBudget::new(5 * MS, told.function());
    let mut future = pin!(budget.instrument(works(2 * MS, 2)));
    assert!(poll(future.as_mut()).is_pending());
    let offloaded = budget.clone();
    thread::spawn(move || {
        let _counted = offloaded.enter();
        spin_for(4 * MS);
    })
    .join()
    .unwrap();
    assert_eq!(told.times(), 1);
    assert!(poll(future.as_mut()).is_ready());
    assert!(budget.used() >= Some(7 * MS), "{budget:?}");
    assert_eq!(told.times(), 1);
}

#[test]
fn the_destructor_of_a_task_uses_its_budget() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            spin_for(3 * MS);
        }
    }
    for ends in [false, true] {
        let told = Exceeded::default();
        let slow = Slow;
        let mut future = Box::pin(budgeted(
            async move {
                let _slow = slow;
                if !ends {
                    pending::<()>().await;
                }
            },
            2 * MS,
            told.function(),
        ));
        assert_eq!(poll(future.as_mut()).is_ready(), ends);
        assert_eq!(told.times(), usize::from(ends));
        drop(future);
        assert_eq!(told.times(), 1);
    }
}

#[test]
fn a_poll_that_panics_is_told_later() {
    let told = Exceeded::default();
    let mut future: Pin<Box<Budgeted<_>>> = Box::pin(budgeted(
        async {
            spin_for(3 * MS);
            panic!("as the test wants it");
        },
        2 * MS,
        told.function(),
    ));
    assert!(catch_unwind(AssertUnwindSafe(|| poll(future.as_mut()))).is_err());
    assert_eq!(told.times(), 0, "not while the thread unwinds");
    let budget = future.budget().clone();
    assert!(budget.used() >= Some(2 * MS));
    drop(future);
    assert_eq!(told.times(), 1);
}

#[test]
fn the_function_runs_inside_the_tasks_group() {
    let group = Group::new("told inside");
    let inside = Arc::new(AtomicU32::new(0));
    let tell = Arc::clone(&inside);
    let within = budgeted(works(2 * MS, 1), MS, move |_| {
        tell.store(dormouse_sys::records::current_task().group, Ordering::Relaxed);
    });
    assert!(poll(pin!(group.instrument(within))).is_ready());
    assert_eq!(inside.load(Ordering::Relaxed), group.id());
}

//! `poll/…`, `spawn/…` and `attribution/…`: the cost of a group for a poll, by the way in which its
//! thread switches and by the number of counted events.
//!
//! The tasks are those of `bench poll`: they do nothing but yield. Every runtime gets eager: the
//! end of a poll restores the context from before it, so counters are read twice a poll. On a lazy
//! thread the last task stays current until the next one comes: nothing is read between two of one
//! group.

use dormouse::events::{Error, Mode, set_lazy};
use dormouse::{Counting, Event, Group};

use super::soft::soft;
use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;
use crate::table::value;
use crate::workloads::poll::{hog, tasks};
use crate::yardsticks;

/// How many events are counted.
const COUNTS: [usize; 2] = [1, 8];

/// The ways, and whether the thread is lazy, the tasks are of two groups in turn, and each task
/// counts for itself.
const WAYS: [(&str, bool, bool, Mode); 5] = [
    ("eager", false, false, Mode::GroupExact),
    ("eager-distinct", false, true, Mode::GroupExact),
    ("lazy-same", true, false, Mode::GroupExact),
    ("lazy-distinct", true, true, Mode::GroupExact),
    ("task-exact", false, false, Mode::TaskExact),
];

/// A thread that is lazy, or not, and counted events, until dropped.
struct Counted {
    _countings: Vec<Counting>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        set_lazy(false);
    }
}

pub(super) fn rows(bench: &mut Bench) {
    tasks::bare(bench);
    tasks::peers(bench);
    yardsticks::rdtsc(bench);
    let groups = ["bench poll", "bench poll, the others"].map(Group::new);
    let asleep = tasks::spec("dormouse-asleep").with("events", 0);
    tasks::row(bench, asleep, || Ok(()), move |_, task| groups[0].instrument(task));
    for (name, lazy, distinct, mode) in WAYS {
        for count in COUNTS {
            let spec = tasks::spec(&format!("dormouse-{name}/{count}")).with("events", count);
            let Some(events) = bench.need(spec.clone(), soft(count)) else { continue };
            let ready = move || Ok(begin(groups, &events, mode, lazy)?);
            tasks::row(bench, spec, ready, move |number, task| {
                groups[if distinct { number as usize % 2 } else { 0 }].instrument(task)
            });
        }
    }
    spawn(bench, "spawn/bare", false);
    spawn(bench, "spawn/dormouse", true);
    hog::rows_by_thread(bench);
}

fn begin(groups: [Group; 2], events: &[Event], mode: Mode, lazy: bool) -> Result<Counted, Error> {
    let countings =
        groups.into_iter().map(|group| group.start_counting(events, mode)).collect::<Result<_, _>>()?;
    set_lazy(lazy);
    Ok(Counted { _countings: countings })
}

/// Adds a row from the start of a task that is ready at once to its end.
fn spawn(bench: &mut Bench, name: &str, instrumented: bool) {
    let group = Group::new("bench spawn");
    let spec = Spec::new(name, "ns").per("task").cpu();
    let Some(runtime) = bench.need(spec.clone(), tasks::runtime()) else { return };
    bench.per_iteration(spec, move |tasks| {
        let _counting = group.start_counting(&[Event::TASK_CLOCK], Mode::GroupExact)?;
        let spawned = async {
            for _ in 0..tasks {
                let task = async {};
                let handle =
                    if instrumented { tokio::spawn(group.instrument(task)) } else { tokio::spawn(task) };
                let _ = handle.await;
            }
        };
        let (took, ()) = cpu(|| runtime.block_on(spawned));
        Ok::<_, Failure>(took)
    });
}

pub(super) fn compare(bench: &mut Bench) {
    bench.added("poll", "bare", &["tokio-metrics", "clock_gettime", "dormouse-asleep"]);
    for (name, count) in WAYS.into_iter().flat_map(|(name, ..)| COUNTS.map(|count| (name, count))) {
        bench.added("poll", "bare", &[&format!("dormouse-{name}/{count}")]);
    }
    let eager = "poll-added/dormouse-eager/1";
    let allowed = bench.median("read/rdtsc").map(|rdtsc| 2.0 * rdtsc + 20.0);
    let text =
        format!("poll/dormouse-eager/1 adds at most 2 read/rdtsc + 20 ns, {} ns in this run", value(allowed));
    bench.at_most(&text, eager, allowed.unwrap_or(f64::NAN));
    let metrics = bench.median("poll-added/tokio-metrics");
    let text = format!(
        "poll/dormouse-eager/1 adds at most a quarter of tokio-metrics, {} ns in this run",
        value(metrics)
    );
    bench.at_most(&text, eager, metrics.map_or(f64::NAN, |metrics| metrics / 4.0));
    for (name, most) in [("lazy-same/1", 6.0), ("lazy-same/8", 6.0), ("lazy-distinct/1", 40.0)] {
        let text = format!("poll/dormouse-{name} adds at most {most} ns");
        bench.at_most(&text, &format!("poll-added/dormouse-{name}"), most);
    }
    let text = "attribution/hog/eager within 5 % of the hog's time";
    bench.at_most(text, "attribution/hog/eager", 5.0);
    bench.explain(include_str!("notes.txt"));
    bench.explain(include_str!("../poll/hog.txt"));
    bench.added("spawn", "bare", &["dormouse"]);
}

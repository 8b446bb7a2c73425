//! What a group costs a poll, by the way in which its thread switches and by how much is counted.
//!
//! The tasks are those of `bench poll`: they do nothing but yield. Eager is what every runtime gets: the end of a poll
//! restores what was current before, so counters are read twice a poll. On a lazy thread the last task stays current until
//! the next one comes: nothing is read between two of one group.

use dormouse::events::{Error, Mode, set_lazy};
use dormouse::{Counting, Event, Group};

use super::ring::soft;
use crate::report::{Row, find};
use crate::runner::{Case, Failure};
use crate::table::value;
use crate::workloads::poll::{case_in, peers, runtime, spec};
use crate::workloads::{Settings, goal, hog, read};

/// How many events are counted.
const COUNTS: [usize; 2] = [1, 8];

/// The ways, and whether the thread is lazy, the tasks are of two groups in turn, and each task counts for itself.
const WAYS: [(&str, bool, bool, Mode); 5] = [
    ("eager", false, false, Mode::GroupExact),
    ("eager-distinct", false, true, Mode::GroupExact),
    ("lazy-same", true, false, Mode::GroupExact),
    ("lazy-distinct", true, true, Mode::GroupExact),
    ("task-exact", false, false, Mode::TaskExact),
];

/// What is held while a row runs: the thread is lazy, or not, and events are counted.
struct Held {
    _countings: Vec<Counting>,
}

impl Drop for Held {
    fn drop(&mut self) {
        set_lazy(false);
    }
}

pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let mut cases = peers(settings);
    cases.push(read::rdtsc(settings));
    let groups = ["bench poll", "bench poll, the others"].map(Group::new);
    let asleep = spec("poll/dormouse-asleep").with("events", 0);
    cases.push(case_in(asleep, settings, || Ok(()), move |_, task| groups[0].instrument(task)));
    for (name, lazy, distinct, mode) in WAYS {
        for count in COUNTS {
            let spec = spec(&format!("poll/dormouse-{name}/{count}")).with("events", count);
            let events = match soft(count) {
                Ok(events) => events,
                Err(error) => {
                    cases.push(Case::unavailable(vec![spec], error.to_string()));
                    continue;
                }
            };
            let ready = move || Ok::<_, Failure>(hold(groups, &events, mode, lazy)?);
            cases.push(case_in(spec, settings, ready, move |number, task| {
                groups[if distinct { number as usize % 2 } else { 0 }].instrument(task)
            }));
        }
    }
    cases.extend(spawns(settings));
    cases.extend(hog::ways(settings));
    cases
}

fn hold(groups: [Group; 2], events: &[Event], mode: Mode, lazy: bool) -> Result<Held, Error> {
    let countings = groups.into_iter().map(|group| group.count(events, mode)).collect::<Result<_, _>>()?;
    set_lazy(lazy);
    Ok(Held { _countings: countings })
}

/// From the start of a task that is ready at once to its end.
fn spawns(settings: &Settings) -> Vec<Case<'static>> {
    let group = Group::new("bench spawn");
    let case = |name: &str, instrumented: bool| {
        let spec = crate::runner::Spec::new(name, "ns").with("per", "task").with("clock", "thread CPU time");
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => {
                return Case::unavailable(vec![spec], format!("cannot build a tokio runtime: {error}"));
            }
        };
        Case::per_iteration(spec, settings.target(), move |tasks| {
            let _counting = group.count(&[Event::TASK_CLOCK], Mode::GroupExact)?;
            let (took, ()) = crate::clocks::cpu(|| {
                runtime.block_on(async {
                    for _ in 0..tasks {
                        let task = async {};
                        let handle = if instrumented {
                            tokio::spawn(group.instrument(task))
                        } else {
                            tokio::spawn(task)
                        };
                        let _ = handle.await;
                    }
                });
            });
            Ok(took)
        })
    };
    vec![case("spawn/bare", false), case("spawn/dormouse", true)]
}

/// Rows computed from the measured ones.
pub(super) fn compare(rows: &[Row], notes: &mut Vec<String>) -> Vec<Row> {
    let bare = find(rows, "poll/bare");
    let mut names: Vec<String> =
        ["tokio-metrics", "clock_gettime", "dormouse-asleep"].map(str::to_owned).into();
    for (name, ..) in WAYS {
        names.extend(COUNTS.map(|count| format!("dormouse-{name}/{count}")));
    }
    let added: Vec<Row> = names
        .iter()
        .map(|name| {
            Row::minus(&format!("poll-added/{name}"), "ns", &find(rows, &format!("poll/{name}")), &bare)
        })
        .collect();
    let of = |name: &str| find(&added, &format!("poll-added/{name}"));
    let allowed = find(rows, "read/rdtsc").median.map(|rdtsc| 2.0 * rdtsc + 20.0);
    notes.push(goal(
        &format!(
            "poll/dormouse-eager/1 adds at most 2 read/rdtsc + 20 ns, {} ns in this run",
            value(allowed)
        ),
        &of("dormouse-eager/1"),
        |x| allowed.is_some_and(|allowed| x <= allowed),
    ));
    let metrics = of("tokio-metrics").median;
    notes.push(goal(
        &format!(
            "poll/dormouse-eager/1 adds at most a quarter of tokio-metrics, {} ns in this run",
            value(metrics)
        ),
        &of("dormouse-eager/1"),
        |x| metrics.is_some_and(|metrics| 4.0 * x <= metrics),
    ));
    for count in COUNTS {
        let name = format!("dormouse-lazy-same/{count}");
        notes.push(goal(&format!("poll/{name} adds at most 6 ns"), &of(&name), |x| x <= 6.0));
    }
    notes.push(goal(
        "poll/dormouse-lazy-distinct/1 adds at most 40 ns",
        &of("dormouse-lazy-distinct/1"),
        |x| x <= 40.0,
    ));
    notes.push(goal(
        "attribution/hog/eager within 5 % of the hog's time",
        &find(rows, "attribution/hog/eager"),
        |x| x <= 5.0,
    ));
    notes.push(
        "attribution/hog/lazy is what a lazy thread does where it has no place: the hog, which is no task, is charged to the \
         group"
            .to_owned(),
    );
    notes.push(hog::NOTE.to_owned());
    let mut computed = added;
    let spawn = |name: &str| find(rows, &format!("spawn/{name}"));
    computed.push(Row::minus("spawn-added/dormouse", "ns", &spawn("dormouse"), &spawn("bare")));
    computed
}

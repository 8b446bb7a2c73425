//! `DORMOUSE_MAX_CPU=1%`: how much of a CPU dormouse may use.
//!
//! The agent checks each ten seconds. If dormouse has used more since the last check, the part that
//! cost the most is suspended, one at each check, until there is no more to save. Nothing resumes a
//! part but `dormouse wake`, so none goes on and off again. Answers to `stat` and `doctor`, and
//! refusals of requests that need the part, have the reason.
//!
//! | part | what is suspended | its cost |
//! |---|---|---|
//! | records | keys of probes: traces, the recorder | records |
//! | times | times and places of tasks, notes of locks | polls and locks, while such are taken |
//! | counts | CPU time and events of groups | polls otherwise |
//! | profiles | those of clients end | what the handler measures, and our threads |
//! | watches | those of clients end | what the handler measures |
//!
//! Dormouse's own threads count, too: if they alone use more, the parts that give them work are
//! suspended. The agent's answers to its clients, budgets of tasks, and the profiles and watches of
//! the service's own code go on. While counts are suspended, budgets of groups stand still.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dormouse_protocol::OwnCost;
use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::{Capability, environment};

use crate::agent::Client;
use crate::core::asleep::{self, Part};
use crate::core::memory;
use crate::features::cost::own_cost;
use crate::features::{profile, recorder, sleep, watch};

/// The time between two checks.
const WINDOW: Duration = Duration::from_secs(10);
/// The check of `doctor`.
const CHECK: &str = "limit.cpu";

/// The use at the last check, if that was too much and nothing could be suspended for it, in
/// thousandths of a percent of a CPU; else 0.
static TOO_MUCH: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// When the agent has checked last, and the cost by then.
    static LAST: Cell<Option<(u64, OwnCost)>> = const { Cell::new(None) };
}

/// Checks, if it is time; returns the longest time until the next check, if there is a limit.
pub(crate) fn look(clients: &mut [Client]) -> Option<Duration> {
    let percent = setting()?.ok()?;
    let now = monotonic_ns();
    let is_time = LAST.get().is_none_or(|(at, _)| now - at >= WINDOW.as_nanos() as u64);
    if is_time && !asleep::is_asleep() && memory::is_there_for_keys() {
        let cost = own_cost();
        if let Some((at, before)) = LAST.replace(Some((now, cost))) {
            judge(cost.since(before), now - at, percent, clients);
        }
    }
    Some(WINDOW)
}

/// Suspends the dearest part if the cost of this time is more than the limit allows.
fn judge(cost: OwnCost, ns: u64, limit_percent: f64, clients: &mut [Client]) {
    let percent = cost.cpu_ns() as f64 / ns.max(1) as f64 * 100.0;
    let is_kept = percent <= limit_percent || suspend_dearest(cost, percent, clients);
    TOO_MUCH.store(if is_kept { 0 } else { (percent * 1000.0) as u64 }, Ordering::Relaxed);
}

/// Whether a part was suspended for this use.
fn suspend_dearest(cost: OwnCost, percent: f64, clients: &mut [Client]) -> bool {
    let of_clients = OfClients {
        has_profiles: profile::verb::has_any(clients),
        has_watches: watch::verb::has_any(clients),
    };
    // Refused as any batch may be: the next check tries it again.
    let part = dearest(cost, of_clients).filter(|part| sleep::suspend(*part, clients).is_ok());
    if let Some(part) = part {
        asleep::limit(part, percent);
    }
    part.is_some()
}

/// The features that clients use. Those that the service's own code has begun go on, whatever they
/// cost.
#[derive(Debug, Clone, Copy, Default)]
struct OfClients {
    has_profiles: bool,
    has_watches: bool,
}

/// The part that costs the most of those that are awake.
fn dearest(cost: OwnCost, of_clients: OfClients) -> Option<Part> {
    let polls = cost.polls_ns.unwrap_or(0);
    let are_timed = dormouse_waits::is_on() || dormouse_locks::is_on();
    let records = cost.records_ns.unwrap_or(0);
    let read = if recorder::stat().is_some() { cost.threads_ns } else { 0 };
    let sampled = if of_clients.has_profiles { cost.samples_ns.unwrap_or(0) + cost.threads_ns } else { 0 };
    let parts = [
        (records + read, Part::Records),
        (if are_timed { polls } else { 0 }, Part::Times),
        (if are_timed { 0 } else { polls }, Part::Counts),
        (sampled, Part::Profiles),
        (if of_clients.has_watches { cost.hits_ns.unwrap_or(0) } else { 0 }, Part::Watches),
    ];
    let awake = parts.into_iter().filter(|(cost, part)| *cost > 0 && !asleep::is_limited(*part));
    awake.max_by_key(|(cost, _)| *cost).map(|(_, part)| part)
}

/// The limit in percent of a CPU, or what is wrong with the setting.
fn setting() -> Option<Result<f64, String>> {
    let text = environment::variables().max_cpu.as_ref()?.to_string_lossy();
    Some(parse(&text).ok_or_else(|| format!("DORMOUSE_MAX_CPU is {text:?}, and limits nothing")))
}

fn parse(text: &str) -> Option<f64> {
    let percent: f64 = text.trim().strip_suffix('%')?.trim_end().parse().ok()?;
    (0.01..=100.0).contains(&percent).then_some(percent)
}

/// The outcome of the setting, if there is one.
pub(crate) fn capability() -> Option<Capability> {
    let percent = match setting()? {
        Ok(percent) => percent,
        Err(why) => {
            let fix = "set DORMOUSE_MAX_CPU to percent of a CPU, from 0.01% to 100%, as in 1%";
            return Some(Capability::limited(CHECK, why).with_fix(fix));
        }
    };
    Some(outcome(percent, own_cost()))
}

fn outcome(percent: f64, cost: OwnCost) -> Capability {
    let limited = asleep::limited();
    let too_much = Some(TOO_MUCH.load(Ordering::Relaxed)).filter(|used| *used > 0).map(|used| {
        let used = used as f64 / 1000.0;
        format!("dormouse may use {percent} % of a CPU, used {used} % by the last check, and could suspend nothing")
    });
    let fix = if limited.is_some() {
        "run dormouse wake, or raise DORMOUSE_MAX_CPU"
    } else {
        "raise DORMOUSE_MAX_CPU"
    };
    let what: Vec<String> = limited.into_iter().chain(too_much).collect();
    if what.is_empty() {
        within(percent, cost)
    } else {
        Capability::limited(CHECK, what.join("; ")).with_fix(fix)
    }
}

/// The outcome of a limit for which nothing is suspended. A cost that is not known counts for
/// nothing in [`judge`], so it may be above the limit.
fn within(percent: f64, cost: OwnCost) -> Capability {
    let may = format!("dormouse may use {percent} % of a CPU");
    let parts = [(cost.polls_ns, "tasks, calls and locks"), (cost.records_ns, "records of probes")];
    let unknown: Vec<_> = parts.into_iter().filter(|(ns, _)| ns.is_none()).map(|(_, name)| name).collect();
    if unknown.is_empty() {
        return Capability::ok(CHECK, format!("{may}, and has used less"));
    }
    let why = "no call there could be timed, because a filter of system calls was there before dormouse, and \
               the threads do not read the counter";
    let what = unknown.join(" and of ");
    let detail = format!("{may}; the cost of {what} on the service's threads is not known: {why}");
    Capability::limited(CHECK, detail)
        .with_fix("call dormouse::init(), in C dormouse_init(), before the filter is installed")
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::{Context, Poll, Waker};

    use dormouse_sys::State;

    use super::*;

    #[test]
    fn a_limit_is_a_number_of_percent() {
        for (text, percent) in [("1%", 1.0), (" 0.5 %", 0.5), ("100%", 100.0)] {
            assert_eq!(parse(text), Some(percent));
        }
        for text in ["", "1", "%", "0%", "-1%", "101%", "NaN%", "one%"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_unknown_cost_is_no_lower_one() {
        let known = OwnCost { polls_ns: Some(0), records_ns: Some(0), ..OwnCost::default() };
        let check = within(1.0, known);
        assert_eq!((check.state, check.fix), (State::Ok, None));
        assert_eq!(check.detail, "dormouse may use 1 % of a CPU, and has used less");
        for (cost, what) in [
            (OwnCost { polls_ns: None, ..known }, "the cost of tasks, calls and locks on"),
            (OwnCost { records_ns: None, ..known }, "the cost of records of probes on"),
            (OwnCost::default(), "the cost of tasks, calls and locks and of records of probes on"),
        ] {
            let check = within(0.5, cost);
            assert!(check.state == State::Limited && check.fix.is_some(), "{check:?}");
            assert!(check.detail.contains(what) && !check.detail.contains("less"), "{check:?}");
            assert!(check.detail.contains("is not known: no call there could be timed"), "{check:?}");
        }
    }

    #[cfg(not(any(dormouse_fallback, miri)))]
    #[test]
    fn a_limit_that_nothing_keeps_is_reported() {
        dormouse_testkit::in_child(|| {
            let second = 1_000_000_000;
            let cost = OwnCost {
                polls_ns: Some(0),
                records_ns: Some(0),
                threads_ns: 30_000_000,
                ..OwnCost::default()
            };
            judge(cost, second, 2.0, &mut []);
            let check = outcome(2.0, cost);
            assert!(check.state == State::Limited && check.fix.is_some(), "{check:?}");
            assert!(check.detail.contains("used 3 % by the last check, and could"), "{check:?}");
            judge(cost, second, 4.0, &mut []);
            assert_eq!(outcome(4.0, cost).state, State::Ok);
        });
    }

    #[cfg(not(any(dormouse_fallback, miri)))]
    #[test]
    fn suspended_times_stand_still() {
        dormouse_testkit::in_child(|| {
            let _waiting = dormouse_waits::Waiting::start().unwrap();
            let (group, leaf) = (crate::Group::new("still"), Cell::new(None::<Waker>));
            let mut task = Box::pin(group.instrument(poll_fn(|cx| {
                leaf.set(Some(cx.waker().clone()));
                Poll::<()>::Pending
            })));
            let mut poll = || task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
            let read = || {
                let of = dormouse_waits::read_group(group.id()).unwrap();
                [of.poll_ns, of.runnable_ns, of.await_ns]
            };
            assert!(poll());
            let before = read();
            assert!(read()[2] > before[2], "it awaits");
            sleep::suspend(Part::Times, &mut []).unwrap();
            // The waker is one of ours, and the poll is not seen.
            leaf.take().unwrap().wake();
            assert!(poll());
            let before = read();
            assert_eq!(read(), before);
            drop(leaf.take());
            drop(task);
            assert_eq!(read(), before);
        });
    }

    #[cfg(not(any(dormouse_fallback, miri)))]
    #[test]
    fn the_dearest_parts_sleep_one_by_one() {
        dormouse_testkit::in_child(|| {
            let _waiting = dormouse_waits::Waiting::start().unwrap();
            let ms = |ms: u64| Some(ms * 1_000_000);
            let cost = OwnCost { polls_ns: ms(20), records_ns: ms(1), ..OwnCost::default() };
            let second = 1_000_000_000;
            judge(cost, second, 2.2, &mut []);
            assert!(dormouse_waits::is_on(), "not more than it may");
            judge(cost, second, 2.0, &mut []);
            assert!(!dormouse_waits::is_on() && asleep::is_limited(Part::Times));
            assert!(!asleep::is_limited(Part::Counts) && !asleep::is_limited(Part::Records));
            judge(cost, second, 2.0, &mut []);
            assert!(asleep::is_limited(Part::Counts) && !asleep::is_limited(Part::Records));
            let what = asleep::limited().unwrap();
            assert!(what.contains("2.1 % of a CPU") && what.contains("times of tasks"), "{what}");
            assert_eq!(outcome(2.0, cost).detail, what, "there was something to suspend");
            assert!(asleep::check(Part::Times).is_err() && asleep::check(Part::Records).is_ok());
            let cost = OwnCost { hits_ns: ms(20), samples_ns: ms(30), threads_ns: 40_000_000, ..cost };
            let watches = OfClients { has_watches: true, ..OfClients::default() };
            assert_eq!(dearest(cost, watches), Some(Part::Watches), "dearer than records");
            assert_eq!(dearest(cost, OfClients { has_profiles: true, ..watches }), Some(Part::Profiles));
            judge(cost, second, 2.0, &mut []);
            assert!(asleep::is_limited(Part::Records) && !asleep::is_limited(Part::Watches), "no client's");
            judge(cost, second, 2.0, &mut []);
            let check = outcome(2.0, cost);
            assert!(check.detail.contains("; dormouse may use 2 % of a CPU, used 11.1 % by"), "{check:?}");
            sleep::resume_all().unwrap();
            assert!(dormouse_waits::is_on() && asleep::limited().is_none());
        });
    }
}

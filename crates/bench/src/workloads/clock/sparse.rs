//! `sparse/TIER` and `slept/TIER`: a poll that comes 200 µs after the last one, as on a service
//! with little traffic. In between the thread spins, so the caches stay warm, or sleeps.
//!
//! Each poll is timed by the counter. A sample is the mean of its polls without the slowest
//! hundredth, in which the thread was descheduled. A tier that asks the kernel now and then does so
//! more often than that.

use std::future::{Future, pending};
use std::hint::spin_loop;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use dormouse::clock::{Tier, ns_to_ticks, rdtsc, ticks_to_ns};
use dormouse::events::Mode;
use dormouse::{Event, Group};

use super::tiers::{ALL, only};
use crate::bench::Bench;
use crate::row::Spec;
use crate::runner::Failure;

/// Nanoseconds from poll to poll.
const APART: u64 = 200_000;

/// How the thread passes that time.
const WAYS: [(&str, fn()); 2] = [("sparse", spin), ("slept", sleep)];

fn spin() {
    let (last, apart) = (rdtsc(), ns_to_ticks(APART));
    while rdtsc().wrapping_sub(last) < apart {
        spin_loop();
    }
}

fn sleep() {
    thread::sleep(Duration::from_nanos(APART));
}

pub(super) fn rows(bench: &mut Bench) {
    let polls = bench.pick(400, 200);
    for (way, pass) in WAYS {
        let spec = |name: &str| Spec::new(format!("{way}/{name}"), "ns").per("poll").with("polls", polls);
        bench.sample(spec("bare"), move || Ok(sample(polls, pass, pending())));
        for tier in ALL {
            let group = Group::new("bench sparse");
            bench.sample(spec(&format!("dormouse-{tier}")), move || charged(tier, group, polls, pass));
        }
    }
}

/// The rows of the tiers compared with the bare one.
pub(super) fn compare(bench: &mut Bench) {
    for ((way, _), tier) in WAYS.into_iter().flat_map(|way| ALL.map(|tier| (way, tier))) {
        bench.added(way, "bare", &[&format!("dormouse-{tier}")]);
    }
    let row = format!("sparse-added/dormouse-{}", Tier::Gap);
    bench.at_most("a poll 200 us after the last adds at most 60 ns on the gap tier", &row, 60.0);
}

fn charged(tier: Tier, group: Group, polls: usize, pass: fn()) -> Result<f64, Failure> {
    only(tier)?;
    let _counting = group.start_counting(&[Event::TASK_CLOCK], Mode::GroupExact)?;
    Ok(sample(polls, pass, group.instrument(pending())))
}

/// Nanoseconds of a poll.
fn sample(polls: usize, pass: fn(), future: impl Future<Output = ()>) -> f64 {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    let mut one = |_| {
        pass();
        let begin = rdtsc();
        let _pending = future.as_mut().poll(&mut context);
        rdtsc().wrapping_sub(begin)
    };
    let mut took: Vec<u64> = (0..polls).map(&mut one).collect();
    took.sort_unstable();
    took.truncate(polls - polls / 100);
    ticks_to_ns(took.iter().sum()) as f64 / took.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_timed_in_each_tier() {
        let _alone = super::super::tiers::FORCING.lock();
        for ((_, pass), tier) in WAYS.into_iter().flat_map(|way| ALL.map(|tier| (way, tier))) {
            match charged(tier, Group::new("bench sparse test"), 5, pass) {
                Ok(took) => assert!(took > 0.0),
                Err(Failure::Unavailable(reason)) => println!("1 skipped: {reason}"),
                Err(wrong) => panic!("{wrong:?}"),
            }
        }
    }
}

//! Histograms against the durations themselves.

use std::task::{Context, Waker};

use dormouse_waits::buckets::{BUCKETS, OFFSET, SCALE, ZERO_THRESHOLD_NS, upper_bound_ns};
use dormouse_waits::{Histogram, TaskEnd, TaskWaits, Waiting, Who, read};
use proptest::prelude::*;

/// The bucket of a duration, as OpenTelemetry defines it: bucket `i` has `base^i < x <=
/// base^(i+1)`.
fn place(ns: u64) -> usize {
    if ns <= ZERO_THRESHOLD_NS {
        return 0;
    }
    // The least upper bound that is not below it. Bounds that are whole numbers are exact.
    (1..BUCKETS - 1).find(|&place| upper_bound_ns(place) >= ns as f64).unwrap_or(BUCKETS - 1)
}

fn histogram(durations: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    for &ns in durations {
        histogram.buckets[place(ns)] += 1;
        histogram.sum_ns += ns;
        histogram.max_ns = histogram.max_ns.max(ns);
    }
    histogram
}

#[test]
fn bounds_are_opentelemetrys() {
    let base = f64::from(SCALE).exp2().recip().exp2();
    for place in 0..BUCKETS {
        // The zero bucket ends where the bucket of index OFFSET begins.
        let bound = 1e9 * base.powi(OFFSET + place as i32);
        assert!((upper_bound_ns(place) / bound - 1.0).abs() < 1e-9, "{place}");
    }
}

proptest! {
    #[test]
    fn quantiles_are_in_the_bucket_of_the_exact_one(
        mut durations in prop::collection::vec((0_u32..42).prop_flat_map(|power| 0..=1_u64 << power), 1..300),
        share in 0.0..=1.0_f64,
    ) {
        let histogram = histogram(&durations);
        durations.sort_unstable();
        let rank = (f64::ceil(share * durations.len() as f64) as usize).clamp(1, durations.len());
        let exact = durations[rank - 1];
        let seen = histogram.quantile_ns(share).unwrap();
        let of = place(exact);
        let lower = if of == 0 { 0.0 } else { upper_bound_ns(of - 1) };
        prop_assert!(seen as f64 + 1.0 >= lower && seen as f64 <= upper_bound_ns(of), "{seen} for {exact}");
        prop_assert!(seen <= histogram.max_ns);
    }
}

#[test]
fn rows_of_threads_are_merged() {
    let _waiting = Waiting::start().unwrap();
    let polls = |task| {
        let who = Who { task, group: 30 };
        let mut waits = TaskWaits::begun(who);
        for _ in 0..10 {
            waits.poll(who, &mut Context::from_waker(Waker::noop()), |cx| cx.waker().clone()).wake();
        }
        waits.end(TaskEnd::Answered);
    };
    std::thread::scope(|scope| (1..4).for_each(|task| _ = scope.spawn(move || polls(task))));
    let of = read().into_iter().find(|of| of.group == 30).unwrap();
    assert_eq!((of.polls.count(), of.requests.count()), (30, 3));
    assert!((1..4).contains(&of.requests.max_task) && of.requests.max_ns >= of.polls.max_ns, "{of:?}");
    // The three lived one after another, or at once: the longest is a part of the sum.
    assert!((of.requests.max_ns..=3 * of.requests.max_ns).contains(&of.requests.sum_ns), "{of:?}");
    assert!(of.polls.sum_ns.abs_diff(of.poll_ns) < 3 * 10, "less than a nanosecond is lost a poll");
    assert!(of.requests.buckets[..place(of.requests.max_ns)].iter().sum::<u64>() <= 2);
}

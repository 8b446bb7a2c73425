//! `bench poll`: the price of charging each poll of a future to a group, and whether the charge is
//! right.
//!
//! The tasks ([`tasks`]) do nothing but yield, so that a poll is cheap and the price of a wrapper
//! shows. Peers: `tokio-metrics`, and two reads of the kernel's thread clock around each poll.
//! There is no origin.

pub(crate) mod hog;
pub(crate) mod tasks;

use crate::bench::Bench;
use crate::table::value;
use crate::yardsticks;

pub(crate) fn run(bench: &mut Bench) {
    bench.param("tasks", tasks::TASKS);
    bench.param("runtime", "tokio current-thread, no drivers");
    bench.say("calibrating");
    tasks::bare(bench);
    tasks::charged(bench, "dormouse", || Ok(()));
    tasks::peers(bench);
    yardsticks::rdtsc(bench);
    yardsticks::read(bench, "thread-clock", dormouse::clock::thread_cpu_ns);
    yardsticks::clock_gettime_thread(bench);
    hog::rows(bench);
    bench.measure("reps", bench.plan(100, 6));

    bench.added("poll", "bare", &["dormouse", "tokio-metrics", "clock_gettime"]);
    let allowed = bench.median("read/rdtsc").map(|rdtsc| 2.0 * rdtsc + 30.0);
    let text = format!("poll/dormouse adds at most 2 read/rdtsc + 30 ns, {} ns in this run", value(allowed));
    bench.at_most(&text, "poll-added/dormouse", allowed.unwrap_or(f64::NAN));
    for name in ["attribution/hog", "attribution/hog-outer"] {
        bench.at_most(&format!("{name} within 5 % of the hog's time"), name, 5.0);
    }
    bench.explain(include_str!("notes.txt"));
    bench.explain(include_str!("hog.txt"));
}

//! `bench waits`: the price of taking the times of tasks.
//!
//! The tasks ([`passers`]) do nothing but take a waker and wake each other, so that a poll is cheap
//! and the price of a wrapper shows. Peers: `tokio-metrics` and `await-tree`. (The subscriber of
//! `tokio-console` needs a runtime that is built with `tokio_unstable`, so it is not included.)
//! There is no origin.

mod calls;
mod contention;
mod listing;
mod long_polls;
mod objectives;
mod passers;
pub(crate) mod placing;
mod publishing;
mod reading;
mod traces;

use crate::bench::Bench;
use crate::yardsticks;

pub(crate) fn run(bench: &mut Bench) {
    bench.param("tasks", passers::TASKS);
    bench.param("runtime", "tokio current-thread, no drivers");
    bench.say("calibrating");
    passers::rows(bench);
    placing::rows(bench);
    traces::rows(bench);
    calls::rows(bench);
    objectives::rows(bench);
    publishing::rows(bench);
    yardsticks::rdtsc(bench);
    bench.measure("reps", bench.plan(100, 6));
    reading::rows(bench);
    listing::rows(bench);
    contention::rows(bench);
    bench.measure("readings", bench.plan(20, 3));
    bench.say("long polls");
    long_polls::rows(bench);
    bench.measure("long_polls", bench.plan(50, 3));

    bench.added("wake", "bare", &["asleep", "times", "tokio-metrics", "await-tree"]);
    bench.added("wake", "account", &["account-times", "account-watched"]);
    bench.added("end", "part", &["request"]);
    bench.added("end", "request", &["request-again", "traced", "unanswered", "answered"]);
    bench.added("end", "asleep", &["asleep-answered"]);
    bench.at_most("times add at most 40 ns to a poll of the account", "wake-added/account-times", 40.0);
    bench.added("objective", "none", &["one", "eight"]);
    bench.added("direct", "account", &["published", "told"]);
    placing::compare(bench);
    bench.at_most("asleep, nothing measurable", "wake-added/asleep", 2.0);
    bench.at_most("a request's trace adds at most 20 ns", "end-added/traced", 20.0);
    bench.at_most("a call takes at most 100 ns", "call/awake", 100.0);
    bench.at_most("asleep, a call takes nothing measurable", "call/asleep", 2.0);
    bench.at_most("a response's head and body add at most 20 ns", "end-added/answered", 20.0);
    bench.at_most("asleep, at most 5 ns", "end-added/asleep-answered", 5.0);
    bench.at_most("all tasks are listed within a second", listing::ALL, 1000.0);
    bench.at_most("looks for long polls add nothing to a poll", "wake-added/account-watched", 2.0);
    bench.at_most("to publish the group adds at most 2 ns to a poll", "direct-added/published", 2.0);
    long_polls::compare(bench);
    bench.at_most("a thread runs or is runnable, to 2 %", contention::APART, 2.0);
    bench.explain(include_str!("notes.txt"));
}

//! `bench metrics`: the price of metrics.

mod encode;
mod scrapes;
mod served;

use crate::bench::Bench;

pub(crate) fn run(bench: &mut Bench) {
    // First: the services are forks of this process, and have the groups that it has.
    bench.say("scrapes through dormouse serve");
    scrapes::rows(bench);
    bench.measure("scrapes", bench.plan(8, 2));
    scrapes::compare(bench);
    bench.say("formats");
    encode::rows(bench);
    bench.measure("formats", bench.plan(30, 3));
    encode::compare(bench);
    bench.explain(include_str!("notes.txt"));
}
